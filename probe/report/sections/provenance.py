"""Provenance: what was read, under which hashes and versions, and the commands that repeat it."""

import importlib.metadata
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, ROLLOUTS_DIR, Run
from probe.report.markup import node
from probe.report.sections.parts import Section, prose, table_html
from probe.report.views import Report
from replay_pools.files import read_json, sha256

LEAD = (
    "Every number above comes from the files named here. A run whose files were changed since is refused, not reported."
)
DISTRIBUTION = "gradient-probe"


def provenance(report: Report) -> Section:
    """Facts and commands, run by run."""
    tables = {run.path.name: [facts(run, report)] for run in report.runs}
    body: list[Element] = [prose("To repeat this report:"), _commands([report.command])]
    for run in report.runs:
        own: list[Element] = [table_html(table) for table in tables[run.path.name]]
        own += [
            prose("To repeat the run, and to compare (equal manifests are equal records):"),
            _commands(_repeat(run)),
        ]
        settings = node("summary", "All settings (config.json)"), node("pre", _indented(run.config), class_="settings")
        own.append(node("details", *settings, class_="fold"))
        many = len(report.runs) > 1
        body += [node("details", node("summary", run.path.name), *own, class_="fold wide")] if many else own
    return Section(id="provenance", title="Provenance", lead=LEAD, body=body, tables=tables)


def facts(run: Run, report: Report) -> TextTable:
    """Names, hashes, versions and what the digits of a run are worth."""
    config, manifest = run.config, run.manifest
    settings: Mapping[str, Any] = config.get(str(config.get("verb")), {})
    rows = [
        ("verb", str(config.get("verb"))),
        ("model", f"{config.get('model')} ({_dtype(settings)})"),
        ("base weights", f"sha256 {config.get('base_weights_sha256')}"),
        ("seed", str(settings.get("seed"))),
        (
            "adapted modules",
            ", ".join(f"{count} ({basis})" for basis, count in manifest.get("num_modules", {}).items()),
        ),
        ("manifest", f"sha256 {sha256((run.path / MANIFEST_FILE).read_bytes())}, {len(manifest['files'])} files"),
        ("additivity", _additivity(manifest.get("additivity"))),
        ("noise of the dtype", _noise(manifest.get("dtype_noise"))),
        ("specification", _spec(settings, report)),
        *_pool_rows(run),
        ("report made by", f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"),
    ]
    return TextTable(name="provenance", title=f"Run {run.path.name}", header=("what", "found"), rows=rows, left=2)


def _pool_rows(run: Run) -> list[tuple[str, str]]:
    """What each pool is, and the software that made it, where it is still the one that was read."""
    written = run.path / ROLLOUTS_DIR
    own = [{"name": ROLLOUTS_DIR, "path": str(written)}] if written.is_dir() else []
    rows = []
    for pool in [*run.config.get("pools", ()), *own]:
        path = Path(pool["path"]) / MANIFEST_FILE
        manifest = read_json(path) if path.is_file() else {}
        policy, grader = manifest.get("policy") or {}, manifest.get("grader") or {}
        versions = ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items())
        words = [
            pool["path"] if manifest else f"{pool['path']} (not there any more)",
            f"manifest sha256 {pool['manifest_sha256']}" if "manifest_sha256" in pool else "",
            f"policy {policy.get('base_model')}" + (f" + {policy['adapter']}" if policy.get("adapter") else ""),
            f"grader {grader.get('version')}, isolation {grader.get('isolation')}" if grader else "",
            versions,
            f"commit {manifest['git_commit']}" if manifest.get("git_commit") else "",
        ]
        rows.append((f"pool {pool['name']}", "; ".join(word for word in words if word)))
    return rows


def _repeat(run: Run) -> list[str]:
    """The commands that repeat a run beside itself."""
    root, name = run.path.parent.parent, f"{run.path.name}-again"
    config, out = shlex.quote(str(run.path / CONFIG_FILE)), shlex.quote(str(root))
    again = shlex.quote(str(root / "runs" / name / MANIFEST_FILE))
    return [
        f"probe {run.config.get('verb')} --config {config} --name {name} --out {out}",
        f"cmp {shlex.quote(str(run.path / MANIFEST_FILE))} {again}",
    ]


def _commands(lines: list[str]) -> Element:
    return node("pre", "\n".join(lines), class_="command")


def _dtype(settings: Mapping[str, Any]) -> str:
    return str((settings.get("model") or {}).get("dtype", "dtype not recorded"))


def _additivity(found: Mapping[str, Any] | None) -> str:
    """Whether the samples' gradients added up."""
    if not found or found.get("largest") is None:
        return "not checked"
    steps = found.get("exceeded_steps") or []
    word = f"EXCEEDED in steps {', '.join(map(str, steps))}" if steps else "holds in every step"
    return f"{word}: largest relative error {found['largest']:.1e}, tolerance {found['tolerance']:.0e}"


def _noise(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "not measured (--dtype-noise N)"
    rows = [f"{b}: median {n['median']:.1e}, max {n['max']:.1e}" for b, n in found.items() if isinstance(n, dict)]
    return f"{found['dtype']} against {found['reference']}, {found['rollouts']} rollouts: {'; '.join(rows)}"


def _spec(settings: Mapping[str, Any], report: Report) -> str:
    """The spec that the run was made under, and whether it is the one that is read now."""
    stored = settings.get("preregistered")
    if stored is None:
        return "none: exploratory"
    if report.spec is None:
        return str(stored)
    same = str(stored).partition("@")[2] == report.spec.sha256
    return f"{stored} ({'as it is now' if same else 'EDITED since'})"


def _indented(config: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(config, option=orjson.OPT_INDENT_2).decode()
