"""The register of experiments: the status of a spec from before its first run to the day its runs are not trusted."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess
from scripts import ROOT, load_script
from specs import ALIGNED, replay_spec

import probe.experiments.sweep
from probe.cli import cli
from probe.cli._frame import run
from probe.records.timings import start_in_words, starts_of
from replay_pools.base.files import write_json
from replay_pools.base.software import git_commit, is_edited, versions


@pytest.fixture(scope="module")
def text(quick: list[str]) -> str:
    """The spec, of the small model."""
    settings = {"steps": 2, "source.replay_dirs": quick[1].split(","), "intervention.extraction.pairs": quick[3]}
    aligned = {**ALIGNED, "above": 0.0}
    return replay_spec(
        "register",
        settings | {"intervention.extraction.k": 2},
        seeds=[0, 1],
        conditions={"plain": {}, "capped": {"objective.advantage_clip": 2.0}},
        criteria=[aligned],
        decisions=[
            {"name": "ALIGNED", "requires": {"aligned": "PASS"}, "then": "Go on."},
            {"name": "NOT", "then": "Go on."},
        ],
    )


@pytest.fixture(scope="module")
def swept(text: str, out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which the spec was swept."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "cache").symlink_to(out / "cache")
    (folder / "register.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe.experiments.sweep, "executor", lambda *_: InProcess())
        assert run(cli, ["spec", "sweep", str(folder / "register.toml"), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def specs(text: str, tmp_path: Path) -> Path:
    """A folder of specs in a checkout with two commits, tagged `old` and `new`."""
    folder = tmp_path / "spec"
    folder.mkdir()
    (folder / "register.toml").write_text(text)
    _git(folder, "init", "-q")
    for name in ("old", "new"):
        (folder / name).touch()
        _git(folder, "add", name)
        _git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", name)
        _git(folder, "tag", name)
    return folder


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _entry(specs: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run(cli, ["spec", "list", str(specs), "--out", str(out), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    return entry


def test_a_spec_from_plan_to_decision(
    text: str, specs: Path, swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the real commands: planned, completed with its decision; a run that is not done, or failed; an edited spec."""
    file, out = specs / "register.toml", tmp_path / "out"
    entry = _entry(specs, out, capsys)
    assert (entry["status"], entry["done"], entry["runs"], entry["date"]) == ("planned", 0, 2, None)
    shutil.copytree(swept, out, symlinks=True)
    entry = _entry(specs, out, capsys)
    assert (entry["status"], entry["done"], entry["decision"]) == ("completed", 2, None)
    second = out / "runs" / "register-seed1"
    assert entry["date"] == starts_of(second)[-1]["date"]

    assert run(cli, ["analyze", str(file), "--write", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    decision = next(line for line in said.splitlines() if line.startswith("DECISION: "))
    written = (specs / "register.md").read_text()
    assert "Criteria (mechanism rows" in written
    entry = _entry(specs, out, capsys)
    assert decision == f"DECISION: {entry['decision']}. {entry['follow_up']}"
    assert run(cli, ["spec", "list", str(specs), "--full", "--out", str(out)]) == 0
    assert "  then: Go on.\n" in capsys.readouterr().out

    (second / "manifest.json").unlink()
    (specs / "register.md").unlink()
    assert _entry(specs, out, capsys)["status"] == "running"
    state = out / "sweeps" / "register" / "state.json"
    table = json.loads(state.read_text())
    write_json(state, table | {"rows": [row | {"status": "failed"} for row in table["rows"]]})
    assert _entry(specs, out, capsys)["status"] == "failed"
    write_json(state, table | {"stopped": "at the ceiling"})
    assert _entry(specs, out, capsys)["status"] == "completed", "its ceiling ended it"

    (specs / "register.md").write_text("# register\n\n## Results\n\n### NOT (spec 0123456789ab, 2 of 2 runs)\n")
    file.write_text(text.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    entry = _entry(specs, out, capsys)
    assert (entry["status"], entry["decision"], entry["earlier"]) == ("completed", None, "NOT")
    assert (entry["done"], entry["runs"]) == (2, 2), "the runs of the earlier version were made"


def test_runs_that_a_fixed_bug_concerns_are_named(specs: Path, swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with the settings, by code without the commit; where nobody knows the code, the answer is unknown."""
    tool = load_script(ROOT / "spec" / "tools" / "made_before.py")
    old, new = (_git(specs, "rev-parse", name) for name in ("old", "new"))
    monkeypatch.setattr(tool, "__file__", str(specs / "tool.py"))
    run_dir, settings = swept / "runs" / "register-seed0", {"intervention.arms": "vanilla"}
    for commit, expected in ((old, "yes"), (new, None), (None, "unknown")):
        _started_at(run_dir, commit)
        assert tool.made_before(run_dir, new, settings) == expected
    _started_at(run_dir, old)
    assert tool.made_before(run_dir, new, {"intervention.arms": "random"}) is None


def _started_at(directory: Path, commit: str | None) -> None:
    """Rewrite the run as code at another commit would have left it."""
    path = directory / "timings.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["commit"] = commit
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_says_when_and_by_what_it_was_made(swept: Path) -> None:
    """Every start has its line, also in the table of the page."""
    (start,) = starts_of(swept / "runs" / "register-seed1")
    assert tuple(start[name] for name in ("commit", "edited", "versions")) == (git_commit(), is_edited(), versions())
    assert start["date"].startswith("20")
    assert run(cli, ["report", "register-seed1", "--out", str(swept)]) == 0
    assert start_in_words(start) in (swept / "reports" / "register-seed1.html").read_text()
