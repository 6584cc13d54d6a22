"""The provenance section: input files, hashes and versions, and the commands that repeat the runs and the report."""

import importlib.metadata
import shlex

import orjson

from extraction.settings import Adapted
from probe.analysis.formatting import TextTable
from probe.analysis.verdict.pools import pool_facts
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, Run
from probe.records.timings import describe_timings, start_in_words, starts_of
from probe.report.analyses import Report
from probe.report.page import Section, section
from replay_pools.base.files import file_sha256

LEAD = "Every number above comes from these files. A run with changed files is refused."
DISTRIBUTION = "gradient-probe"


def provenance(report: Report) -> Section:
    """Return the section with the facts and commands of each run."""
    runs = []
    for run in report.runs:
        config = orjson.dumps(run.config, option=orjson.OPT_INDENT_2).decode()
        root, name = run.path.parent.parent, f"{run.path.name}-again"
        stored, out = shlex.quote(str(run.path / CONFIG_FILE)), shlex.quote(str(root))
        manifests = (run.path / MANIFEST_FILE, root / "runs" / name / MANIFEST_FILE)
        compared = " ".join(shlex.quote(str(path)) for path in manifests)
        repeat = f"probe {run.settings.verb} --config {stored} --name {name} --out {out}\ncmp {compared}"
        runs.append({"name": run.path.name, "facts": facts(run, report), "repeat": repeat, "config": config})
    return section("Provenance", LEAD, "provenance.html", report=report.command, runs=runs)


def facts(run: Run, report: Report) -> TextTable:
    """Return the names, hashes and versions of a run."""
    config, manifest = run.config, run.manifest
    settings, adapter = run.settings, config.get("adapter_sha256")
    rows = [
        ("verb", settings.verb),
        ("model", f"{config.get('model')} ({settings.model.dtype})"),
        ("base weights", f"sha256 {config.get('base_weights_sha256')}"),
        *([] if adapter is None else [("start", f"adapter {settings.model.adapter}, sha256 {adapter}")]),
        ("seed", str(settings.seed)),
        (
            "adapted modules",
            ", ".join(f"{count} ({basis})" for basis, count in manifest.get("num_modules", {}).items()),
        ),
        *([("adapted weights", f"{Adapted(**adapted)}")] if (adapted := manifest.get("adapted")) else []),
        ("manifest", f"sha256 {file_sha256(run.path / MANIFEST_FILE)}, {len(manifest['files'])} files"),
        *(("warning", text) for text in manifest.get("warnings", [])),
        ("specification", _spec(settings.preregistered, report)),
        *(("started", start_in_words(start)) for start in starts_of(run.path)),
        *([("wall clock", words)] if (words := describe_timings(run.path)) else []),
        *_pool_rows(run),
        ("report made by", f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"),
    ]
    return TextTable(name="provenance", title=f"Run {run.path.name}", header=("what", "found"), rows=rows, left=2)


def _pool_rows(run: Run) -> list[tuple[str, str]]:
    """Return a row for each pool of the run: place, hash, and the software that made it if the pool still exists."""
    # A pool written by the run has no hash here, because the run's manifest lists it.
    hashes = {pool["name"]: f"manifest sha256 {pool['manifest_sha256']}" for pool in run.config.get("pools", ())}
    rows = []
    for pool in pool_facts(run):
        place = str(pool.path or f"{pool.reference} (not there any more, or changed)")
        grader, versions = pool.said("grader") or {}, pool.said("versions") or {}
        parts = [place, hashes.get(pool.name)]
        if pool.manifest:
            parts.append(f"policy {' + '.join(map(str, filter(None, pool.policy)))}")
        if grader:
            parts.append(f"grader {grader.get('version')}, isolation {grader.get('isolation')}")
        parts.append(", ".join(f"{name} {version}" for name, version in versions.items()))
        parts.append(pool.said("git_commit") and f"commit {pool.said('git_commit')}")
        rows.append((f"pool {pool.name}", "; ".join(filter(None, parts))))
    return rows


def _spec(stored: str | None, report: Report) -> str:
    """Describe the run's spec (NAME@sha256) and whether its file was edited later."""
    if stored is None:
        return "none: exploratory"
    if report.spec is None:
        return stored
    same = stored.partition("@")[2] == report.spec.sha256
    return f"{stored} ({'as it is now' if same else 'EDITED since'})"
