"""Trackers tell what the records say: a real TensorBoard file is read back, failures cost no run."""

import json
import os
import struct
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.records import tracking
from probe.records.run import read_run
from probe.records.tracking import numbers_of, tracked
from replay_pools.base.files import encode_jsonl, write_json
from replay_pools.base.terminal import on_progress, report

pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install gradient-probe[test]")


def events(folder: Path) -> dict[tuple[str, int], float]:
    """{(tag, step): value} of the newest event file: frames of length (8), checksum (4), event, checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    newest = max(folder.glob("events.out.tfevents.*"), key=lambda path: path.name)
    plain, found, start = newest.read_bytes(), {}, 0
    while start < len(plain):
        (length,) = struct.unpack("<Q", plain[start : start + 8])
        event = Event.FromString(plain[start + 12 : start + 12 + length])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        start += length + 16
    return found


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trackers read is set by default in the process; a test must not leave it behind."""
    for name in ("WANDB_MODE", "WANDB_DIR", "TRACKIO_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_tensorboard_holds_what_the_records_hold(replay, quick, out: Path, own_environment, capsys) -> None:
    """Every number of steps.jsonl under condition/arm/field at its step, no other; --json stays one object."""
    options = ["--steps", "2", "--arm", "vanilla,random", *quick, "--track", "tensorboard", "--json"]
    conditions = ["--condition", "default", "--condition", "scaled:scale_rewards=group"]
    directory = replay("tracked", *options, *conditions)
    assert json.loads(capsys.readouterr().out)["path"] == str(directory)
    found = events(out / "tracking" / "tensorboard" / "tracked")
    expected = {}
    for record in read_run(directory).steps:
        row = record.to_json()
        expected |= {(name, record.step): value for name, value in numbers_of(row).items()}
        assert ("" if record.condition == "default" else "scaled/") + record.arm + "/cos_in" in numbers_of(row)
    found = {key: value for key, value in found.items() if not key[0].startswith("_hparams_")}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-6)
    assert os.environ["WANDB_MODE"] == "offline", "a tracker might reach the network unasked"


def test_evaluations_are_told_in_order_with_the_steps(tmp_path: Path, own_environment) -> None:
    """As a run that trains grows: evaluation 0, steps 0 and 1, evaluation 2; each line once, at its step."""
    directory, told = tmp_path / "runs" / "grows", []
    settings = {"verb": "train", "seed": None, "intervention": {"arms": ["a"]}}
    write_json(directory / "config.json", {"settings": settings})
    rate = {"count": 1, "rate": 0.25, "interval": None}
    rates = {"num_rollouts": 4, "num_problems": 4, "hack": rate, "exploit": rate, "solve": rate}
    hearing = on_progress(lambda what, done, total: told.append((what, done, total)))
    with hearing, tracked(["tensorboard"], directory, out_dir=tmp_path, say=pytest.fail):
        for done in (0, 1, 2):
            evals = [{"step": step, "weights": "deployed", "rates": {"all": rates}} for step in (0, 2) if step <= done]
            (directory / "evals.jsonl").write_bytes(encode_jsonl(evals))
            steps = [{"step": i, "condition": "default", "arm": "a", "cos_in": 0.5 + i} for i in range(done)]
            (directory / "steps.jsonl").write_bytes(encode_jsonl(steps))
            report("steps", done, 2)
    found = events(tmp_path / "tracking" / "tensorboard" / "grows")
    curves = {key: value for key, value in found.items() if key[0] in ("a/cos_in", "eval/rates/all/hack/rate")}
    hack = {("eval/rates/all/hack/rate", step): 0.25 for step in (0, 2)}
    assert curves == {("a/cos_in", 0): 0.5, ("a/cos_in", 1): 1.5} | hack
    assert told == [("steps", 0, 2), ("steps", 1, 2), ("steps", 2, 2)]


def test_a_tracker_that_is_not_installed(tmp_path: Path, monkeypatch, capsys) -> None:
    """One line with the pip command, before the run is begun."""
    monkeypatch.setattr(tracking, "find_spec", lambda package: None)
    assert run(cli, ["replay", "--out", str(tmp_path / "out"), "--track", "wandb"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--track wandb: expected the package wandb, found none; pip install wandb" in error
    assert not (tmp_path / "out").exists()


class Failing:
    """A tracker whose network fails in the middle of a run."""

    def __init__(self) -> None:
        self.logged: list[int] = []

    def log(self, values: dict, step: int) -> None:
        print("chatter")
        self.logged.append(step)
        if step == 1:
            raise ConnectionError("no route\nto host")

    def finish(self) -> None:
        raise AssertionError("it was given up")


def test_a_failing_tracker_is_given_up_and_the_run_goes_on(replay, quick, monkeypatch, capsys) -> None:
    tracker = Failing()
    monkeypatch.setattr(tracking, "_start", lambda name, directory, folder: tracker)
    directory = replay("failing-tracker", "--steps", "3", *quick, "--track", "tensorboard")
    assert len(read_run(directory).steps) == 3
    assert tracker.logged == [0, 1]
    printed = capsys.readouterr()
    assert "tracker tensorboard is dropped: no route to host; records are in" in printed.err
    assert "chatter" not in printed.out
