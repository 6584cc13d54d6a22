"""The register of experiments: decisions are written into NAME.md, and every spec has a status, decision and date.

spec/**/NAME.toml    the spec                       ->  planned, running, completed, failed
spec/**/NAME.md      its decisions, in Results      (only the headings are read)
out/                 its runs
"""

import re
from pathlib import Path
from typing import Any

from probe.experiments.jobs import STATE_FILE, run_jobs, sweep_folder
from probe.experiments.judge import SHA_DIGITS, SpecVerdict
from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.records.timings import starts_of
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_atomic

HEAD = b"[experiment]"  # every spec has this table
RESULTS = re.compile(r"^## Results\n(.*?)(?=^## |\Z)", re.M | re.S)
HEADING = re.compile(
    r"^### (?P<decision>.+) \(spec (?P<sha256>[0-9a-f]+), (?P<done>\d+) of (?P<runs>\d+) runs\)$", re.M
)


def register(folder: Path, out_dir: Path) -> list[dict[str, Any]]:
    """Return every experiment below a folder, at any depth, sorted by name.

        name, question
        status          planned, running, completed or failed
        done, runs      complete runs, on disk or as written; may be of an earlier version
        decision        on those runs; None if none is written
        earlier         the decision on an earlier version of the spec, if this version has none
        follow_up       the spec's consequence of the decision
        date            UTC: the last start of a run; None if no run records one

    Raises:
        InputError: the folder is missing or has no spec, or a spec cannot be read.
    """
    if not (files := spec_files(folder)):
        found = "none" if folder.is_dir() else "no such folder here"
        fix = "name their folder (probe spec list FOLDER), or write one (probe docs specs)"
        raise InputError(f"folder {folder}", expected="specs of experiments (NAME.toml)", found=found, fix=fix)
    return [_entry(load_spec(path), out_dir) for path in files]


def spec_files(folder: Path) -> list[Path]:
    """Return the specs below a folder, sorted by name, without other TOML files such as the remedies of a screen."""
    return sorted((path for path in folder.rglob("*.toml") if HEAD in path.read_bytes()), key=lambda path: path.stem)


def _entry(spec: Spec, out_dir: Path) -> dict[str, Any]:
    runs, path = run_jobs(spec, out_dir), sweep_folder(spec, out_dir) / STATE_FILE
    state = read_json(path) if path.is_file() else {}
    state = state if state.get("spec") == spec.mark else {}  # of this version of the spec
    made = [run for run in runs if run.made_under == spec.mark]
    complete = {run.name for run in made if run.complete}
    written = read_results(spec.path.with_suffix(".md"))
    current = next((result for result in written if spec.sha256.startswith(result["sha256"])), {})
    earlier = written[-1] if written and not current else {}
    done, num_runs, decision = max(len(complete), current.get("done", 0)), len(runs), current.get("decision")
    if earlier and not made:  # the spec was edited after its runs
        done, num_runs = earlier["done"], earlier["runs"]
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
        "earlier": earlier.get("decision"),
        "follow_up": next((entry.then for entry in spec.decisions if entry.name == decision), None),
        "date": max((start["date"] for run in made for start in starts_of(run.directory)), default=None),
    }


def write_results(verdict: SpecVerdict) -> Path:
    """Add or replace this version's entry in the Results of `spec/NAME.md`; return the file.

    Raises:
        InputError: the log has results of more runs of this version.
    """
    spec, log, done = verdict.spec, verdict.spec.path.with_suffix(".md"), sum(run.complete for run in verdict.runs)
    most = max((row["done"] for row in read_results(log) if spec.sha256.startswith(row["sha256"])), default=0)
    if most > done:
        expected = f"results of {done} runs or fewer of this version, which these would replace"
        fix = "pass the --out that has all runs, or delete that entry"
        raise InputError(log, expected=expected, found=f"results of {most}", fix=fix)
    text = log.read_text(encoding="utf-8") if log.is_file() else f"# {spec.name}\n\n{spec.experiment.question}\n"
    if RESULTS.search(text) is None:
        text = f"{text.rstrip()}\n\n## Results\n"
    section = next(RESULTS.finditer(text))
    mark = f"(spec {spec.sha256[:SHA_DIGITS]},"
    entries = [entry.rstrip() + "\n" for entry in re.split(r"(?=^### )", section[1], flags=re.M)[1:]]
    entries = [entry for entry in entries if mark not in entry.splitlines()[0]]
    heading = f"### {verdict.verdict.word} {mark} {done} of {len(verdict.runs)} runs)"  # HEADING reads it
    entries.append(f"{heading}\n\n```text\n{verdict}\n```\n")
    results = "## Results\n\n" + "\n".join(entries) + ("\n" if text[section.end() :] else "")
    write_atomic(log, (text[: section.start()] + results + text[section.end() :]).encode())
    return log


def read_results(log: Path) -> list[dict[str, Any]]:
    """Return {decision, sha256 (first digits), done, runs} of each entry of NAME.md, in order; none without a file."""
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return [{**row.groupdict(), "done": int(row["done"]), "runs": int(row["runs"])} for row in HEADING.finditer(text)]
