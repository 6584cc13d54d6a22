"""The law of the studied trainings: its interval by hand, how often it is right, and where it does not speak."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from worlds import World, make_run

from probe.analysis.foretold import AHEAD, LEVEL, PLAIN_RATE, STUDIED, STUDIED_AHEAD, fall_ahead, fall_of
from probe.analysis.statistics.thresholds import MATERIAL_RATE, MATERIAL_REMOVED, SHOWN_REMOVED
from probe.cli import cli
from probe.cli._frame import run


def test_the_interval_is_that_of_a_new_value_on_a_line() -> None:
    """Four points by hand: slope 1, start 0, residuals +-.1, so s = .1 sqrt(2); at the mean the leverage is 1 + 1/4."""
    found = fall_of(1.5, [(0, 0.1), (1, 0.9), (2, 1.9), (3, 3.1)])
    half = stats.t.ppf(0.9, 2) * np.sqrt(0.04 / 2) * np.sqrt(1.25)
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx((1.5, 1.5 - half, 1.5 + half))


def test_a_set_that_is_left_out_lies_inside_as_often_as_said() -> None:
    errors, inside = [], 0
    for i, (removed, fall) in enumerate(STUDIED):
        said = fall_of(removed, [row for j, row in enumerate(STUDIED) if j != i])
        inside += said.interval.low <= fall <= said.interval.high
        errors.append(said.value - fall)
    assert inside == 16  # of 19: .84, where .8 is said
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.129, abs=5e-4)


def test_intervals_of_a_planted_line_hold_as_often_as_said() -> None:
    rng, x = np.random.default_rng(0), np.array([removed for removed, _ in STUDIED])
    draws, inside = 4000, 0
    for _ in range(draws):
        rows = [*zip(x.tolist(), (0.5 * x + rng.normal(0, 0.1, len(x))).tolist(), strict=True)]
        said, fall = fall_of(0.7, rows), 0.35 + rng.normal(0, 0.1)
        inside += said.interval.low <= fall <= said.interval.high
    assert inside / draws == pytest.approx(LEVEL, abs=4 * np.sqrt(LEVEL * (1 - LEVEL) / draws))


def test_the_thresholds_of_the_verdict_are_those_of_the_law() -> None:
    assert fall_of(MATERIAL_REMOVED).value == pytest.approx(MATERIAL_RATE, abs=0.005)
    assert fall_of(SHOWN_REMOVED).interval.low == pytest.approx(MATERIAL_RATE, abs=0.005)


@pytest.mark.parametrize(("arms", "differences"), [(("vanilla",), []), (("projected-lora",), ["basis lora"])])
def test_analyze_foretells_what_was_studied_and_says_why_not_otherwise(
    arms: tuple[str, ...], differences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The organism's teacher and base in the studied basis: points with an interval; in the other one none."""
    directory = make_run(tmp_path / "runs" / "run", World(num_steps=12, arms=arms))
    assert run(cli, ["analyze", str(directory), "--draws", "99"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert run(cli, ["analyze", str(directory), "--draws", "99", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    removed = next(row for row in said["forecast"]["rows"] if row["target"] == "margin")["removed"]["value"]
    assert said["foretold"]["unlike"] == differences
    if differences:
        assert said["foretold"]["fall"] is None
        assert "what a training becomes is not foretold: basis lora" in text
    else:
        assert said["foretold"]["fall"]["value"] == pytest.approx(fall_of(removed).value)
        assert f"hacked {100 * fall_of(removed).value:.0f} points less, 80% of them" in text


def test_what_moved_ahead_foretells_a_remedy_by_a_curve_that_ends_at_the_rate() -> None:
    exact = [(x, PLAIN_RATE * (1 - np.exp(-x / 0.7))) for x in (0.1, 0.5, 1.0, 3.0)]
    said = fall_ahead(0.7, exact, rate=0.2)
    assert said.value == pytest.approx(0.2 * (1 - np.exp(-1)))
    assert said.interval.low == pytest.approx(said.interval.high, abs=1e-6), "nothing is left of these"
    assert fall_ahead(-0.4).value == 0
    assert fall_ahead(1e3).interval.high == pytest.approx(PLAIN_RATE)


def test_a_remedy_that_is_left_out_lies_inside_its_interval_as_often_as_it_says() -> None:
    """The numbers of spec/remedies.md."""
    errors, inside = [], 0
    for name, (x, fall) in AHEAD.items():
        said = fall_ahead(x, [row for other, row in AHEAD.items() if other != name])
        errors.append(said.value - fall)
        inside += abs(errors[-1]) <= said.value - said.interval.low
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.050, abs=0.003)
    assert (inside, len(AHEAD)) == (22, 26)


def test_the_interval_of_a_screen_holds_on_other_problems_too() -> None:
    """Each row left out: 24 of 26 of the bench and 11 of 16 of spec/foretell-2.md are inside, 83% together."""
    inside = []
    for i, (x, fall) in enumerate(STUDIED_AHEAD):
        said = fall_ahead(x, [*STUDIED_AHEAD[:i], *STUDIED_AHEAD[i + 1 :]])
        inside.append(abs(said.value - fall) <= said.value - said.interval.low)
    assert (sum(inside[: len(AHEAD)]), sum(inside[len(AHEAD) :])) == (24, 11)


def test_the_tables_of_the_pages_are_those_of_the_law_and_of_the_picture() -> None:
    of_page = runpy.run_path(str(Path(__file__).parents[2] / "spec" / "forecasts.py"))["of_page"]
    bench, penalties = of_page("remedies.md", "One replay that foretells every row", 100 * PLAIN_RATE)
    assert np.allclose(bench, [(x, fall / PLAIN_RATE) for x, fall in AHEAD.values()])
    hard, more = of_page("untrained.md", "Results: the known rows of the hard base", 77)
    assert (hard[0], len(hard), len(penalties), len(more)) == ((2.04, pytest.approx(75 / 77)), 4, 4, 3)
