"""What advice proposes: commands that repeat a run with other settings, and mend the part that is broken."""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from worlds import World, make_run

from probe.analysis.analyze import Analysis
from probe.analysis.verdict import next_step as steps
from probe.records.run import Run, read_run


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("out") / "runs" / "run", World(num_steps=2)))


def with_settings(stored: Run, model: str | None = None, **changes: Any) -> Run:
    return replace(stored, config=stored.config | {"settings": stored.config["settings"] | changes, "model": model})


def test_a_direction_is_extracted_as_the_run_did_or_shown(stored: Run) -> None:
    """The model that the pools named, and another basis; a file of directions is shown."""
    plain = f"probe extract --config {stored.path / 'config.json'}"
    assert steps.direction(with_settings(stored, "organism"), "svd") == f"{plain} --name run"
    other = steps.direction(with_settings(stored, "Qwen/Qwen3-4B"), "lora")
    assert other == f"{plain} --model Qwen/Qwen3-4B --basis lora --name run"
    along_file = with_settings(stored, intervention={"v_hack": "out/directions/my own.safetensors"})
    assert steps.direction(along_file, "svd") == "probe show 'out/directions/my own.safetensors'"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("grader canaries", "probe doctor"),
        ("regrade agreement", "probe replay --config"),
        ("arms at the first step", "probe replay --config"),
        ("contributions add up", "--set model.dtype=float64"),
        ("held-out sign", "--set intervention.extraction.pairs=FILE.jsonl"),
        ("template tails", ""),
    ],
)
def test_a_remedy_is_about_its_part(part: str, expected: str, stored: Run) -> None:
    command = steps.broken(part, Analysis(stored)).command
    assert expected in command
    assert len(command.splitlines()) <= 1


def test_a_command_repeats_a_run_with_some_settings(stored: Run) -> None:
    command = steps.repeat(stored, "mine", steps=None, **{"source.replay_dirs": ["a b", "c"]})
    words = ["--set", "steps=none", "--set", 'source.replay_dirs=["a b", "c"]', "--name", "mine"]
    assert shlex.split(command) == ["probe", "replay", "--config", str(stored.path / "config.json"), *words]
