"""The times and software of a run, in `timings.jsonl`: one line for every start and every step.

    {"start": {"load": {"seconds": 1.2}, "svd": {"seconds": 9.1}, ...},
     "date": "2026-11-22T15:40:12Z", "commit": "85c9446...", "edited": false, "versions": {"torch": "2.13.0", ...}}
    {"step": 0, "seconds": 0.8}

A start writes its phases, the time in UTC, the commit of the code (null outside a checkout) and whether the code was
edited. A resumed run has several starts. Runs of the same configuration differ in all of this, so no hash covers this
file.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_pools.base.files import append_jsonl, decode_jsonl, read_plain
from replay_pools.base.software import git_commit, is_edited, versions

TIMINGS_FILE = "timings.jsonl"
DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

running_phases: list[str] = []  # in this process, the innermost last


class Timings:
    """Stopwatch of one start, and the writer of `timings.jsonl`."""

    def __init__(self) -> None:
        self._phases: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        start = time.monotonic()
        running_phases.append(name)
        try:
            yield
        finally:
            running_phases.pop()
        self._phases[name] = {"seconds": round(time.monotonic() - start, 4)}

    def write_start(self, directory: Path) -> None:
        """Append the line of this start: the phases so far, the date, and the software."""
        line = {"start": self._phases, "date": time.strftime(DATE_FORMAT, time.gmtime())}
        line |= {"commit": git_commit(), "edited": is_edited(), "versions": versions()}
        append_jsonl(directory / TIMINGS_FILE, line)

    def write_step(self, directory: Path, step: int, seconds: float) -> None:
        """Append the line of one step."""
        append_jsonl(directory / TIMINGS_FILE, {"step": step, "seconds": round(seconds, 4)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTimes:
    """Mean seconds, over several runs, of a start and of a step with its sampling and evaluations."""

    runs: int
    start: float
    step: float


def mean_times(directories: Iterable[Path]) -> MeanTimes | None:
    """Return the mean times of the runs in `directories`; None if none of them has timed a step."""
    starts: list[float] = []
    steps: list[float] = []
    num_runs = 0
    for directory in directories:
        run_starts, run_steps = _read(directory)
        num_runs += bool(run_steps)
        steps += run_steps
        for phases in run_starts:
            starts.append(sum(phase["seconds"] for phase in phases.values()))
    if not steps:
        return None
    return MeanTimes(runs=num_runs, start=sum(starts) / max(len(starts), 1), step=sum(steps) / len(steps))


def describe_timings(directory: Path) -> str:
    """Describe the last start and all steps of a run in one line; "" without a start in `timings.jsonl`."""
    starts, steps = _read(directory)
    if not starts:
        return ""
    phases = ", ".join(f"{name} {phase['seconds']:.2f} s" for name, phase in starts[-1].items())
    return f"start: {phases}; {len(steps)} steps: {sum(steps):.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a run."""

    date: str  # UTC, as DATE_FORMAT
    commit: str | None
    edited: bool | None
    versions: Mapping[str, str]

    def __str__(self) -> str:
        """Return date, commit and packages in one line, for a table."""
        checkout = "no checkout" if self.commit is None else f"commit {self.commit}{' (edited)' if self.edited else ''}"
        return f"{self.date}, {checkout}, {', '.join(f'{name} {number}' for name, number in self.versions.items())}"


def starts_of(directory: Path) -> list[Start]:
    """Return every start of a run, oldest first; empty without a `timings.jsonl` with dates."""
    starts = []
    for row in _rows(directory):
        if "date" in row:
            starts.append(Start(**{name: row[name] for name in ("date", "commit", "edited", "versions")}))
    return starts


def _read(directory: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the phases of every start and the seconds of every step; both empty without `timings.jsonl`."""
    rows = _rows(directory)
    starts = [row["start"] for row in rows if "start" in row]
    return starts, [row["seconds"] for row in rows if "step" in row]


def _rows(directory: Path) -> list[dict[str, Any]]:
    path = directory / TIMINGS_FILE
    return decode_jsonl(read_plain(path), path) if path.is_file() else []
