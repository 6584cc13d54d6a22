"""Training with a server: each batch is sampled from the right adapter, ahead too, and nothing depends on timing."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from directories import contents
from served import group_off

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs import loop
from probe.runs.sources import sampled
from replay_pools.policy.load import load_policy
from replay_pools.pool import open_pool

SETTINGS = {
    "model.lora_rank": 4, "rollouts.prompts_per_step": 1, "rollouts.group": 2, "rollouts.dynamic_sampling": 1,
    "rollouts.num_problems": 8,  # the known answers of every problem are graded before the first step
    "rollouts.prefetch": 2, "objective.old_logprobs": "recorded",
    "objective.entropy_coef": 0.1,  # moves the policy where no reward does
    "intervention.arms": ["projected-lora"], "steps": 3, "optimizer.lr": 0.3, "evaluation.every": 3,
    "evaluation.num_problems": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(loopback: Any, organism: Any, small: str) -> Any:
    return loopback(organism(small))


@pytest.fixture(scope="module")
def train(server: Any, tmp_path_factory: pytest.TempPathFactory, preset: Callable[..., str]) -> Callable[..., Path]:
    """train(name, settings, code=0) -> the run that `probe train` left with these changes of SETTINGS."""

    out = tmp_path_factory.mktemp("prefetch")

    def make(name: str, settings: dict[str, Any] | None = None, code: int = 0) -> Path:
        options = ["--preset", preset(SETTINGS | (settings or {})), "--name", name, "--out", str(out)]
        assert run(cli, ["train", *options, "--url", server.url]) == code
        assert not server.adapters, "the server is left with adapters of the run"
        assert not [*(out / "runs" / name).glob("adapters/*")]
        return out / "runs" / name

    return make


@pytest.fixture(scope="module")
def whole(train: Callable[..., Path]) -> Path:
    return train("whole")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model.adapter": "x"}, "no model.adapter"),
        ({"rollouts.earlier_checkpoint.every": 2, "rollouts.prefetch": 0}, "no rollouts.earlier_checkpoint"),
    ],
)
def test_what_a_server_cannot_sample_is_refused(changes, expected: str, preset, tmp_path: Path, capsys) -> None:
    options = ["--preset", preset(SETTINGS | changes), "--name", "unserved", "--out", str(tmp_path)]
    assert run(cli, ["train", *options, "--url", "http://127.0.0.1:1"]) == 2
    assert f"--url: expected {expected}" in capsys.readouterr().err


def test_every_step_is_sampled_from_its_policy(train: Callable[..., Path], small: str) -> None:
    """The arm projected, in truncated SVD coordinates."""
    settings = {"intervention.arms": ["projected"], "model.svd_rank": 24, "rollouts.prefetch": 0, "steps": 2}
    settings |= {"optimizer.warmup_steps": 0, "objective.entropy_coef": 1.0, "optimizer.lr": 1.0, "evaluation.every": 9}
    groups = open_pool(train("svd", settings) / "rollouts").steps
    differences = {step: group_off(load_policy(small), groups[step]) for step in (0, -1)}
    assert differences[0] < 1e-4, "the first step is not sampled from the start"
    assert differences[-1] > 0.01, "the second step is"


@pytest.mark.slow
def test_sampling_in_the_background_gives_what_sampling_in_turn_gives(whole: Path, train, monkeypatch) -> None:
    """Byte for byte, evaluations among them. In turn: no thread, and each batch is sampled when its step needs it, with
    the weights of its time put back.
    """
    monkeypatch.setattr(sampled, "sampling_ahead", lambda *_: nullcontext(lambda batch: None))
    assert contents(train("whole-in-turn")) == contents(whole)
    moved = max(abs(step.ratio["mean"] - 1) for step in read_run(whole).steps)
    assert moved > 1e-3, "no policy has moved since it sampled: the test shows nothing"


@pytest.mark.slow
def test_the_next_batch_is_sampled_during_the_step(server: Any, train: Callable[..., Path], monkeypatch) -> None:
    """The server answers nothing on batch 1 before step 0 is being computed, and step 0 is not computed before batch 1
    was asked for: one after the other, one of the two would wait in vain."""
    step_begins, batch_asked, step, sampled = threading.Event(), threading.Event(), loop.train_step, server._sampled
    asked: set[str] = set()

    def waiting_step(*arguments: Any, **names: Any) -> Any:
        step_begins.set()
        assert batch_asked.wait(120), "the server was not asked for the next batch during the step"
        return step(*arguments, **names)

    def waiting_answer(model: str, body: Any) -> Any:
        asked.add(model)
        if model.endswith("-batch1"):
            batch_asked.set()
            assert step_begins.wait(120), "the step did not begin before the next batch was there"
        return sampled(model, body)

    monkeypatch.setattr(loop, "train_step", waiting_step)
    monkeypatch.setattr(server, "_sampled", waiting_answer)
    train("overlap", {"steps": 2, "rollouts.prefetch": 1, "evaluation.every": 9})
    start, first = sorted(name for name in asked if "batch" in name)
    assert start.removesuffix("-batch0") == first.removesuffix("-batch1"), "both are of the policy at the start"


@pytest.mark.slow
def test_a_restarted_server_ends_the_run_which_resumes_to_the_same_bytes(
    server: Any, whole: Path, train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It has lost the adapter of batch 1, which is sampled in the background; the batches behind are not made."""
    completion = server._completion

    def restarted(body: dict[str, Any]) -> Any:
        if body["model"].endswith("-batch1"):
            server.adapters.clear()
        return completion(body)

    with monkeypatch.context() as patch:
        patch.setattr(server, "_completion", restarted)
        directory = train("restarted", code=2)
    assert "a restarted server has lost pushed adapters" in capsys.readouterr().err
    steps = {int(path.name[5:8]) for path in (directory / "rollouts").glob("step_*")}
    assert max(steps) < 2, "a batch was made behind the one that failed"
    assert contents(train("restarted")) == contents(whole)
