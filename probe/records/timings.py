"""Wall-clock times of a run, in `timings.jsonl`: a line for every start, phase by phase, and one for every step.

Times differ from run to run, so no hash covers the file. A phase that wrote files into the cache was cold and computed
what it needed; one that wrote none was warm and read it.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_pools.files import append_jsonl, decode_jsonl

TIMINGS_FILE = "timings.jsonl"


class Timings:
    """The phases of one start, and the writer of `timings.jsonl`."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._phases: dict[str, dict[str, Any]] = {}

    @contextmanager
    def phase(self, name: str, *, uses_cache: bool) -> Iterator[None]:
        """Time a phase, and say how it met the cache where it uses one: `computed` (and filled it) or `cached`."""
        files, start = self._num_cached(), time.monotonic()
        yield
        cache = "computed" if self._num_cached() > files else "cached"
        self._phases[name] = {
            "seconds": round(time.monotonic() - start, 4),
            "cache": cache if uses_cache else None,
        }

    def write_start(self, directory: Path) -> None:
        """Append the phases so far."""
        append_jsonl(directory / TIMINGS_FILE, {"start": self._phases})

    def write_step(self, directory: Path, step: int, seconds: float) -> None:
        """Append one step."""
        append_jsonl(directory / TIMINGS_FILE, {"step": step, "seconds": round(seconds, 4)})

    def _num_cached(self) -> int:
        return sum(path.is_file() for path in self._cache_dir.rglob("*"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Mean seconds of several runs: of a start, and of a step with all that comes before it (sampling, evaluations)."""

    runs: int
    start: float
    step: float


def measured(directories: Iterable[Path]) -> Measured | None:
    """What runs took; None where none of them has times."""
    starts, steps, runs = [], [], 0
    for path in (directory / TIMINGS_FILE for directory in directories):
        rows = decode_jsonl(path.read_bytes(), path) if path.is_file() else []
        own = [row["seconds"] for row in rows if "step" in row]
        runs += bool(own)
        steps += own
        starts += [sum(phase["seconds"] for phase in row["start"].values()) for row in rows if "start" in row]
    if not steps:
        return None
    return Measured(runs=runs, start=sum(starts) / max(len(starts), 1), step=sum(steps) / len(steps))


def describe_timings(directory: Path) -> str:
    """The last start and all steps of a run, in one line; '' for a run without times."""
    path = directory / TIMINGS_FILE
    if not path.is_file():
        return ""
    rows = decode_jsonl(path.read_bytes(), path)
    starts = [row["start"] for row in rows if "start" in row]
    phases = ", ".join(
        f"{name} {phase['seconds']:.2f} s" + (f" ({phase['cache']})" if phase["cache"] else "")
        for name, phase in starts[-1].items()
    )
    seconds = [row["seconds"] for row in rows if "step" in row]
    return f"start: {phases}; {len(seconds)} steps: {sum(seconds):.2f} s"
