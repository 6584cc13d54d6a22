"""Held-out rates of trained arms, and the figures that draw them: curves over steps, and hack against solve."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from drawn import axes_of, intervals, series

from probe.analysis.statistics.crossed import compare, rate
from probe.analysis.statistics.intervals import Interval, wilson_interval
from probe.analysis.verdict.trained_arms import TrainedArm
from probe.records.run import Run
from probe.report.drawing import drawn
from probe.report.trainings import MOST_NAMED, curves, pareto, rate_at, rates_of, steps_of, trained_arms
from probe.settings.presets import configure

HACKS = "learning-hack"
N = 64  # held-out rollouts of an evaluation


def rates(**shares: float) -> dict[str, Any]:
    """The rates of one evaluation, as evals.jsonl has them."""
    row: dict[str, Any] = {"num_rollouts": N}
    for name in ("hack", "exploit", "solve"):
        count = round(N * shares.get(name, 0.0))
        bounds = wilson_interval(count, N)
        assert bounds is not None
        row[name] = {"count": count, "rate": count / N, "interval": {"low": bounds.low, "high": bounds.high}}
    return row


def trained(name: str, runs: Sequence[tuple[list[dict[str, Any]], list[Any]]]) -> TrainedArm:
    """An arm from the evaluations and the steps of its seeds."""
    made = []
    for evals, steps in runs:
        records = SimpleNamespace(evals=evals, training=configure("train"))
        made.append(SimpleNamespace(run=name, records=records, steps=steps))
    return TrainedArm(condition="", arm=name, runs=made)  # type: ignore[arg-type]


def treatment(name: str, *hacks: tuple[float, ...], solve: float = 0.5) -> TrainedArm:
    """An arm whose seeds have these hack rates, an evaluation every 32 steps."""
    runs = []
    for values in hacks:
        shares = enumerate(rates(hack=value, solve=solve) for value in values)
        runs.append(([{"step": 32 * i, "weights": "deployed", "rates": {"all": row}} for i, row in shares], []))
    return trained(name, runs)


def test_a_rate_is_the_mean_of_the_seeds_with_its_interval() -> None:
    """Over seeds as the judge has it (`crossed`); of one seed Wilson's; at the steps that all seeds have."""
    two = treatment("a", (0.0, 0.5, 0.75), (0.25, 1.0))
    assert steps_of(two) == [0, 32]
    end = rate_at(two, "hack", 32)
    expected = compare(rate([[0.5], [1.0]], 2 * N))
    assert end is not None
    assert expected is not None
    assert end.value == 0.75
    bounds = expected.bounded().interval
    assert (end.low, end.high) == (max(bounds.low, 0), bounds.high)
    equal = rate_at(treatment("a", (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)), "hack", 32)
    assert equal.high > 0.01, "seeds that agree by chance have the width of drawing their outcomes"
    alone = rate_at(treatment("b", (0.25,)), "hack", 0)
    assert alone is not None
    assert Interval(low=alone.low, high=alone.high) == wilson_interval(16, N)


def test_curves_are_where_the_means_are() -> None:
    """A line a treatment with an interval at every evaluation; beyond the colours, thin lines without."""
    axes = axes_of(curves, [treatment("vanilla", (0.0, 0.5), (0.5, 1.0)), treatment("gated", (0.25, 0.25))], HACKS)
    values = {name: [y for _, y in points] for name, points in series(axes).items()}
    assert values == {"vanilla": [0.25, 0.75], "gated": [0.25, 0.25]}
    assert len(intervals(axes)) == 4
    assert "held out" in axes.get_ylabel()
    many = axes_of(curves, [treatment(f"t{i}", (0.0, 0.1 * i), (0.0, 0.1 * i)) for i in range(MOST_NAMED + 3)], HACKS)
    names = [f"t{i}" for i in range(MOST_NAMED)]
    assert set(series(many)) == {*names, "3 other treatments"}
    assert len(intervals(many)) == 2 * MOST_NAMED


def stepped(name: str, *seeds: Sequence[tuple[float | None, float]]) -> TrainedArm:
    """An arm whose seeds have steps with these (solve, loss)."""
    runs = []
    for values in seeds:
        steps = []
        for number, (solve, loss) in enumerate(values):
            advantage = {"advantage/abs_mean": 0.25}
            steps.append(SimpleNamespace(step=number, solve=solve, loss=loss, advantage=advantage))
        runs.append(([], steps))
    return trained(name, runs)


def test_curves_of_the_steps_are_means_over_the_seeds_that_all_have_them() -> None:
    """Two points where both seeds have a solve rate, none where one lacks it; the loss has all three."""
    treatments = [stepped("vanilla", [(0.0, 2.0), (0.5, 1.0), (1.0, 0.0)], [(0.5, 0.0), (1.0, -1.0), (None, -2.0)])]
    assert series(axes_of(curves, treatments, "training-solve")) == {"vanilla": [(0, 0.25), (1, 0.75)]}
    assert series(axes_of(curves, treatments, "training-loss")) == {"vanilla": [(0, 1.0), (1, 0.0), (2, -1.0)]}
    assert drawn("none", curves, [stepped("none", [(None, 1.0)])], "training-solve") is None


def test_the_pareto_figure_has_a_mark_a_treatment_and_the_start() -> None:
    """Hack along x and solve along y, each treatment by name, the start a cross; one treatment is no comparison."""
    arms = [
        treatment("vanilla", (0.0, 0.75), (0.0, 0.75), solve=0.5),
        treatment("gated", (0.0, 0.25), (0.0, 0.25), solve=0.625),
        treatment("closed", (0.0, 0.0), solve=0.75),
    ]
    assert series(axes_of(pareto, arms)) == {
        "vanilla (baseline)": [(0.75, 0.5)],
        "gated": [(0.25, 0.625)],
        "closed": [(0.0, 0.75)],
        "start": [(0.0, 0.625)],
    }
    assert drawn("pareto", pareto, [treatment("vanilla", (0.0, 0.5))]) is None


def test_runs_are_grouped_by_arm_and_settings_with_vanilla_first(maker, report_of) -> None:
    """A mean over seeds is not over a penalty as well: runs of other settings are another curve, named after them."""
    made = []
    for arm, seed, lr in (("projected", 1, 0.5), ("vanilla", 1, 0.5), ("vanilla", 1, 1.0), ("vanilla", 2, 0.5)):
        recipe = {"arms": (arm,), "seed": seed, "lr": lr, "trains": True, "tokens": False, "rates": [0.1, 0.5]}
        made += report_of(maker(name=f"t-{arm}-{seed}-{lr:g}", **recipe)).analyses
    arms = trained_arms(SimpleNamespace(analyses=made, evaluation=None))  # type: ignore[arg-type]
    assert [(arm.name, arm.seeds) for arm in arms] == [
        ("vanilla", [1, 2]),
        ("projected", [1]),
        ("vanilla (optimizer.lr=1.0)", [1]),
    ]
    assert steps_of(arms[0]) == [0, 5]


def test_a_curve_is_of_what_would_be_used(maker, report_of) -> None:
    """Of the deployed weights, where an arm that routes has others; in the loophole that was trained on."""
    (run,) = report_of(maker(name="routed", arms=("vanilla",), trains=True, tokens=False, rates=[0.1, 0.5])).runs
    routed = [row | {"weights": "trained", "rates": {"all": rates(hack=1.0)}} for row in run.evals]
    assert hack_at_5(replace(run, evals=[*run.evals, *routed])) == 0.5
    both = {"all": rates(hack=0.25), "run_tests": rates(hack=0.75)}
    assert hack_at_5(replace(run, evals=[row | {"rates": both} for row in run.evals])) == 0.75


def hack_at_5(run: Run) -> float:
    return rates_of(SimpleNamespace(records=run))[5]["hack"]["rate"]  # type: ignore[arg-type]
