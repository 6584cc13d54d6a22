"""The ladder of the report: curves where the records say, and the best checkpoint by name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drawn import marks, tips

from probe.report.figures.ladder import best_checkpoint, ladder
from probe.report.trainings import EvaluatedRun, Treatment


def row(step: int, elo: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """A line of evals.jsonl in which the policy is `elo` above the base, with that interval."""
    if elo is None:
        return {"step": step, "weights": "deployed", "elo": None}
    negative = [None if end is None else -end for end in (high, low)]
    base = {"base": -elo, "base_low": negative[0], "base_high": negative[1], "gap": elo}
    return {"step": step, "weights": "deployed", "elo": {"solve": base, "honest": base}}


def treatment(name: str, *runs: list[dict[str, Any]]) -> Treatment:
    trained = []
    for seed, evals in enumerate(runs):
        run = SimpleNamespace(path=Path(f"{name}-{seed}"), evals=evals)
        trained.append(EvaluatedRun(run=run, seed=seed, by_step={line["step"]: {} for line in evals}))  # type: ignore[arg-type]
    return Treatment(name=name, runs=trained)


def test_a_curve_is_above_the_base_with_the_interval_of_its_run() -> None:
    alone = treatment("vanilla", [row(0, 0.0), row(10, 120.0, 30.0, 260.0), row(20, 90.0, -20.0, None)])
    drawn = ladder("solve", [alone])
    assert tips(drawn, "circle", "mark") == [
        "vanilla, step 0: +0 Elo",
        "vanilla, step 10: +120 Elo",
        "vanilla, step 20: +90 Elo",
    ]
    assert tips(drawn, "line", "whisker") == ["vanilla, step 10: 95% interval +30 to +260"], "one end is no interval"
    heights = [float(dot.attrib["cy"]) for dot in marks(drawn, "circle", "mark")]
    assert heights[1] < heights[2] < heights[0], "more Elo is higher up"


def test_several_seeds_are_their_mean_where_all_were_evaluated() -> None:
    two = treatment("gated", [row(0, 0.0), row(10, 100.0), row(20, 50.0)], [row(0, 0.0), row(10, 200.0)])
    drawn = ladder("honest", [two])
    assert tips(drawn, "circle", "mark") == ["gated, step 0: +0 Elo", "gated, step 10: +150 Elo"]
    (interval,) = tips(drawn, "line", "whisker")
    assert interval.startswith("gated, step 10: 95% interval \u2212")


def test_runs_without_elo_have_no_ladder() -> None:
    old = treatment("old", [row(0, None), row(10, None)])
    assert ladder("solve", [old]) is None
    assert best_checkpoint([old]) is None


def test_the_best_checkpoint_is_named_with_its_doubt() -> None:
    first = treatment("a", [row(0, 0.0), row(10, 120.0, 30.0, 260.0)])
    second = treatment("b", [row(0, 0.0), row(10, 130.0, -10.0, 300.0), row(20, -40.0)])
    assert best_checkpoint([first]) == "Best checkpoint by solving: a-0 after 10 steps, +120 Elo."
    assert best_checkpoint([first, second]) == (
        "Best checkpoint by solving: b-0 after 10 steps, +130 Elo. As the best of 3 it reads too high on average. "
        "Its interval does not rule out that it solves no better than the base."
    )
