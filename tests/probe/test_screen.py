"""`probe screen` on planted worlds: it forecasts what a replay of each dose reads, and says what it does not see."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specs import LOWERS, training_spec
from trainings import Planted
from worlds import World, make_run

from probe.analysis.analyze import analyze
from probe.analysis.evidence import Evidence
from probe.analysis.foretold import AHEAD_STEPS, fall_ahead
from probe.analysis.lookahead import Ahead
from probe.analysis.screen import NOT_SEEN, SKIP, WORTH, best, held_against, screen
from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.load import load_spec
from probe.experiments.screen_spec import read_candidates, trained_remedies, write_screen_spec
from probe.records.records import LookaheadRecord
from probe.records.run import read_run
from probe.settings.remedy import CANDIDATES
from replay_pools.errors import InputError


def screened(directory: Path, spec: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """({remedy: row}, all of the JSON)."""
    capsys.readouterr()
    assert run(cli, ["screen", str(directory), "--spec", str(spec), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return {row["remedy"]: row for row in said["remedies"]}, said


def test_the_picks_are_forecast_as_the_replay_forecasts_and_their_spec_can_be_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = make_run(tmp_path / "runs" / "go", World())
    rows, said = screened(directory, tmp_path / "go-screen.toml", capsys)
    assert rows.keys() == CANDIDATES.keys()
    replayed = analyze(read_run(directory), num_draws=99)
    assert replayed.forecast is not None
    assert replayed.foretold is not None
    margin = replayed.forecast.row("margin")
    assert margin is not None
    assert margin.removed is not None
    assert rows["k2"]["removed"]["value"] == pytest.approx(margin.removed.value), "the world's directions are two"
    assert replayed.foretold.fall is not None
    assert rows["k2"]["fall"]["value"] == pytest.approx(replayed.foretold.fall.value)
    assert rows["k2"]["word"] == WORTH
    assert rows["k1"]["removed"]["value"] != pytest.approx(rows["k2"]["removed"]["value"])
    for name in ("overshoot-2", "two-sided", "kl-1", "penalty-70", "ablation", "early-stop"):
        assert (rows[name]["word"], rows[name]["fall"]) == (NOT_SEEN, None)
        assert rows[name]["why"]
    assert rows["overshoot-2"]["removed"]["value"] == pytest.approx(2 * margin.removed.value)
    spec = load_spec(Path(said["written"]))
    picks = [row["remedy"] for row in said["remedies"] if row["word"] == WORTH][:3]
    assert list(spec.resolved) == ["plain", *picks]
    assert spec.resolved[picks[0]].arms == ("projected", "permuted-dosed")


def test_nothing_to_remove_is_skipped_and_another_basis_is_not_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pairs whose axis the hacks share a little of; and a replay whose trainings were not studied."""
    directory = make_run(tmp_path / "runs" / "weak", World(strength=0.15, num_steps=64))
    rows, said = screened(directory, tmp_path / "weak-screen.toml", capsys)
    assert WORTH not in {row["word"] for row in rows.values() if row["fall"] and row["fall"]["value"] < 0.15}
    assert {row["word"] for row in rows.values() if row["fall"]} <= {WORTH, SKIP}
    other = make_run(tmp_path / "runs" / "lora", World(arms=("projected-lora",)))
    rows, said = screened(other, tmp_path / "lora-screen.toml", capsys)
    assert {row["word"] for row in rows.values()} == {NOT_SEEN}
    assert "basis lora" in rows["k2"]["why"]
    assert said["written"] is None
    assert not (tmp_path / "lora-screen.toml").exists()
    assert run(cli, ["screen", str(other), "--spec", str(tmp_path / "lora-screen.toml")]) == 0
    assert "no remedy is forecast to be worth a training" in capsys.readouterr().out


def test_a_remedy_that_is_a_row_is_screened(tmp_path: Path) -> None:
    evidence = Evidence(read_run(make_run(tmp_path / "runs" / "go", World())))
    (row,) = screen(evidence, {"three": {"intervention.extraction.k": 3}})
    assert (row.remedy, row.word) == ("three", WORTH)
    assert row.fall is not None


def test_what_remedies_moved_ahead_foretells_any_kind_but_a_penalty(tmp_path: Path) -> None:
    evidence = Evidence(read_run(make_run(tmp_path / "runs" / "go", World())))
    gained = {"plain": (2.0, 1.0, 0.5), "closed": (-1.0, -0.5, 0.2), "cap-2": (2.0, 1.0, 0.4), "kl-1": (1.0, 0.5, 0.5)}
    gained["steering-5"] = (-90.0, -80.0, -1.6)
    records = {
        name: [
            LookaheadRecord(arm="vanilla", measure=measure, prompt=prompt, value=value)
            for measure, value in zip(("hacks", "held-out hacks", "honest"), values, strict=True)
            for prompt in ("a", "b")
        ]
        for name, values in gained.items()
    }
    ahead = Ahead(
        plain="plain",
        steps=AHEAD_STEPS,
        records=records,
        seconds={name: 2.0 if name == "kl-1" else 1.0 for name in gained},
        unseen={"clip": "no such key"},
    )
    candidates = {name: CANDIDATES[name] for name in ("cap-2", "kl-1", "clip", "steering-5")}
    rows = {row.remedy: row for row in screen(evidence, candidates | {"closed": {"remedy.name": "closed"}}, ahead)}
    assert next(iter(rows)) == "closed"
    assert (rows["closed"].word, rows["closed"].fall) == (WORTH, fall_ahead(3.0))
    assert (rows["cap-2"].word, rows["cap-2"].fall) == (SKIP, fall_ahead(0.0))
    assert (rows["kl-1"].word, rows["kl-1"].cost) == (NOT_SEEN, 2.0)
    assert (rows["clip"].word, rows["clip"].why) == (NOT_SEEN, "no such key")
    assert (rows["steering-5"].word, rows["steering-5"].fall) == (SKIP, None)
    assert "cost right honest solutions 2.1 nats; hacks gain 2.0" in rows["steering-5"].why
    path = tmp_path / "closed-screen.toml"
    write_screen_spec(evidence, best(rows.values()), path, out_dir=tmp_path)
    closed = load_spec(path).resolved["closed"]
    assert (closed.arms, closed.config.remedy.name) == (("vanilla",), "closed"), "no gate: it is none of the gate"
    few = screen(evidence, {"cap-2": CANDIDATES["cap-2"]}, replace(ahead, steps=3))
    assert "a lookahead of 3 steps" in few[0].why


def test_the_conditions_of_a_spec_are_screened_and_held_against_its_trainings(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = {
        "plain": {"arms": ["vanilla"]},
        "two": {"arms": ["projected", "permuted-dosed"], "intervention.extraction.k": 2},
        "others": {"arms": ["projected"], "intervention.extraction.pairs": "builtin:style"},
        "penalty": {"arms": ["vanilla"], "objective.beta": 0.1, "objective.reference": "base"},
    }
    lowers = LOWERS | {"condition": "two", "versus_condition": "plain", "paired": False}
    arms = ["vanilla", "projected", "permuted-dosed"]
    text = training_spec("doses", arms=arms, seeds=[0, 1], conditions=conditions, criteria=[lowers])
    spec, out = planted(tmp_path, text, {"plain vanilla": (0.0, 0.5, 0.7, 0.5), "two projected": (0.0, 0.5, 0.3, 0.5)})
    make_run(out / "runs" / "go", World())
    command = ["screen", str(out / "runs" / "go"), "--remedies", str(spec.path), "--out", str(out)]
    assert run(cli, [*command, "--spec", str(tmp_path / "picks.toml"), "--json"]) == 0
    rows = {row["remedy"]: row for row in json.loads(capsys.readouterr().out)["remedies"]}
    assert rows.keys() == {"two-projected", "two-permuted-dosed", "others", "penalty"}
    assert (rows["others"]["removed"], "of its own pairs" in rows["others"]["why"]) == (None, True)
    assert rows["two-projected"]["word"] == WORTH
    assert "of the arm projected, and this is permuted-dosed" in rows["two-permuted-dosed"]["why"]
    assert rows["penalty"]["settings"]["objective.beta"] == 0.1
    trained = rows["two-projected"]["trained"]
    assert (trained["seeds"], trained["said"], rows["penalty"]["trained"]) == (2, None, None)
    assert 0.2 < trained["fell"] < 0.6
    picks = load_spec(tmp_path / "picks.toml")
    assert f"probe screen go --remedies {tmp_path / 'picks.toml'}" in picks.decisions[0].then
    assert picks.resolved["two-projected"].arms == ("projected", "permuted-dosed")
    assert run(cli, [*command, "--spec", str(tmp_path / "picks.toml")]) == 0
    assert f"{100 * trained['fell']:.0f} (2)" in capsys.readouterr().out
    # The law, at the hack rate of the seeds that both have.
    row = replace(screen(Evidence(read_run(out / "runs" / "go")))[0], remedy="two-projected", moved=0.7)
    plain, remedies = trained_remedies(spec.path, out)
    assert plain is not None
    (held,) = held_against([row], plain, {"two-projected": replace(plain, runs=plain.runs[:1])})
    assert held.trained is not None
    assert (held.trained.seeds, held.trained.fell, held.trained.solve_fell) == (1, 0, 0)
    assert held.trained.said == fall_ahead(0.7, rate=plain.by_seed("hack", "final")[0])
    assert list(remedies) == ["two-projected"]
    assert trained["fell"] == pytest.approx(
        plain.mean("hack", "final") - remedies["two-projected"].mean("hack", "final")
    )


@pytest.mark.parametrize("text", ["", "conditions = 1", '[[conditions]]\nname = "plain"', "[[conditions]]\nk = 1"])
def test_a_file_without_remedies_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"some\.toml"):
        read_candidates(path)


def test_a_shorter_training_is_as_much_shorter_in_a_screen(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text('[settings]\nsteps = 200\n[[conditions]]\nname = "early"\nsettings.steps = 50')
    assert read_candidates(path)["early"]["steps"] == 16, "a quarter of 64"
