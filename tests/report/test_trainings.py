"""Held-out rates of treatments, and the figures that draw them: curves over steps, and hack against solve."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drawn import axes_of, intervals, series

from probe.analysis.statistics.crossed import mean, rate
from probe.analysis.statistics.intervals import Interval, wilson_interval
from probe.report.drawing import drawn
from probe.report.sections import best_checkpoint
from probe.report.training_figures import MOST_NAMED, in_training, ladder, learning, pareto
from probe.report.trainings import EvaluatedRun, Treatment, group_names, treatments_of

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
    bounds = expected.bounded().interval
    assert (end.low, end.high) == (max(bounds.low, 0), bounds.high)
    equal = treatment("a", (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)).rate("hack", 32)
    assert equal.high > 0.01, "seeds that agree by chance have the width of drawing their outcomes"
    alone = treatment("b", (0.25,)).rate("hack", 0)
    assert alone is not None
    assert Interval(low=alone.low, high=alone.high) == wilson_interval(16, N)


def test_curves_are_where_the_means_are() -> None:
    """A line a treatment with an interval at every evaluation; beyond the colours, thin lines without."""
    axes = axes_of(learning, [treatment("vanilla", (0.0, 0.5), (0.5, 1.0)), treatment("gated", (0.25, 0.25))], "hack")
    assert {name: [y for _, y in points] for name, points in series(axes).items()} == {
        "vanilla": [0.25, 0.75],
        "gated": [0.25, 0.25],
    }
    assert len(intervals(axes)) == 4
    assert "held out" in axes.get_ylabel()
    assert drawn("none", learning, [Treatment(name="none", runs=[])], "hack") is None
    many = axes_of(
        learning, [treatment(f"t{i}", (0.0, 0.1 * i), (0.0, 0.1 * i)) for i in range(MOST_NAMED + 3)], "hack"
    )
    names = [f"t{i}" for i in range(MOST_NAMED)]
    assert set(series(many)) == {*names, "3 other treatments"}
    assert len(intervals(many)) == 2 * MOST_NAMED


def stepped(name: str, *seeds: Sequence[tuple[float | None, float]]) -> Treatment:
    """A treatment whose seeds have steps with these (solve, loss)."""
    runs = []
    for seed, values in enumerate(seeds):
        steps = [
            SimpleNamespace(
                step=number,
                solve=solve,
                loss=loss,
                advantage={"advantage/abs_mean": 0.25},
            )
            for number, (solve, loss) in enumerate(values)
        ]
        run = SimpleNamespace(steps=steps)
        runs.append(EvaluatedRun(run=run, seed=seed, by_step={}))  # type: ignore[arg-type]
    return Treatment(name=name, runs=runs)


def test_curves_of_the_steps_are_means_over_the_seeds_that_all_have_them() -> None:
    """Two points where both seeds have a solve rate, none where one lacks it; the loss has all three."""
    treatments = [stepped("vanilla", [(0.0, 2.0), (0.5, 1.0), (1.0, 0.0)], [(0.5, 0.0), (1.0, -1.0), (None, -2.0)])]
    assert series(axes_of(in_training, treatments, "solve")) == {"vanilla": [(0, 0.25), (1, 0.75)]}
    assert series(axes_of(in_training, treatments, "loss")) == {"vanilla": [(0, 1.0), (1, 0.0), (2, -1.0)]}
    assert drawn("none", in_training, [stepped("none", [(None, 1.0)])], "solve") is None


def test_the_pareto_figure_has_a_mark_a_treatment_and_the_start() -> None:
    """Hack along x and solve along y, each treatment by name, the start a cross; one treatment is no comparison."""
    axes = axes_of(
        pareto,
        [
            treatment("vanilla", (0.0, 0.75), (0.0, 0.75), solve=0.5),
            treatment("gated", (0.0, 0.25), (0.0, 0.25), solve=0.625),
            treatment("closed", (0.0, 0.0), solve=0.75),
        ],
    )
    assert series(axes) == {
        "vanilla (baseline)": [(0.75, 0.5)],
        "gated": [(0.25, 0.625)],
        "closed": [(0.0, 0.75)],
        "start": [(0.0, 0.625)],
    }
    assert drawn("pareto", pareto, [treatment("vanilla", (0.0, 0.5))]) is None


def rated(name: str, *runs: list[tuple[int, float | None, float | None, float | None]]) -> Treatment:
    """Seeds whose policy was (elo, low, high) above the base at these steps."""
    trained = []
    for seed, points in enumerate(runs):
        evals = []
        for step, *elo in points:
            base, low, high = (None if end is None else -end for end in (elo[0], elo[2], elo[1]))
            ladders = (
                None
                if base is None
                else dict.fromkeys(("solve", "honest"), {"base": base, "base_low": low, "base_high": high})
            )
            evals.append({"step": step, "weights": "deployed", "elo": ladders})
        run = SimpleNamespace(path=Path(f"{name}-{seed}"), evals=evals)
        trained.append(EvaluatedRun(run=run, seed=seed, by_step={row["step"]: {} for row in evals}))  # type: ignore[arg-type]
    return Treatment(name=name, runs=trained)


def test_the_ladder_is_above_the_base_with_the_interval_of_its_run() -> None:
    """Of several seeds their mean where all were evaluated; an interval with one end is none."""
    alone = rated("vanilla", [(0, 0.0, None, None), (10, 120.0, 30.0, 260.0), (20, 90.0, -20.0, None)])
    axes = axes_of(ladder, [alone], "solve")
    assert series(axes) == {"vanilla": [(0, 0.0), (10, 120.0), (20, 90.0)]}
    assert (30.0, 260.0) in intervals(axes)
    assert not any(-20.0 in ends for ends in intervals(axes))
    two = rated(
        "gated",
        [(0, 0.0, None, None), (10, 100.0, None, None), (20, 50.0, None, None)],
        [(0, 0.0, None, None), (10, 200.0, None, None)],
    )
    assert [y for _, y in series(axes_of(ladder, [two], "honest"))["gated"]] == [0.0, 150.0]
    old = rated("old", [(0, None, None, None)])
    assert drawn("old", ladder, [old], "solve") is None
    assert best_checkpoint([old]) is None


def test_runs_of_one_arm_under_other_settings_are_another_curve() -> None:
    """A mean over seeds is a mean over seeds: not over a penalty or a gate as well."""

    def config(seed: int, arm: str = "vanilla", beta: float = 0.0) -> tuple[str, dict]:
        settings = {"verb": "train", "seed": seed, "preregistered": None}
        settings |= {"intervention": {"arms": [arm]}, "objective": {"beta": beta}}
        return arm, {"settings": settings, "base_weights_sha256": "w", "directions": {"pairs_sha256": "p"}}

    runs = [config(0), config(0, "projected"), config(0, beta=1.0), config(1), config(1, beta=1.0), config(2, "random")]
    assert group_names(runs) == ["vanilla", "projected", "beta 1.0", "vanilla", "beta 1.0", "random"]
    assert group_names([*runs, config(0, "projected", 1.0)])[-1] == "projected: beta", "the other name is taken"


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


def test_a_curve_is_of_what_would_be_used(maker, report_of) -> None:
    """Of the deployed weights, where an arm that routes has others; in the loophole that was trained on."""
    (run,) = report_of(maker(name="routed", arms=("vanilla",), trains=True, tokens=False, rates=[0.1, 0.5])).runs
    routed = [row | {"weights": "trained", "rates": {"all": rates(hack=1.0)}} for row in run.evals]
    report = SimpleNamespace(runs=[replace(run, evals=[*run.evals, *routed])], spec=None)
    (found,) = treatments_of(report)  # type: ignore[arg-type]
    assert found.rate("hack", 5).value == 0.5
    evals = [row | {"rates": {"all": rates(hack=0.25), "run_tests": rates(hack=0.75)}} for row in run.evals]
    report = SimpleNamespace(runs=[replace(run, evals=evals)], spec=None)
    (found,) = treatments_of(report)  # type: ignore[arg-type]
    assert found.rate("hack", 5).value == 0.75
