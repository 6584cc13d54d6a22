"""The register of experiments: every spec of a folder and its subfolders with status, decision and date.

spec/**/NAME.toml    what was asked               ->  planned, running, completed, failed
spec/**/NAME.md      what was decided, in writing
out/                 the runs that exist
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probe.experiments.jobs import read_state, runs_of
from probe.experiments.load import load_spec
from probe.experiments.spec import Spec
from probe.experiments.written import SHA_DIGITS, written_results
from probe.records.timings import starts_of
from replay_pools.base.errors import InputError

HEAD = b"[experiment]"  # a table of every spec
Status = Literal["planned", "running", "completed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment."""

    name: str
    question: str
    status: Status
    done: int  # complete runs of `runs`: in `out`, or by what was written of them, of an earlier version too
    runs: int
    decision: str | None  # on those runs; None before it was written
    earlier: str | None  # the decision on another version of the spec, where there is none on this one
    follow_up: str | None  # what the spec says should follow from the decision
    date: str | None  # UTC: the last start of its runs; None where none says
    compared: dict[str, tuple[str, str | None]]  # {criterion: what another study reported, and what was found here}


def register(folder: Path, out_dir: Path) -> list[Entry]:
    """Every experiment of a folder of specs, by name.

    Args:
        folder: with NAME.toml and NAME.md, at any depth.
        out_dir: where the runs are.

    Raises:
        InputError: no such folder, no spec there, or one that cannot be read.
    """
    files = spec_files(folder)
    if not files:
        found = "none" if folder.is_dir() else "no such folder"
        raise InputError(folder, expected="specs (NAME.toml)", found=found, fix="give the folder that holds them")
    return [_entry(load_spec(path), out_dir) for path in files]


def spec_files(folder: Path) -> list[Path]:
    """Return the specs below a folder, by name; other TOML files, such as the remedies of a screen, are left out."""
    return sorted((path for path in folder.rglob("*.toml") if HEAD in path.read_bytes()), key=lambda path: path.stem)


def _entry(spec: Spec, out_dir: Path) -> Entry:
    runs, log = runs_of(spec, out_dir), spec.path.with_suffix(".md")
    results = written_results(log)
    current = next((result for result in results if result.sha256 == spec.sha256[:SHA_DIGITS]), None)
    decision = None if current is None else current.decision
    frozen = [run for run in runs if run.spec_status == "frozen"]
    done = max(sum(run.complete for run in frozen), 0 if current is None else current.done)
    # Runs of an earlier version were made: their results stand, and only the file has changed since.
    earlier = results[-1] if current is None and results and not frozen else None
    num_runs = len(runs) if earlier is None else earlier.runs
    done = done if earlier is None else earlier.done
    state = read_state(spec, out_dir)
    complete = {run.name for run in runs if run.complete}
    failed = any(row["status"] == "failed" and row["name"] not in complete for row in state.get("rows", []))
    status: Status = "running" if done or frozen else "planned"
    # A sweep that stopped at its ceiling is not to make the other runs.
    if failed and done < num_runs:
        status = "failed"
    elif done == num_runs or state.get("stopped"):
        status = "completed"
    here = {} if current is None else current.criteria
    return Entry(
        name=spec.name,
        question=spec.experiment.question,
        status=status,
        done=done,
        runs=num_runs,
        decision=decision,
        earlier=results[-1].decision if current is None and results else None,
        follow_up=next((entry.then for entry in spec.decisions if entry.name == decision), None),
        date=max((start.date for run in frozen for start in starts_of(run.directory)), default=None),
        compared={row.name: (row.reported, here.get(row.name)) for row in spec.criteria if row.reported},
    )
