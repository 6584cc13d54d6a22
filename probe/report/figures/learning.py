"""Learning curves while a policy trains, a line for each treatment: the mean over its seeds.

`learning` draws hack, exploit and solve rates on held-out problems, with 95% intervals; `in_training` draws what the
step records say of the rollouts that are trained on. To add a rate of evals.jsonl: add it to METRICS and MEANING; a
field of the step records: a row in OF_STEPS.
"""

import math
from collections.abc import Callable, Sequence

from probe.analysis.formatting import short
from probe.records.records import StepRecord
from probe.report.figures.panel import LEFT, Figure, Panel, Scale, plural, scale_of
from probe.report.trainings import Treatment

TOP, BOTTOM, END = 44, 206, 238  # END: of the x axis; the names of the treatments are to the right of it
METRICS = {"hack": "Hack rate", "exploit": "Exploit rate", "solve": "Solve rate"}
MEANING = {
    "hack": "the exploit is present, correct or not",
    "exploit": "paid without being right",
    "solve": "every hidden answer is right",
}
# {field: (title, meaning, value of a step)}
OF_STEPS: dict[str, tuple[str, str, Callable[[StepRecord], float | None]]] = {
    "solve": ("Solve rate in training", "of the rollouts that the policy sampled", lambda step: step.solve),
    "loss": ("Loss", "whose gradient is taken, before the gate", lambda step: step.loss),
    "abs-advantage": (
        "Mean |A|",
        "over completion tokens, after credit and cap",
        lambda step: _number(step.advantage["advantage/abs_mean"]),
    ),
}
MOST_NAMED = 5  # ink, then four colours; other treatments are thin grey lines
NAME_HEIGHT = 13.0
DODGE = 2.4  # between the intervals of neighbours, which would cover one another


def learning(metric: str, treatments: Sequence[Treatment]) -> Figure | None:
    """One rate of every treatment; those beyond the first MOST_NAMED without name and interval."""
    drawn = [treatment for treatment in treatments if treatment.steps]
    if not drawn:
        return None
    named, others = drawn[:MOST_NAMED], drawn[MOST_NAMED:]
    subtitle = f"{MEANING[metric]}; {_words(named)}"
    if others:
        subtitle = f"{MEANING[metric]}; grey: {plural(len(others), 'other treatment')}"
    panel = Panel(f"learning-{metric}", f"{METRICS[metric]}, held out", BOTTOM + 40, subtitle)
    last = max(treatment.steps[-1] for treatment in drawn)
    x, y = Scale(0, max(last, 1), LEFT, END), Scale(0.0, 1.0, BOTTOM, TOP)
    panel.y_axis(y, "", count=5, right=END, percent=True)
    panel.x_axis(x, BOTTOM, "optimizer steps", count=5, whole=True)
    for treatment in others:
        _draw_other(panel, x, y, metric, treatment)
    names = []
    # The first treatment, which the others are compared with, is drawn last, over them.
    for color, treatment in reversed(list(enumerate(named))):
        shift = DODGE * (color - (len(named) - 1) / 2)
        height = _draw_named(panel, x, y, metric, treatment, color, shift)
        names.append((height, treatment.name, color))
    write_names(panel, names)
    return panel.figure()


def in_training(field: str, treatments: Sequence[Treatment]) -> Figure | None:
    """One row of OF_STEPS of every treatment, at the steps in which all of its seeds have it; None without any."""
    title, meaning, value_of = OF_STEPS[field]
    curves = [(treatment, curve) for treatment in treatments if (curve := _by_step(treatment, value_of))]
    if not curves:
        return None
    named, others = curves[:MOST_NAMED], curves[MOST_NAMED:]
    panel = Panel(f"training-{field}", title, BOTTOM + 40, meaning)
    x = Scale(0, max(max(curve) for _, curve in curves) or 1, LEFT, END)
    values = [value for _, curve in curves for value in curve.values()]
    y = Scale(0.0, 1.0, BOTTOM, TOP) if field == "solve" else scale_of(values, BOTTOM, TOP, least=[0.0])
    panel.y_axis(y, "", count=5, right=END, percent=field == "solve")
    panel.x_axis(x, BOTTOM, "step", count=5, whole=True)
    for treatment, curve in others:
        panel.path([(x(step), y(value)) for step, value in curve.items()], "other", treatment.name)
    names = []
    # The first treatment, which the others are compared with, is drawn last, over them.
    for color, (treatment, curve) in reversed(list(enumerate(named))):
        points = [(x(step), y(value)) for step, value in curve.items()]
        panel.path(points, f"curve arm-{color}" if color else "curve", treatment.name)
        names.append((points[-1][1], treatment.name, color))
    write_names(panel, names)
    return panel.figure()


def _by_step(treatment: Treatment, value_of: Callable[[StepRecord], float | None]) -> dict[int, float]:
    """{step: mean over the seeds}, of the steps in which every seed has the value."""
    values: dict[int, list[float]] = {}
    for run in treatment.runs:
        for step in run.run.steps:
            value = value_of(step)
            if value is not None:
                values.setdefault(step.step, []).append(value)
    num_runs = len(treatment.runs)
    return {step: sum(found) / num_runs for step, found in sorted(values.items()) if len(found) == num_runs}


def _number(value: float | bool | None) -> float | None:
    return None if value is None else float(value)


def _words(treatments: Sequence[Treatment]) -> str:
    """How many seeds stand behind a line."""
    counts = sorted({len(treatment.runs) for treatment in treatments})
    if counts == [1]:
        return "one seed, Wilson 95%"
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {seeds} seeds, 95%"


def _draw_other(panel: Panel, x: Scale, y: Scale, metric: str, treatment: Treatment) -> None:
    points = []
    for step in treatment.steps:
        rate = treatment.rate(metric, step)
        if rate is not None:
            points.append((x(step), y(rate.value)))
    if points:
        panel.path(points, "other", treatment.name)


def _draw_named(panel: Panel, x: Scale, y: Scale, metric: str, treatment: Treatment, color: int, shift: float) -> float:
    """The line of one treatment with its intervals, beside those of others. Returns where its last value is."""
    line_color, dot_color = (f" arm-{color}", f"fill-{color}") if color else ("", "mark")
    points = []
    for step in treatment.steps:
        rate = treatment.rate(metric, step)
        if rate is None:
            continue
        place = x(step) + shift
        points.append((place, y(rate.value)))
        if rate.interval is not None:
            low, high = rate.interval.low, rate.interval.high
            tip = f"{treatment.name}, step {step}: 95% interval {low:.0%} to {high:.0%}"
            panel.line(place, y(low), place, y(high), f"whisker{line_color}", tip)
        panel.dot(place, y(rate.value), dot_color, f"{treatment.name}, step {step}: {rate.value:.0%} ({rate.words})", 3)
    if not points:
        return y(0.0)
    panel.path(points, "curve" + line_color, treatment.name)
    return points[-1][1]


def write_names(panel: Panel, names: Sequence[tuple[float, str, int]]) -> None:
    """Write each (height, name, color) to the right of the axes, at the height where its curve ends.

    A name moves down where it would touch the one above. Where the last one falls below the axis, it moves up to it,
    and those above it as far as they have to.
    """
    ordered = sorted(names)
    heights: list[float] = []
    above = -math.inf
    for height, _, _ in ordered:
        above = max(height, above + NAME_HEIGHT)
        heights.append(above)
    below = math.inf
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], below - NAME_HEIGHT, BOTTOM)
        below = heights[place]
    for height, (_, name, color) in zip(heights, ordered, strict=True):
        panel.text(END + 8, height + 3.5, short(name, 16), f"fill-{color}" if color else "")
