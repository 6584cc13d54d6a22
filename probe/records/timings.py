"""The times and software of a run, in `timings.jsonl`: one line for every start and every step.

    {"start": {"load": {"seconds": 1.2}, "svd": {"seconds": 9.1}, ...},
     "date": "2026-11-22T15:40:12Z", "commit": "85c9446...", "edited": false, "versions": {"torch": "2.13.0", ...}}
    {"step": 0, "seconds": 0.8, "peak_bytes": 2254857830}

A start writes its phases, the time in UTC, the commit of the code (null outside a checkout) and whether the code was
edited. A resumed run has several starts. Runs of the same configuration differ in all of this, so no hash covers this
file.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probe.records.run import CONFIG_FILE, run_names
from probe.settings.verbs import StepConfig, read_config
from replay_pools.base.errors import InputError
from replay_pools.base.files import append_jsonl, decode_jsonl, read_json, read_plain
from replay_pools.base.software import git, git_commit, versions
from replay_pools.base.tables import flat
from replay_pools.base.terminal import report

TIMINGS_FILE = "timings.jsonl"
GIB = 2**30
FOLDERS = ("probe", "extraction", "replay_pools")  # the code of this package
DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# The settings that affect the time of a step most; None in a run of the other verb.
STEP_SIZE = (
    *("verb", "model.name", "model.dtype", "rollouts.prompts_per_step", "rollouts.group"),
    *("rollouts.iterations", "rollouts.sampler.max_new_tokens", "source.replay_dirs", "source.per_pool"),
)


def is_edited() -> bool | None:
    """Return True if the code differs from its commit; None outside a checkout."""
    if git_commit() is None:
        return None
    root = Path(__file__).resolve().parents[2]
    return git("status", "--porcelain", "--", *(str(root / name) for name in FOLDERS)) != ""


class Timings:
    """Stopwatch of one start, and the writer of `timings.jsonl`."""

    def __init__(self) -> None:
        self._phases: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase, which is reported as work of one unit."""
        start = time.monotonic()
        report(name, 0, 1)
        try:
            yield
        finally:
            report(name, 1, 1)
        self._phases[name] = {"seconds": round(time.monotonic() - start, 4)}

    def write_start(self, directory: Path) -> None:
        """Append the line of this start: the phases so far, the date, and the software."""
        line = {"start": self._phases, "date": time.strftime(DATE_FORMAT, time.gmtime())}
        line |= {"commit": git_commit(), "edited": is_edited(), "versions": versions()}
        append_jsonl(directory / TIMINGS_FILE, line)

    def write_step(self, directory: Path, step: int, seconds: float) -> None:
        """Append the line of one step."""
        line = {"step": step, "seconds": round(seconds, 4), "peak_bytes": peak_memory()}
        append_jsonl(directory / TIMINGS_FILE, line)


def peak_memory() -> int:
    """Return the most bytes that this process has held: on its GPU where it used one, else in main memory."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and (held := torch.cuda.max_memory_allocated()):
        return held
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def step_size(config: StepConfig) -> dict[str, Any]:
    """Return the settings that affect the time of a step most."""
    table = flat(asdict(config))
    return {key: table.get(key) for key in STEP_SIZE}


def runs_alike(config: StepConfig, out_dir: Path) -> list[Path]:
    """Return the runs in `out_dir`/runs with the step size of these settings."""
    size, alike = step_size(config), []
    for name in run_names(out_dir / "runs"):
        path = out_dir / "runs" / name / CONFIG_FILE
        with suppress(InputError, KeyError):  # a damaged run must not stop the plan
            if step_size(read_config(read_json(path)["settings"], path)) == size:
                alike.append(path.parent)
    return alike


def mean_times(directories: Iterable[Path]) -> dict[str, Any] | None:
    """Return {runs, start, step, peak} of the runs in `directories`; None where none of them has timed a step.

    `start` and `step` are mean seconds, the latter with sampling and evaluations; `peak` is the most bytes of any step.
    """
    read = [*map(_read, directories)]
    starts, steps = [row for rows, _ in read for row in rows], [row for _, rows in read for row in rows]
    if not steps:
        return None
    seconds = [phase["seconds"] for row in starts for phase in row["start"].values()]
    return {
        "runs": sum(bool(rows) for _, rows in read),
        "start": sum(seconds) / max(len(starts), 1),
        "step": sum(row["seconds"] for row in steps) / len(steps),
        "peak": _peak(steps),
    }


def describe_timings(directory: Path) -> str:
    """The last start, all steps and the peak memory of a run, in one line; "" for a run without a recorded start."""
    starts, steps = _read(directory)
    if not starts:
        return ""
    phases = ", ".join(f"{name} {phase['seconds']:.2f} s" for name, phase in starts[-1]["start"].items())
    peak = _peak(steps)
    memory = "" if peak is None else f"; peak memory {peak / GIB:.2f} GiB"
    return f"start: {phases}; {len(steps)} steps: {sum(row['seconds'] for row in steps):.2f} s{memory}"


def starts_of(directory: Path) -> list[dict[str, Any]]:
    """Return the line of every start of a run, oldest first; empty without a `timings.jsonl` with dates."""
    return [row for row in _read(directory)[0] if "date" in row]


def start_in_words(start: Mapping[str, Any]) -> str:
    """Format date, commit and packages of a start in one line, for a table."""
    commit = (
        "no checkout" if start["commit"] is None else f"commit {start['commit']}{' (edited)' * bool(start['edited'])}"
    )
    return ", ".join([start["date"], commit, *(f"{name} {number}" for name, number in start["versions"].items())])


def _peak(steps: Iterable[Mapping[str, Any]]) -> int | None:
    """The most bytes of any step; None where the run did not record them."""
    return max((row["peak_bytes"] for row in steps if "peak_bytes" in row), default=None)


def _read(directory: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lines of the starts and of the steps of a run."""
    path = directory / TIMINGS_FILE
    rows = decode_jsonl(read_plain(path), path) if path.is_file() else []
    return [row for row in rows if "start" in row], [row for row in rows if "step" in row]
