"""The register of experiments: the status of a spec from before its first run to the day its runs are not trusted."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, load_script

from probe.experiments.spec import Spec
from probe.records.timings import is_edited, start_in_words, starts_of
from replay_pools.base.files import write_json
from replay_pools.base.software import git_commit, versions


@pytest.fixture
def specs(write_judged: Callable[..., Spec], tmp_path: Path) -> Path:
    """A folder of specs in a checkout with two commits, tagged `old` and `new`."""
    folder = tmp_path / "spec"
    folder.mkdir()
    write_judged(folder)
    _git(folder, "init", "-q")
    for name in ("old", "new"):
        (folder / name).touch()
        _git(folder, "add", name)
        _git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", name)
        _git(folder, "tag", name)
    return folder


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def entry_of(specs: Path, probe) -> Callable[[Path], dict[str, Any]]:
    """entry_of(out) -> the entry of the one spec."""

    def entry(out: Path) -> dict[str, Any]:
        (found,) = json.loads(probe("spec", "list", specs, "--json", root=out)[0])
        return found

    return entry


def test_a_spec_from_plan_to_decision(specs: Path, swept_once: Path, tmp_path: Path, entry_of, probe) -> None:
    """By the real commands: planned, completed with its decision; a run that is not done, or failed; an edited spec."""
    file, page, out = specs / "judged.toml", specs / "judged.md", tmp_path / "out"
    entry = entry_of(out)
    assert (entry["status"], entry["done"], entry["runs"], entry["date"]) == ("planned", 0, 2, None)
    shutil.copytree(swept_once, out, symlinks=True)
    entry = entry_of(out)
    assert (entry["status"], entry["done"], entry["decision"]) == ("completed", 2, None)
    second = out / "runs" / "judged-capped-seed0"
    assert entry["date"] == starts_of(second)[-1]["date"]

    said, _ = probe("analyze", file, "--write", root=out)
    decision = next(line.strip() for line in said.splitlines() if "DECISION: " in line)
    entry = entry_of(out)
    assert decision == f"DECISION: {entry['decision']}. {entry['follow_up']}"
    assert "  then: again\n" in probe("spec", "list", specs, "--full", root=out)[0]

    (second / "manifest.json").unlink()
    page.unlink()
    assert entry_of(out)["status"] == "running"
    state = out / "sweeps" / "judged" / "state.json"
    table = json.loads(state.read_text())
    write_json(state, table | {"rows": [row | {"status": "failed"} for row in table["rows"]]})
    assert entry_of(out)["status"] == "failed"
    write_json(state, table | {"stopped": "at the ceiling"})
    assert entry_of(out)["status"] == "completed", "its ceiling ended it"

    page.write_text("# judged\n\n## Results\n\n### NOT (spec 0123456789ab, 2 of 2 runs)\n")
    file.write_text(file.read_text().replace("seeds = [0]", "seeds = [0, 1]"))
    entry = entry_of(out)
    assert (entry["status"], entry["decision"], entry["earlier"]) == ("completed", None, "NOT")
    assert (entry["done"], entry["runs"]) == (2, 2), "the runs of the earlier version were made"


def test_runs_that_a_fixed_bug_concerns_are_named(specs: Path, swept: tuple[Spec, Path], monkeypatch) -> None:
    """Runs with the settings, by code without the commit; where nobody knows the code, the answer is unknown."""
    tool = load_script(ROOT / "spec" / "tools" / "made_before.py")
    old, new = (_git(specs, "rev-parse", name) for name in ("old", "new"))
    monkeypatch.setattr(tool, "__file__", str(specs / "tool.py"))
    run_dir, settings = swept[1] / "runs" / "judged-plain-seed0", {"intervention.arms": "vanilla"}
    for commit, expected in ((old, "yes"), (new, None), (None, "unknown")):
        _started_at(run_dir, commit)
        assert tool.made_before(run_dir, new, settings) == expected
    _started_at(run_dir, old)
    assert tool.made_before(run_dir, new, {"intervention.arms": "placebo"}) is None


def _started_at(directory: Path, commit: str | None) -> None:
    """Rewrite the run as code at another commit would have left it."""
    path = directory / "timings.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["commit"] = commit
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_says_when_and_by_what_it_was_made(swept: tuple[Spec, Path], probe) -> None:
    """Every start has its line, also in the table of the page."""
    _, out = swept
    (start,) = starts_of(out / "runs" / "judged-capped-seed0")
    assert tuple(start[name] for name in ("commit", "edited", "versions")) == (git_commit(), is_edited(), versions())
    assert start["date"].startswith("20")
    probe("report", "judged-capped-seed0", root=out)
    assert start_in_words(start) in (out / "reports" / "judged-capped-seed0.html").read_text()
