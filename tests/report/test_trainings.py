"""Held-out rates of treatments, and the figures that draw them: curves over steps, and hack against solve."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drawn import marks, tips

from probe.analysis.statistics.crossed import mean, rate
from probe.analysis.statistics.intervals import wilson_interval
from probe.experiments.spec.prereg import load_spec
from probe.report.figures.labels import LETTER, Box, name_marks
from probe.report.figures.learning import BOTTOM, MOST_NAMED, TOP, in_training, learning
from probe.report.figures.panel import Panel
from probe.report.figures.pareto import pareto
from probe.report.sections.training import _steps
from probe.report.trainings import EvaluatedRun, Treatment, spec_name, treatments_of

N = 64  # held-out rollouts of an evaluation
ROOT = Path(__file__).resolve().parents[2]


def rates(**shares: float) -> dict[str, Any]:
    """The rates of one evaluation, as evals.jsonl has them."""
    row: dict[str, Any] = {"num_rollouts": N}
    for name in ("hack", "exploit", "solve"):
        count = round(N * shares.get(name, 0.0))
        bounds = wilson_interval(count, N)
        assert bounds is not None
        row[name] = {"count": count, "rate": count / N, "interval": {"low": bounds.low, "high": bounds.high}}
    return row


def treatment(name: str, *hacks: tuple[float, ...], solve: float = 0.5) -> Treatment:
    """A treatment whose seeds have these hack rates, an evaluation every 32 steps."""
    runs = []
    for seed, values in enumerate(hacks):
        by_step = {32 * i: rates(hack=value, solve=solve) for i, value in enumerate(values)}
        runs.append(EvaluatedRun(run=None, seed=seed, by_step=by_step))  # type: ignore[arg-type]
    return Treatment(name=name, runs=runs)


def test_a_rate_is_the_mean_of_the_seeds_with_its_interval() -> None:
    """Over seeds as the judge has it (`crossed`); of one seed Wilson's; at the steps that all seeds have."""
    two = treatment("a", (0.0, 0.5, 0.75), (0.25, 1.0))
    assert two.steps == [0, 32]
    end = two.rate("hack", 32)
    expected = mean(rate([[0.5], [1.0]], 2 * N))
    assert end is not None
    assert expected is not None
    assert end.value == 0.75
    assert end.words == "mean of 2 seeds"
    assert (end.interval.low, end.interval.high) == (
        max(expected.bounded().interval.low, 0),
        expected.bounded().interval.high,
    )
    alone = treatment("b", (0.25,)).rate("hack", 0)
    assert alone is not None
    assert alone.interval == wilson_interval(16, N)
    assert alone.words == "seed 0"


def test_equal_seeds_are_no_certainty() -> None:
    """Seeds that agree by chance still have the width of drawing their outcomes."""
    end = treatment("a", (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)).rate("hack", 32)
    assert end is not None
    assert end.interval is not None
    assert end.interval.low == 0.0
    assert end.interval.high > 0.01


def test_curves_are_where_the_means_are() -> None:
    drawn = learning("hack", [treatment("vanilla", (0.0, 0.5), (0.5, 1.0)), treatment("gated", (0.25, 0.25))])
    assert [tip.split(": ")[1] for tip in tips(drawn, "circle", "mark")] == [
        "25% (mean of 2 seeds)",
        "75% (mean of 2 seeds)",
    ]
    assert len(tips(drawn, "line", "whisker")) == 4, "an interval at every evaluation"
    heights = [float(dot.attrib["cy"]) for dot in marks(drawn, "circle", "mark")]
    assert heights[0] > heights[1], "a larger rate is higher up"
    assert drawn is not None
    names = [text.text for text in drawn.svg.iter("text")]
    assert {"vanilla", "gated"} <= set(names)
    assert learning("hack", [Treatment(name="none", runs=[])]) is None


def test_more_treatments_than_colours_are_thin_lines() -> None:
    many = [treatment(f"t{i}", (0.0, 0.1 * i), (0.0, 0.1 * i)) for i in range(MOST_NAMED + 3)]
    drawn = learning("hack", many)
    assert len(marks(drawn, "path", "curve")) == MOST_NAMED
    assert tips(drawn, "path", "other") == [f"t{i}" for i in range(MOST_NAMED, MOST_NAMED + 3)]


def stepped(name: str, *seeds: Sequence[tuple[float | None, float]]) -> Treatment:
    """A treatment whose seeds have steps with these (solve, loss)."""
    runs = []
    for seed, values in enumerate(seeds):
        steps = [
            SimpleNamespace(
                step=number,
                solve=solve,
                loss=loss,
                grad_norm=60.0 * number,
                kl={"max": 0.5 * number},
                advantage={"advantage/abs_mean": 0.25, "frac_reward_zero_std": 0.5, "skip_rate": 0.25},
            )
            for number, (solve, loss) in enumerate(values)
        ]
        run = SimpleNamespace(steps=steps, manifest={"warnings": ["grad_norm above 50 in 1 of 2 steps"]})
        runs.append(EvaluatedRun(run=run, seed=seed, by_step={}))  # type: ignore[arg-type]
    return Treatment(name=name, runs=runs)


def test_curves_of_the_steps_are_means_over_the_seeds_that_all_have_them() -> None:
    """Two points where both seeds have a solve rate, none where one lacks it; the loss has all three."""
    treatments = [stepped("vanilla", [(0.0, 2.0), (0.5, 1.0), (1.0, 0.0)], [(0.5, 0.0), (1.0, -1.0), (None, -2.0)])]
    (path,) = marks(in_training("solve", treatments), "path", "curve")
    points = [tuple(map(float, point.split())) for point in path.attrib["d"].removeprefix("M").split("L")]
    assert len(points) == 2
    low, high = [BOTTOM + (TOP - BOTTOM) * value for value in (0.25, 0.75)]
    assert [height for _, height in points] == [pytest.approx(low, abs=0.1), pytest.approx(high, abs=0.1)]
    (path,) = marks(in_training("loss", treatments), "path", "curve")
    heights = [float(point.split()[1]) for point in path.attrib["d"].removeprefix("M").split("L")]
    assert heights == sorted(heights), "a smaller loss is lower down"
    assert len(heights) == 3
    assert in_training("solve", [stepped("none", [(None, 1.0)])]) is None


def test_the_table_of_steps_has_where_runs_began_and_how_far_they_went() -> None:
    (row,) = _steps([stepped("vanilla", [(0.25, 2.0), (0.75, -1.0)])]).rows
    assert row == (
        *("vanilla", "0", "2", "25% to 75%", "+2 to -1", "0.25 to 0.25", "75%", "0.5", "60"),
        "grad_norm above 50 in 1 of 2 steps",
    )


def test_the_pareto_figure_has_a_mark_a_treatment_and_the_start() -> None:
    """Hack along x and solve along y, the first treatment filled, all others hollow, the start a cross."""
    drawn = pareto(
        [
            treatment("vanilla", (0.0, 0.75), (0.0, 0.75), solve=0.5),
            treatment("gated", (0.0, 0.25), (0.0, 0.25), solve=0.625),
            treatment("closed", (0.0, 0.0), solve=0.75),
        ]
    )
    filled, hollow = marks(drawn, "circle", "mark"), marks(drawn, "circle", "hollow")
    dots = {dot.findtext("title").partition(":")[0]: dot for dot in [*filled, *hollow] if dot.find("title") is not None}
    assert list(dots) == ["vanilla", "gated", "closed"]
    places = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in dots.values()]
    assert [x for x, _ in places] == sorted([x for x, _ in places], reverse=True), "hacks less: further left"
    assert [y for _, y in places] == sorted([y for _, y in places], reverse=True), "solves more: higher up"
    assert tips(drawn, "path", "cross") == ["start: hacks 0%, solves 62%"]
    assert drawn is not None
    assert {"vanilla", "gated", "closed", "start"} <= {text.text for text in drawn.svg.iter("text")}
    assert pareto([treatment("vanilla", (0.0, 0.5))]) is None, "one treatment is no comparison"


def test_names_cover_neither_one_another_nor_a_mark() -> None:
    """Ten marks on one spot: every name is written, with a line where it stands away; where there is no room, none."""
    panel = Panel("p", "title", 300)
    places = [(150.0 + i, 150.0 + i, f"name-{i}") for i in range(10)]
    name_marks(panel, places, Box(0, 40, 340, 300))
    boxes = []
    for text in panel.svg.iter("text"):
        if text.text and text.text.startswith("name-"):
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            boxes.append(Box(x, y - 10, x + LETTER * len(text.text), y + 2))
    assert len(boxes) == 10
    assert panel.svg.findall("line"), "some stand away from their mark"
    dots = [Box(x - 4, y - 4, x + 4, y + 4) for x, y, _ in places]
    assert not any(box.touches(dot) for box in boxes for dot in dots)
    assert not any(a.touches(b) for a in boxes for b in boxes if a is not b)
    narrow = Panel("p", "title", 300)
    name_marks(narrow, places, Box(140, 140, 170, 170))
    assert not any((text.text or "").startswith("name-") for text in narrow.svg.iter("text"))


def test_runs_become_treatments_with_vanilla_first(maker, report_of) -> None:
    names = [("projected", 1), ("vanilla", 1), ("vanilla", 2)]
    runs = [
        maker(name=f"t-{arm}-{seed}", arms=(arm,), seed=seed, trains=True, tokens=False, rates=[0.1, 0.5])
        for arm, seed in names
    ]
    treatments = treatments_of(report_of(*runs))
    assert [(row.name, [run.seed for run in row.runs]) for row in treatments] == [
        ("vanilla", [1, 2]),
        ("projected", [1]),
    ]
    assert treatments[0].steps == [0, 5]


def test_weights_that_nobody_deploys_are_left_out(maker, report_of) -> None:
    """An arm that routes is evaluated twice at a step: the curve is of what would be used."""
    (run,) = report_of(maker(name="routed", arms=("vanilla",), trains=True, tokens=False, rates=[0.1, 0.5])).runs
    routed = [row | {"weights": "trained", "rates": {"all": rates(hack=1.0)}} for row in run.evals]
    report = SimpleNamespace(runs=[replace(run, evals=[*run.evals, *routed])], spec=None)
    (found,) = treatments_of(report)  # type: ignore[arg-type]
    assert found.rate("hack", 5).value == 0.5


def test_a_curve_is_of_the_loophole_that_was_trained_on(maker, report_of) -> None:
    """Evaluated in other loopholes too, a run has a rate over all of them, which says little."""
    (run,) = report_of(maker(name="modes", arms=("vanilla",), trains=True, tokens=False, rates=[0.1, 0.5])).runs
    evals = [row | {"rates": {"all": rates(hack=0.25), "run_tests": rates(hack=0.75)}} for row in run.evals]
    report = SimpleNamespace(runs=[replace(run, evals=evals)], spec=None)
    (found,) = treatments_of(report)  # type: ignore[arg-type]
    assert found.rate("hack", 5).value == 0.75


@pytest.mark.parametrize(
    ("spec", "condition", "arm", "expected"),
    [
        ("foretell", "k4", "projected", "k4"),
        ("foretell", "none", "vanilla", "none"),
        ("remedies-gate", "plain", "route", "route"),
        ("remedies-gate", "kl-0.3", "vanilla", "kl-0.3"),
        ("phase3-replication", None, "projected", "projected"),
    ],
)
def test_a_treatment_of_a_spec_has_the_shortest_name_that_tells_it(
    spec: str, condition: str | None, arm: str, expected: str
) -> None:
    """And no two treatments of a spec share one."""
    loaded = load_spec(ROOT / "spec" / f"{spec}.toml")
    assert spec_name(loaded, condition or loaded.conditions[0].name, arm) == expected
    names = [spec_name(loaded, entry.name, each) for entry in loaded.conditions for each in loaded.arms_of(entry)]
    assert len(set(names)) == len(names)
