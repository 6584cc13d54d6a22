"""What follows from a run's inner products is computed once and kept beside it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probe.analysis import remembered
from probe.analysis.analyze import analyze
from probe.analysis.pull import Share
from probe.analysis.statistics import geometry
from probe.analysis.statistics.intervals import Bounded, Interval
from probe.records.run import read_run


@pytest.fixture
def path(replay: Callable[..., Path], quick: list[str]) -> Path:
    """A small run, of which nothing is kept."""
    path = replay("kept", "--steps", "4", *quick)
    (path / remembered.FILE).unlink(missing_ok=True)
    return path


def counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, int]:
    """The JSON of an analysis, and how many draws of directions it made."""
    draws = []
    extract = geometry._extract
    with monkeypatch.context() as patched:
        patched.setattr(geometry, "_extract", lambda *args: draws.append(len(args[1])) or extract(*args))
        for cached in ("null_axes", "redrawn"):
            getattr(__import__("probe.analysis.statistics.nulls", fromlist=[cached]), cached).cache_clear()
        found = analyze(read_run(path)).to_json()
    return json.loads(json.dumps(found)), sum(draws)


def test_a_second_analysis_draws_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same JSON; the run's files as they were; a damaged or foreign file, and other code, are as none."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    first, draws = counted(path, monkeypatch)
    assert draws > 1000
    kept = path / remembered.FILE
    whole = kept.read_bytes()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file != kept} == before
    second, again = counted(path, monkeypatch)
    assert second == first
    assert again <= 1, "drawn again"
    for damaged in (whole[: len(whole) // 2], whole.replace(b"permutation", b"permutatiom", 1), b"{}"):
        kept.write_bytes(damaged)
        assert counted(path, monkeypatch) == (first, draws)
        assert kept.read_bytes() == whole
    monkeypatch.setattr(remembered, "_code", lambda: "other")
    assert counted(path, monkeypatch) == (first, draws)


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
