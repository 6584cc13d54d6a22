"""What follows from a run's inner products is computed once and kept beside it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probe.analysis import evidence, remembered
from probe.analysis.analyze import analyze
from probe.analysis.pull import Share
from probe.analysis.statistics.intervals import Bounded, Interval
from probe.records.run import read_run


@pytest.fixture
def path(replay: Callable[..., Path], quick: list[str]) -> Path:
    """A small run, of which nothing is kept."""
    path = replay("kept", "--steps", "4", *quick)
    (path / remembered.FILE).unlink(missing_ok=True)
    return path


def counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, int]:
    """The JSON of an analysis, and how often it computed the nulls of permuted labels."""
    calls = []
    nulls = evidence.permutation_nulls
    with monkeypatch.context() as patched:
        patched.setattr(
            evidence, "permutation_nulls", lambda *args, **options: calls.append(1) or nulls(*args, **options)
        )
        found = analyze(read_run(path)).to_json()
    return json.loads(json.dumps(found)), len(calls)


def test_a_second_analysis_draws_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same JSON; the run's files as they were; a damaged or foreign file, and other code, are as none."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    first, times = counted(path, monkeypatch)
    assert times == 1
    kept = path / remembered.FILE
    whole = kept.read_bytes()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file != kept} == before
    assert counted(path, monkeypatch) == (first, 0), "drawn again"
    for damaged in (whole[: len(whole) // 2], whole.replace(b"permutation", b"permutatiom", 1), b"{}"):
        kept.write_bytes(damaged)
        assert counted(path, monkeypatch) == (first, 1)
        assert kept.read_bytes() == whole
    monkeypatch.setattr(remembered, "_code", lambda: "other")
    assert counted(path, monkeypatch) == (first, 1)


def test_other_records_are_another_entry(path: Path) -> None:
    """A run whose records were changed in memory gets its own numbers."""
    run = read_run(path)
    one = analyze(run).permutation
    assert one is not None
    half = [sample for sample in run.samples if sample.step < 2]
    run.samples[:] = half
    run.steps[:] = [step for step in run.steps if step.step < 2]
    assert analyze(run).permutation != one
    assert analyze(read_run(path)).permutation == one


def test_infinite_ends_and_numpy_numbers_come_back(path: Path) -> None:
    """An open interval ends at infinity."""
    made = Share(
        name="pull",
        share=Bounded(value=np.float64(0.1), interval=Interval(low=-np.inf, high=0.3)),
        ceiling=None,
        num_held_out=np.int64(3),  # pyright: ignore[reportArgumentType]
        reason=None,
    )
    run = read_run(path)
    for _ in range(2):
        assert remembered.remembered(run, "x", Share, lambda: made) == made
