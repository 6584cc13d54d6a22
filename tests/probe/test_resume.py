"""Killed at any point and resumed equals never killed, byte for byte."""

import signal
import time
from pathlib import Path

import processes
import pytest
from directories import contents
from interrupts import interrupted_at

from extraction.pairs import builtin_pairs, write_pairs
from probe.cli import cli
from probe.cli._frame import run
from probe.records.timings import Timings
from probe.runs import loop

GRID = [
    *(
        "--arm",
        "projected,projected-lora",
        "--steps",
        "6",
        "--set",
        "model.lora_rank=4",
        "--set",
        "model.dtype_noise=2",
        "--set",
        "token_attribution=none",
    ),
    *("--condition", "default", "--condition", "g:gtpo_beta=1", "--condition", "capped:advantage_clip=1"),
]
WRITES = [(loop, "write_tokens"), (loop, "write_samples"), (loop, "write_steps"), (Timings, "write_step")]


def test_a_run_cut_off_between_any_two_writes_resumes_to_the_same_bytes(
    out: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies just before each write of a step, at the second step of its own, and goes on where it died."""
    options, whole, cut = [*GRID, *quick], "grid-whole", "grid-cut"
    assert run(cli, ["replay", "--name", whole, "--out", str(out), *options]) == 0
    for owner, function in WRITES:
        monkeypatch.setattr(owner, function, interrupted_at(2, getattr(owner, function)))
        assert run(cli, ["replay", "--name", cut, "--out", str(out), *options]) == 130, function
        monkeypatch.undo()
        assert not (out / "runs" / cut / "manifest.json").exists(), "a run that died must not look complete"
    assert run(cli, ["replay", "--name", cut, "--out", str(out), *options]) == 0
    assert contents(out / "runs" / cut) == contents(out / "runs" / whole)


def test_a_run_killed_by_sigkill_resumes_to_the_same_bytes(out: Path, quick: list[str]) -> None:
    """The real thing: SIGKILL as soon as the second step is on disk."""
    options = ["--out", str(out), "--arm", "vanilla", "--steps", "8", *quick]
    directory = out / "runs" / "killed"
    process = processes.start(processes.command("replay", "--name", "killed", *options))
    deadline = time.monotonic() + 120
    while not (directory / "step_001.cos.jsonl.gz").exists():
        assert process.is_alive(), "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert processes.finish(process) == -signal.SIGKILL
    assert not (directory / "manifest.json").exists(), "finished before it could be killed"
    (directory / ".steps.jsonl.x.tmp").write_text("what a kill inside a write leaves")
    for name in ("killed", "not-killed"):
        assert run(cli, ["replay", "--name", name, *options]) == 0
    assert contents(directory) == contents(out / "runs" / "not-killed")


def test_a_run_that_failed_before_its_first_step_does_not_block_its_name(out: Path, quick: list[str]) -> None:
    start = ["replay", "--name", "second-try", "--out", str(out), "--arm", "vanilla", "--steps", "2", *quick]
    assert run(cli, [*start, "--k", "40"]) == 2
    assert run(cli, start) == 0


def test_another_configuration_is_refused_in_the_same_directory(
    out: Path, quick: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["replay", "--name", "reconfigured", "--out", str(out), "--arm", "vanilla", *quick]
    assert run(cli, [*start, "--steps", "2"]) == 0
    before = contents(out / "runs" / "reconfigured")
    assert run(cli, [*start, "--steps", "3"]) == 2
    assert "use another --name" in capsys.readouterr().err
    assert contents(out / "runs" / "reconfigured") == before, "bad input loses nothing"


@pytest.mark.parametrize("source", ["pairs", "v_hack"])
def test_a_run_is_not_resumed_along_other_directions(
    source: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the pairs, or of the directions, has other contents under the same name."""
    pairs = tmp_path / "pairs.jsonl"
    write_pairs(pairs, builtin_pairs("run_tests")[:4])
    options = ["--pairs", str(pairs), "--k", "2"]
    extract = ["extract", "--name", f"swapped-{source}", "--out", str(out), *options]
    if source == "v_hack":
        assert run(cli, extract) == 0
        options = ["--v-hack", str(out / "directions" / f"swapped-{source}.safetensors"), "--k", "2"]
    command = ["replay", "--name", f"swapped-{source}", "--out", str(out), "--arm", "vanilla", "--steps", "2", *options]
    monkeypatch.setattr(loop, "write_samples", interrupted_at(2, loop.write_samples))
    assert run(cli, command) == 130
    monkeypatch.undo()
    write_pairs(pairs, builtin_pairs("run_tests")[4:8])
    if source == "v_hack":
        assert run(cli, extract) == 2, "a direction file is not overwritten by another"
        assert "expected no file, or the same directions" in capsys.readouterr().err
        (out / "directions" / f"swapped-{source}.safetensors").unlink()
        assert run(cli, extract) == 0
    assert run(cli, command) == 2
    assert "to have directions." in capsys.readouterr().err
    assert run(cli, [*command, "--dry-run"]) == 2
