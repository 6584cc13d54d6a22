"""The register of experiments: every spec of a folder with status, decision and date, and runs not to be trusted.

    spec/*.toml    what was asked               ->  planned, running, completed, failed, invalidated
    spec/*.md      what was decided, in writing
    out/           what is there of its runs
    spec/invalidations/*.toml                   ->  which runs a mended fault concerns

What an invalidation is: `probe.experiments.judge.invalidations`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe.experiments.judge.invalidations import Concerned, Invalidation, concerned_runs, read_invalidations
from probe.experiments.judge.written import SHA_DIGITS, written_criteria, written_results
from probe.experiments.spec.jobs import SweepRun, read_state, runs_of
from probe.experiments.spec.prereg import load_spec
from probe.experiments.spec.types import Spec
from probe.records.timings import starts_of
from replay_pools.errors import InputError
from replay_pools.storage.tables import flat

Status = Literal["planned", "running", "completed", "failed", "invalidated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A criterion that another study asked first: what it reported, and what was found here."""

    criterion: str
    reported: str
    here: str | None  # verdict and numbers as they were written of the spec as it is; None before


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment."""

    name: str
    question: str
    hypotheses: tuple[str, ...]
    changes: dict[str, dict[str, Any]]  # {condition: its settings beside those of the spec}
    command: str
    status: Status
    done: int  # complete runs under the spec as it is, of `runs`: in `out`, or by what was written of them
    runs: int
    decision: str | None  # on those runs; None before it was written
    earlier: str | None  # the decision on another version of the spec, where there is none on this one
    follow_up: str | None  # what the spec says should follow from the decision
    date: str | None  # UTC: the last start of its runs; None where none says
    compared: tuple[Compared, ...]
    concerned: tuple[Concerned, ...]


def register(folder: Path, out_dir: Path) -> list[Entry]:
    """Every experiment of a folder of specs, by name.

    Args:
        folder: with NAME.toml and NAME.md.
        out_dir: where the runs are.

    Raises:
        InputError: no such folder, no spec there, or one that cannot be read.
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        found = "none" if folder.is_dir() else "no such folder"
        raise InputError(folder, expected="specs (NAME.toml)", found=found, fix="give the folder that holds them")
    invalidations = read_invalidations(folder)
    return [_entry(load_spec(path), out_dir, invalidations) for path in files]


def _entry(spec: Spec, out_dir: Path, invalidations: Mapping[str, Invalidation]) -> Entry:
    runs = runs_of(spec, out_dir)
    results = written_results(spec.path.with_suffix(".md"))
    current = next((result for result in results if result.sha256 == spec.sha256[:SHA_DIGITS]), None)
    complete = sum(run.complete and run.spec_status == "frozen" for run in runs)
    concerned = concerned_runs(runs, invalidations, spec.path.parent)
    follow_up = None
    if current is not None:
        follow_up = next((entry.then for entry in spec.decisions if entry.name == current.decision), None)
    done = max(complete, 0 if current is None else current.done)
    return Entry(
        name=spec.name,
        question=spec.experiment.question,
        hypotheses=spec.experiment.hypotheses,
        changes={condition.name: flat(condition.settings) for condition in spec.conditions},
        command=f"probe sweep {spec.path}",
        status=_status(spec, runs, done, concerned, out_dir),
        done=done,
        runs=len(runs),
        decision=None if current is None else current.decision,
        earlier=results[-1].decision if current is None and results else None,
        follow_up=follow_up,
        date=_last_start(runs),
        compared=_compared(spec),
        concerned=concerned,
    )


def _compared(spec: Spec) -> tuple[Compared, ...]:
    here = written_criteria(spec.path.with_suffix(".md"), spec.sha256)
    rows = []
    for criterion in spec.criteria:
        if criterion.reported:
            row = Compared(criterion=criterion.name, reported=criterion.reported, here=here.get(criterion.name))
            rows.append(row)
    return tuple(rows)


def _status(spec: Spec, runs: list[SweepRun], done: int, concerned: Sequence[Concerned], out_dir: Path) -> Status:
    """One word: what is wrong comes before how far it is."""
    if any(entry.runs for entry in concerned):
        return "invalidated"
    if done == len(runs):
        return "completed"
    state, complete = read_state(spec, out_dir), {run.job.name for run in runs if run.complete}
    if any(row["status"] == "failed" and row["name"] not in complete for row in state.get("rows", [])):
        return "failed"
    # By its stop rule or at its ceiling: the other runs are not to be made.
    if state.get("stopped"):
        return "completed"
    begun = done or any(run.spec_status == "frozen" for run in runs)
    return "running" if begun else "planned"


def _last_start(runs: list[SweepRun]) -> str | None:
    dates = []
    for run in runs:
        if run.spec_status == "frozen":
            dates += [start.date for start in starts_of(run.job.directory)]
    return max(dates, default=None)
