"""`probe report` on a run and on a spec: what it writes, what it prints, what it refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from specs import ALIGNED, replay_spec

from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.jobs import COMMAND, command_of, run_jobs, write_settings
from probe.experiments.load import load_spec

CRITERION = {**ALIGNED, "why": "a cosine of 0.3 there"}
DECISIONS = [
    {"name": "GO", "requires": {"aligned": "PASS"}},
    {"name": "MORE", "then": "Generate pools with more problems."},
]


def words_of(html: str) -> str:
    """A page without the elements around terms and the words of commands."""
    return re.sub("</?(abbr|span)[^>]*>", "", Path(html).read_text())


@pytest.fixture
def measured(replay: Callable[..., Path], quick: list[str]) -> Path:
    """A run with inner products and the shares of its first step's tokens."""
    return replay("reported", "--arm", "vanilla,projected", "--steps", "4", "--set", "token_attribution=1", *quick)


def test_a_run(measured: Path, out: Path, probe) -> None:
    """One page with the module map, the pushing strings and the rollouts; every path that is printed exists."""
    found = json.loads(probe("report", measured, "--json")[0])
    assert found["html"] == str(out / "reports" / "reported.html")
    assert all(Path(path).is_file() for path in [found["html"], *found["figures"], *found["tables"]])
    assert any(Path(path).name.startswith("modules-") for path in found["figures"])
    text = words_of(found["html"])
    for words in (
        "Where in the network?",
        "Lines that push toward the hack",
        "def run_tests():",
        "probe replay --config",
    ):
        assert words in text, words
    data = json.loads(text.split('id="rollout-data">')[1].partition("</script>")[0])
    coloured = ["shares" in part for row in data["rows"] for part in (row["prompt"], *row["turns"])]
    assert sum(coloured) == 2 * 8, "prompt and completion of the rollouts of one step"
    assert len(data["rows"]) == 4 * 8


def test_a_spec(tmp_path: Path, out: Path, quick: list[str], probe, refused) -> None:
    """Decision, criteria, and both conditions of its one run."""
    path = tmp_path / "reported.toml"
    settings = {"steps": 2, "source.replay_dirs": quick[1].split(","), "intervention.extraction.pairs": quick[3]}
    spec = replay_spec(
        "reported",
        {**settings, "intervention.extraction.k": 2},
        arms=["vanilla", "random"],
        question="Does the report say what the spec decides?",
        conditions={"default": {}, "capped": {"objective.advantage_clip": 0.5}},
        criteria=[CRITERION],
        decisions=DECISIONS,
    )
    path.write_text(spec)
    place = tmp_path / "out"
    place.mkdir()
    (place / "cache").symlink_to(out / "cache")
    assert "probe spec sweep" in refused("report", path, root=place), "without runs it says what to do"
    jobs = run_jobs(load_spec(path), place)
    write_settings(jobs)
    for job in jobs:
        assert run(cli, command_of(job, COMMAND, ())) == 0
    found = json.loads(probe("report", path, "--json", root=place)[0])
    text = words_of(found["html"])
    for words in (
        "Does the report say what the spec decides?",
        "Generate pools with more problems.",
        "The criteria were written before the data",
        "as it is now",
        "a cosine of 0.3 there",
        "reported-seed0 / capped",
    ):
        assert words in text, words
    assert list(found["verdicts"]) == ["reported-seed0", "reported-seed0 / capped"]
