"""spec/studies/foretell/points.py: its intervals by hand, how often they hold, and the replays that it refuses."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats
from worlds import World, make_run

from probe.analysis.statistics.thresholds import MATERIAL_RATE, MATERIAL_REMOVED, SHOWN_REMOVED

SPEC = Path(__file__).parents[2] / "spec"
POINTS = runpy.run_path(str(SPEC / "studies/foretell/points.py"))
STUDIED, AHEAD, STUDIED_AHEAD, PLAIN_RATE, LEVEL = (
    POINTS[name] for name in ("STUDIED", "AHEAD", "STUDIED_AHEAD", "PLAIN_RATE", "LEVEL")
)
fall_of, fall_ahead = POINTS["fall_of"], POINTS["fall_ahead"]


def test_the_interval_is_that_of_a_new_value_on_a_line() -> None:
    """Four points by hand: slope 1, start 0, residuals +-.1, so s = .1 sqrt(2); at the mean the leverage is 1 + 1/4."""
    found = fall_of(1.5, [(0, 0.1), (1, 0.9), (2, 1.9), (3, 3.1)])
    half = stats.t.ppf(0.9, 2) * np.sqrt(0.04 / 2) * np.sqrt(1.25)
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5 - half, 1.5 + half))


def test_a_set_that_is_left_out_lies_inside_in_16_of_19() -> None:
    errors, inside = [], 0
    for name, (removed, fall) in STUDIED.items():
        said = fall_of(removed, [row for other, row in STUDIED.items() if other != name])
        inside += said.low <= fall <= said.high
        errors.append(said.value - fall)
    assert (inside, len(STUDIED)) == (16, 19)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.129, abs=5e-4)


def test_intervals_of_a_planted_line_hold_as_often_as_said() -> None:
    rng, x = np.random.default_rng(0), np.array([removed for removed, _ in STUDIED.values()])
    draws, inside = 2000, 0
    for _ in range(draws):
        rows = [*zip(x.tolist(), (0.5 * x + rng.normal(0, 0.1, len(x))).tolist(), strict=True)]
        said, fall = fall_of(0.7, rows), 0.35 + rng.normal(0, 0.1)
        inside += said.low <= fall <= said.high
    assert inside / draws == pytest.approx(LEVEL, abs=4 * np.sqrt(LEVEL * (1 - LEVEL) / draws))


def test_the_thresholds_of_the_verdict_are_those_of_the_line() -> None:
    assert fall_of(MATERIAL_REMOVED).value == pytest.approx(MATERIAL_RATE, abs=0.005)
    assert fall_of(SHOWN_REMOVED).low == pytest.approx(MATERIAL_RATE, abs=0.005)


def test_the_curve_of_remedies_ends_at_the_hack_rate() -> None:
    exact = [(x, PLAIN_RATE * (1 - np.exp(-x / 0.7))) for x in (0.1, 0.5, 1.0, 3.0)]
    said = fall_ahead(0.7, exact, rate=0.2)
    assert said.value == pytest.approx(0.2 * (1 - np.exp(-1)))
    assert said.low == pytest.approx(said.high, abs=1e-6), "nothing is left of these"
    assert fall_ahead(-0.4).value == 0
    assert fall_ahead(1e3).high == pytest.approx(PLAIN_RATE)


def test_remedies_that_are_left_out_lie_inside_as_the_pages_say() -> None:
    """Remedies: 22 of 26 by the bench alone; by all rows 24 of these 26 and 11 of 16 of spec/studies/foretell-2."""
    errors, inside = [], 0
    for name, (x, fall) in AHEAD.items():
        said = fall_ahead(x, [row for other, row in AHEAD.items() if other != name])
        errors.append(said.value - fall)
        inside += abs(errors[-1]) <= said.value - said.low
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.050, abs=0.003)
    assert (inside, len(AHEAD)) == (22, 26)
    held = []
    for i, (x, fall) in enumerate(STUDIED_AHEAD):
        said = fall_ahead(x, [*STUDIED_AHEAD[:i], *STUDIED_AHEAD[i + 1 :]])
        held.append(abs(said.value - fall) <= said.value - said.low)
    assert (sum(held[: len(AHEAD)]), sum(held[len(AHEAD) :])) == (24, 11)


def test_the_tables_of_the_pages_are_those_of_the_study_and_of_the_picture() -> None:
    of_page = runpy.run_path(str(SPEC / "studies/foretell/forecasts.py"))["of_page"]
    bench, penalties = of_page("remedies/remedies.md", "One replay that foretells every row", 100 * PLAIN_RATE)
    assert np.allclose(bench, [(x, fall / PLAIN_RATE) for x, fall in AHEAD.values()])
    hard, more = of_page("untrained/untrained.md", "Results: the known rows of the hard base", 77)
    assert (hard[0], len(hard), len(penalties), len(more)) == ((2.04, pytest.approx(75 / 77)), 4, 4, 3)


def said(*args: str) -> tuple[int, str]:
    ended = CliRunner().invoke(POINTS["main"], args)
    return ended.exit_code, ended.output


@pytest.mark.parametrize(
    ("world", "code", "words"),
    [
        (World(num_steps=12), 0, "points less hacking"),
        (World(num_steps=12, arms=("projected-lora",)), 2, "basis lora"),
        (
            World(num_steps=6, amounts=(0.25, 0, 0), strength=2, num_pairs=120, num_held_out=60),
            2,
            "lies outside of what was studied, 0% to 101%",
        ),
    ],
)
def test_points_are_said_inside_of_what_was_studied_alone(world: World, code: int, words: str, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "runs" / "run", world)
    found = said("removal", str(directory))
    assert (found[0], words in found[1]) == (code, True), found
    assert said("removal", str(tmp_path))[0] == 2


def test_remedies_get_points_from_a_screen_of_20_steps(tmp_path: Path) -> None:
    directory, screen = make_run(tmp_path / "runs" / "run", World(num_steps=12)), tmp_path / "screen.json"
    rows = [
        {"remedy": "closed", "settings": {"remedy.name": "no-loophole"}, "hack_gain_avoided": 0.5, "why": ""},
        {"remedy": "kl", "settings": {"objective.beta": 0.1}, "hack_gain_avoided": None, "why": "later"},
        {"remedy": "steered", "settings": {}, "hack_gain_avoided": 40.0, "why": ""},
    ]
    screen.write_text(json.dumps({"steps": 20, "remedies": rows}))
    code, text = said("remedies", str(directory), str(screen))
    assert code == 0
    closed, penalty, steered = text.splitlines()
    assert f"closed: {100 * fall_ahead(1.0).value:.0f} points" in closed
    assert "later than the lookahead sees" in penalty
    assert "outside" in steered
    screen.write_text(json.dumps({"steps": 3, "remedies": rows}))
    assert said("remedies", str(directory), str(screen))[0] == 2
