"""`probe screen` on planted worlds: ranks by what a replay of each dose measures, and says what it does not see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import World, make_run

from probe.analysis.analyze import Analysis
from probe.analysis.gains import Looked
from probe.analysis.screen import screen
from probe.experiments.spec_file import read_candidates
from probe.records.records import LookaheadRecord
from probe.records.run import read_run
from probe.settings.remedy import CANDIDATES
from replay_pools.base.errors import InputError

SPEC = """
[settings]
steps = 200
[[conditions]]
name = "plain"
arms = ["vanilla"]
[[conditions]]
name = "two"
arms = ["projected", "permuted-dosed"]
settings.intervention.extraction.k = 2
[[conditions]]
name = "others"
settings.intervention.extraction.pairs = "builtin:style"
[[conditions]]
name = "early"
settings.steps = 50
"""


@pytest.fixture
def screened(probe) -> Callable[..., dict[str, Any]]:
    """screened(*words) -> {remedy: row}, in the order of the ranking."""
    return lambda *words: {row["remedy"]: row for row in json.loads(probe("screen", *words, "--json")[0])["remedies"]}


def test_projections_are_ranked_by_the_forecast_of_the_replay(tmp_path: Path, screened, probe) -> None:
    directory = make_run(tmp_path / "runs" / "go", World())
    rows, analysis = screened(directory), Analysis(read_run(directory))
    assert rows.keys() == CANDIDATES.keys()
    margin, honest, norm = (analysis.get("removed", f"removed/{name}") for name in ("margin", "honest", "norm"))
    assert margin.value is not None
    row = rows["k2"]  # the world's directions are two
    assert row["hack_gain_avoided"] == pytest.approx(margin.value)
    assert row["interval"]["low"] == pytest.approx(margin.low)
    assert row["norm_removed"] == pytest.approx(norm.value)
    assert row["honest_gain_kept"] == pytest.approx(1 - honest.value)
    assert rows["overshoot-2"]["hack_gain_avoided"] == pytest.approx(2 * margin.value)
    avoided = [row["hack_gain_avoided"] for row in rows.values()]
    ranked = [value for value in avoided if value is not None]
    assert avoided == sorted(ranked, reverse=True) + [None] * (len(avoided) - len(ranked))
    assert all((row["hack_gain_avoided"] is None) == bool(row["why"]) for row in rows.values())
    assert all(rows[name]["why"] for name in ("kl-1", "penalty-70", "ablation", "early-stop"))
    text, _ = probe("screen", directory)
    assert text.index("overshoot-2") < text.index("k2") < text.index("not ranked: kl-0.1")
    assert "above 100%" in text


def test_the_conditions_of_a_spec_are_ranked(tmp_path: Path, screened) -> None:
    directory, spec = make_run(tmp_path / "runs" / "go", World()), tmp_path / "some.toml"
    spec.write_text(SPEC)
    rows = screened(directory, "--remedies", spec)
    assert list(rows)[0] == "two-projected"
    assert rows.keys() == {"two-projected", "two-permuted-dosed", "others", "early"}
    assert "arm projected, and this is permuted-dosed" in rows["two-permuted-dosed"]["why"]
    assert "of its own pairs" in rows["others"]["why"]
    assert rows["early"]["settings"]["steps"] == 16, "a quarter of 64"


@pytest.mark.parametrize("text", ["", "conditions = 1", '[[conditions]]\nname = "plain"', "[[conditions]]\nk = 1"])
def test_a_file_without_remedies_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"some\.toml"):
        read_candidates(path)


def test_what_remedies_moved_ahead_ranks_any_kind_but_a_penalty(tmp_path: Path) -> None:
    evidence = Analysis(read_run(make_run(tmp_path / "runs" / "go", World())))
    gained = {"plain": (2.0, 1.0, 0.5), "closed": (-1.0, -0.5, 0.2), "cap-2": (2.0, 1.0, 0.4), "kl-1": (1.0, 0.5, 0.5)}
    gained |= {"steering-5": (-90.0, -80.0, -1.6), "k4": (1.0, 0.25, 0.5)}
    records = {
        name: [
            LookaheadRecord(arm="vanilla", measure=measure, prompt=prompt, value=value)
            for measure, value in zip(("hacks", "held-out hacks", "honest"), values, strict=True)
            for prompt in ("a", "b")
        ]
        for name, values in gained.items()
    }
    ahead = {name: Looked(rows, 2.0 if name == "kl-1" else 1.0) for name, rows in records.items()}
    ahead["clip"] = "no such key"
    candidates = {name: CANDIDATES[name] for name in ("cap-2", "kl-1", "clip", "steering-5", "k4")}
    rows = {row.name: row for row in screen(evidence, candidates | {"closed": {"remedy.name": "no-loophole"}}, ahead)}
    assert list(rows)[:3] == ["closed", "k4", "cap-2"]
    assert [rows[name].value for name in ("closed", "k4", "cap-2")] == pytest.approx([1.5, 0.625, 0])
    assert [rows[name].parts["honest_gain_kept"] for name in ("closed", "k4", "cap-2")] == pytest.approx([0.4, 1, 0.8])
    assert rows["k4"].parts["norm_removed"] is not None
    assert (rows["closed"].parts["norm_removed"], rows["k4"].interval) == (None, None)
    assert (rows["kl-1"].value, rows["kl-1"].parts["cost"], bool(rows["kl-1"].why)) == (None, 2.0, True)
    assert (rows["clip"].value, rows["clip"].why) == (None, "no such key")
    assert rows["steering-5"].value is None, "its steps destroy the policy"
    assert "cost right honest solutions 2.1 nats; hacks gain 2.0" in rows["steering-5"].why
    ahead["plain"] = ahead["steering-5"]
    still = screen(evidence, {"cap-2": CANDIDATES["cap-2"]}, ahead)
    assert still[0].value is None
    assert "do not make hacks more likely" in still[0].why
