"""The ladder: Elo of the policy above the base at every evaluation of its training, as evals.jsonl has it.

A line for each treatment, the mean over its seeds; the base is the line at 0. `probe.analysis.ladder` says what
the numbers are. To draw another ladder: add it to TITLES.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.analysis.ladder import BASE
from probe.analysis.statistics.intervals import t_interval
from probe.analysis.training_outcome import deployed
from probe.report.figures.learning import BOTTOM, DODGE, END, MOST_NAMED, TOP, write_names
from probe.report.figures.panel import LEFT, Figure, Panel, Scale, scale_of, signed
from probe.report.trainings import EvaluatedRun, Treatment

TITLES = {"solve": "Elo of solving, held out", "honest": "Elo of staying honest, held out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A treatment at one evaluation, in Elo above the base."""

    step: int
    value: float
    low: float | None  # of the 95% interval; None: unknown, or nothing bounds this end
    high: float | None


def ladder(name: str, treatments: Sequence[Treatment]) -> Figure | None:
    """One ladder; treatments beyond the first MOST_NAMED are grey lines. None where no run recorded Elo."""
    drawn = [(treatment, points) for treatment in treatments if (points := _points(name, treatment))]
    if not drawn:
        return None
    panel = Panel(f"ladder-{name}", TITLES[name], BOTTOM + 40, f"0 is the base; {_words(drawn)}")
    values = []
    for _, points in drawn:
        for point in points:
            values += [value for value in (point.value, point.low, point.high) if value is not None]
    last = max(points[-1].step for _, points in drawn)
    x, y = Scale(0, max(last, 1), LEFT, END), scale_of(values, BOTTOM, TOP, least=(0.0,))
    panel.y_axis(y, "", count=5, right=END)
    panel.x_axis(x, BOTTOM, "optimizer steps", count=5, whole=True)
    for treatment, points in drawn[MOST_NAMED:]:
        panel.path([(x(point.step), y(point.value)) for point in points], "other", treatment.name)
    names = []
    named = drawn[:MOST_NAMED]
    # The first treatment, which the others are compared with, is drawn last, over them.
    for color, (treatment, points) in reversed(list(enumerate(named))):
        shift = DODGE * (color - (len(named) - 1) / 2)
        names.append((_draw(panel, x, y, treatment, points, color, shift), treatment.name, color))
    write_names(panel, names)
    return panel.figure()


def best_checkpoint(treatments: Sequence[Treatment]) -> str | None:
    """A sentence that names the checkpoint with the highest Elo of solving; None where no run recorded Elo."""
    rated = []
    for treatment in treatments:
        for trained in treatment.runs:
            points = [(point, trained.run.path.name) for point in _run_points("solve", trained) if point.step > 0]
            rated += points
    if not rated:
        return None
    best, run = max(rated, key=lambda entry: entry[0].value)
    chosen = f" As the best of {len(rated)} it reads too high on average." if len(rated) > 1 else ""
    told = best.low is not None and best.low > 0
    doubt = "" if told else " Its interval does not rule out that it solves no better than the base."
    return f"Best checkpoint by solving: {run} after {best.step} steps, {signed(best.value, 0)} Elo.{chosen}{doubt}"


def _run_points(name: str, trained: EvaluatedRun) -> list[Point]:
    """The evaluations of one run that recorded Elo."""
    points = []
    for row in deployed(trained.run.evals):
        # Lines of evals.jsonl have the base as seen from the policy: the policy's Elo is the negative.
        if elo := row.get("elo"):
            base, low, high = (elo[name][key] for key in (BASE, f"{BASE}_low", f"{BASE}_high"))
            point = Point(
                step=row["step"],
                value=-base,
                low=None if high is None else -high,
                high=None if low is None else -low,
            )
            points.append(point)
    return points


def _points(name: str, treatment: Treatment) -> list[Point]:
    """The mean over seeds where all were evaluated, with Student's interval over seeds; of one seed its own."""
    runs = [{point.step: point for point in _run_points(name, trained)} for trained in treatment.runs]
    if len(runs) == 1:
        return [*runs[0].values()]
    points = []
    for step in treatment.steps:
        values = [run[step].value for run in runs if step in run]
        if len(values) == len(runs):
            interval = t_interval(values)
            low, high = (None, None) if interval is None else (interval.low, interval.high)
            points.append(Point(step=step, value=float(np.mean(values)), low=low, high=high))
    return points


def _words(drawn: Sequence[tuple[Treatment, Sequence[Point]]]) -> str:
    """What an interval is of."""
    if all(len(treatment.runs) == 1 for treatment, _ in drawn):
        return "one seed, 95% over problems"
    return "95% over seeds; of one seed, over problems"


def _draw(
    panel: Panel, x: Scale, y: Scale, treatment: Treatment, points: Sequence[Point], color: int, shift: float
) -> float:
    """The line of one treatment, with the intervals that have two ends. Returns where its last value is."""
    line_color, dot_color = (f" arm-{color}", f"fill-{color}") if color else ("", "mark")
    for point in points:
        place = x(point.step) + shift
        where = f"{treatment.name}, step {point.step}"
        if point.low is not None and point.high is not None:
            tip = f"{where}: 95% interval {signed(point.low, 0)} to {signed(point.high, 0)}"
            panel.line(place, y(point.low), place, y(point.high), f"whisker{line_color}", tip)
        panel.dot(place, y(point.value), dot_color, f"{where}: {signed(point.value, 0)} Elo", 3)
    panel.path([(x(point.step) + shift, y(point.value)) for point in points], "curve" + line_color, treatment.name)
    return y(points[-1].value)
