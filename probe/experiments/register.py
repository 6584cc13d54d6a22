"""The register of experiments: every spec below a folder, with status, decision and date.

spec/**/NAME.toml    the spec                       ->  planned, running, completed, failed
spec/**/NAME.md      its written decisions          (only the headings are used)
out/                 its runs
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from probe.experiments.jobs import STATE_FILE, run_jobs, sweep_folder
from probe.experiments.load import load_spec
from probe.experiments.spec import Spec
from probe.records.timings import starts_of
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json

HEAD = b"[experiment]"  # every spec has this table
HEADING = re.compile(r"^### (.+) \(spec ([0-9a-f]+), (\d+) of (\d+) runs\)$", re.MULTILINE)


class Written(NamedTuple):
    """A decision in NAME.md, on one version of the spec and `done` of its runs."""

    decision: str
    sha256: str  # its first digits
    done: int
    runs: int


def register(folder: Path, out_dir: Path) -> list[dict[str, Any]]:
    """Return every experiment below a folder, sorted by name.

        name, question
        status          planned, running, completed or failed
        done, runs      complete runs, on disk or as written; may be of an earlier version
        decision        on those runs; None if none is written
        earlier         the decision on an earlier version of the spec, if this version has none
        follow_up       the spec's consequence of the decision
        date            UTC: the last start of a run; None if no run records one

    Args:
        folder: folder with NAME.toml and NAME.md, at any depth.
        out_dir: root folder of the runs.

    Raises:
        InputError: the folder is missing or has no spec, or a spec cannot be read.
    """
    files = spec_files(folder)
    if not files:
        found = "none" if folder.is_dir() else "no such folder"
        raise InputError(folder, expected="specs (NAME.toml)", found=found, fix="give the folder that holds them")
    return [_entry(load_spec(path), out_dir) for path in files]


def spec_files(folder: Path) -> list[Path]:
    """Return the specs below a folder, sorted by name, without other TOML files such as the remedies of a screen."""
    return sorted((path for path in folder.rglob("*.toml") if HEAD in path.read_bytes()), key=lambda path: path.stem)


def _entry(spec: Spec, out_dir: Path) -> dict[str, Any]:
    runs, path = run_jobs(spec, out_dir), sweep_folder(spec, out_dir) / STATE_FILE
    state = read_json(path) if path.is_file() else {}
    state = state if state.get("spec") == spec.mark else {}  # of this version of the spec
    made = [run for run in runs if run.spec_status == "frozen"]
    complete = {run.name for run in made if run.complete}
    written = written_decisions(spec.path.with_suffix(".md"))
    *_, earlier = (None, *written)
    current = next((result for result in written if spec.sha256.startswith(result.sha256)), None)
    done, num_runs, decision = len(complete), len(runs), None
    if current is not None:
        done, decision, earlier = max(done, current.done), current.decision, None
    elif earlier is not None and not made:  # the spec was edited after its runs
        done, num_runs = earlier.done, earlier.runs
    has_failed = any(row["status"] == "failed" and row["name"] not in complete for row in state.get("rows", []))
    if done == num_runs or (state.get("stopped") and not has_failed):  # at its ceiling: no more runs follow
        status = "completed"
    else:
        status = "failed" if has_failed else "running" if done or made else "planned"
    return {
        "name": spec.name,
        "question": spec.experiment.question,
        "status": status,
        "done": done,
        "runs": num_runs,
        "decision": decision,
        "earlier": None if earlier is None else earlier.decision,
        "follow_up": next((entry.then for entry in spec.decisions if entry.name == decision), None),
        "date": max((start["date"] for run in made for start in starts_of(run.directory)), default=None),
    }


def written_decisions(log: Path) -> list[Written]:
    """Return the decisions in the Results of NAME.md, in order; empty if the file is missing."""
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return [Written(decision, sha, int(done), int(runs)) for decision, sha, done, runs in HEADING.findall(text)]
