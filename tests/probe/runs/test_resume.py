"""Killed at any point and resumed equals never killed, byte for byte; what is another run is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from directories import contents
from processes import interrupted_at

from extraction.pairs import builtin_pairs, write_pairs
from probe.records.timings import Timings
from probe.runs import loop
from probe.runs.resume import drop_checkpoints, save_checkpoint

GRID = ["--arm", "projected,projected-lora", "--steps", "2", "--set", "model.lora_rank=4"]
GRID += ["--set", "token_attribution=none"]
GRID += ["--condition", "default", "--condition", "g:gtpo_beta=1", "--condition", "capped:advantage_clip=1"]
# (write, at which of its calls the process dies): in step 0, and three times in step 1.
WRITES = [(loop, "write_tokens", 1), (loop, "write_samples", 2), (loop, "write_steps", 1), (Timings, "write_step", 1)]


def test_a_run_cut_off_between_any_two_writes_resumes_to_the_same_bytes(out: Path, quick, probe, monkeypatch) -> None:
    """The process dies just before each write of a step, and goes on where it died."""
    command = ("replay", *GRID, *quick, "--name")
    probe(*command, "grid-whole")
    probe(*command, "grid-cut", "--k", "40", code=2)  # what failed before its first step blocks no name
    for owner, function, call in WRITES:
        monkeypatch.setattr(owner, function, interrupted_at(call, getattr(owner, function)))
        probe(*command, "grid-cut", code=130)
        monkeypatch.undo()
        assert not (out / "runs" / "grid-cut" / "manifest.json").exists(), "a run that died must not look complete"
    probe(*command, "grid-cut")
    assert contents(out / "runs" / "grid-cut") == contents(out / "runs" / "grid-whole")


@pytest.mark.parametrize("source", ["pairs", "v_hack"])
def test_a_run_is_not_resumed_along_other_directions(
    source: str, out: Path, quick: list[str], small: str, tmp_path: Path, probe, refused, monkeypatch
) -> None:
    """The file of the pairs, or of the directions, has other contents under the same name."""
    pairs, name = tmp_path / "pairs.jsonl", f"swapped-{source}"
    write_pairs(pairs, builtin_pairs("run_tests")[:4])
    options = ("--pairs", pairs, "--k", "2")
    extract = ("extract", "--name", name, "--model", small, *options)
    if source == "v_hack":
        probe(*extract)
        options = ("--v-hack", out / "directions" / f"{name}.safetensors", "--k", "2")
    command = ("replay", "--name", name, "--arm", "vanilla", "--steps", "2", *quick[:2], *options)
    monkeypatch.setattr(loop, "write_samples", interrupted_at(2, loop.write_samples))
    probe(*command, code=130)
    monkeypatch.undo()
    write_pairs(pairs, builtin_pairs("run_tests")[4:8])
    if source == "v_hack":
        assert "expected no file, or the same directions" in refused(*extract)
        (out / "directions" / f"{name}.safetensors").unlink()
        probe(*extract)
    assert "to have directions." in refused(*command)
    refused(*command, "--dry-run")


def test_a_run_is_not_resumed_on_a_model_with_another_config(quick, small: str, tmp_path: Path, probe, refused) -> None:
    """The weights are the same; a corrected rotary base gives other gradients."""
    model = shutil.copytree(small, tmp_path / "model")
    command = ("replay", "--name", "other-config", "--arm", "vanilla", "--steps", "1", *quick, "--model", model)
    probe(*command)
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0}
    (model / "config.json").write_text(json.dumps(config))
    assert "to have model_config_sha256" in refused(*command)


@pytest.mark.parametrize(
    ("recorded", "left"),
    [
        (8, [6, 8]),
        (7, [4, 6]),  # killed between the checkpoint and the record of a step: it is not to be had, and 6 is needed
        (3, [2]),
        (1, []),
    ],
)
def test_the_newest_two_checkpoints_that_are_recorded_stay(recorded: int, left: list[int], tmp_path: Path) -> None:
    state: Any = SimpleNamespace(state_dict=dict)
    for done in (2, 4, 6, 8):
        save_checkpoint(tmp_path, done, state)
    drop_checkpoints(tmp_path, recorded)
    assert sorted(path.name for path in tmp_path.rglob("*.pt")) == [f"step_{done:06d}.pt" for done in left]
