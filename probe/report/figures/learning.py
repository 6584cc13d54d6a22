"""Learning curves: hack, exploit and solve rates on held-out problems while a policy trains.

A thin line per seed, a thick one for the mean of an arm. To add a rate of evals.jsonl: add it to METRICS and MEANING.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.report.figures.panel import LEFT, Figure, Panel, Scale

TOP, BOTTOM, END = 44, 190, 262  # END: of the x axis; the names of the arms are to the right of it
METRICS = {"hack": "Hack rate", "exploit": "Exploit rate", "solve": "Solve rate"}
MEANING = {
    "hack": "the exploit is present, correct or not",
    "exploit": "paid without being right",
    "solve": "every hidden answer is right",
}
ARM_CLASSES = 5  # ink, then four colours


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The evaluations of one run."""

    arm: str  # or another name for runs that differ in their seed alone
    seed: int
    rows: Sequence[Mapping[str, Any]]  # of evals.jsonl


def learning(metric: str, curves: Sequence[Curve]) -> Figure | None:
    """One rate of every run; an arm with a single run has its Wilson intervals, one with several has their mean."""
    if not any(curve.rows for curve in curves):
        return None
    panel = Panel(f"learning-{metric}", f"{METRICS[metric]}, held out", BOTTOM + 40, MEANING[metric])
    last = max(row["step"] for curve in curves for row in curve.rows)
    x, y = Scale(0, max(last, 1), LEFT, END), Scale(0.0, 1.0, BOTTOM, TOP)
    for share in (0, 0.25, 0.5, 0.75, 1):
        panel.line(LEFT, y(share), END, y(share), "zero" if share == 0 else "grid")
        panel.text(LEFT - 6, y(share) + 3.5, f"{share:.0%}", "tick", "end")
    panel.x_axis(x, BOTTOM, "optimizer steps", count=5)
    names = []
    for i, arm in enumerate(dict.fromkeys(curve.arm for curve in curves)):
        color = i % ARM_CLASSES
        last_rate = _draw_arm(panel, x, y, metric, [curve for curve in curves if curve.arm == arm], color)
        names.append((y(last_rate), arm, color))
    for height, arm, color in _apart(names):
        panel.text(END + 6, height + 3.5, arm, f"fill-{color}" if color else "")
    return panel.figure()


def _draw_arm(panel: Panel, x: Scale, y: Scale, metric: str, curves: Sequence[Curve], color: int) -> float:
    """The lines of one arm: its seeds, and over them their mean. Returns the last value of the mean."""
    arm, several = curves[0].arm, len(curves) > 1
    line_color = f" arm-{color}" if color else ""
    for curve in curves:
        points = [(x(row["step"]), y(_rate(row, metric)["rate"] or 0.0)) for row in curve.rows]
        panel.path(points, ("thin" if several else "curve") + line_color, f"{arm}, seed {curve.seed}")
        if not several:
            _draw_intervals(panel, x, y, metric, curve)
    mean = _mean(curves, metric)
    words = f"seed {curves[0].seed}"
    if several:
        words = f"mean of {len(curves)} seeds"
        points = [(x(step), y(value)) for step, value in mean.items()]
        panel.path(points, "curve" + line_color, f"{arm}: {words}")
    dot_color = f"fill-{color}" if color else "mark"
    for step, value in mean.items():
        panel.dot(x(step), y(value), dot_color, f"{arm}, step {step}: {value:.0%} ({words})", r=2.6)
    return list(mean.values())[-1] if mean else 0.0


def _draw_intervals(panel: Panel, x: Scale, y: Scale, metric: str, curve: Curve) -> None:
    for row in curve.rows:
        rate = _rate(row, metric)
        interval = rate["interval"]
        if interval is not None:
            tip = f"Wilson 95% interval of {rate['count']} of {row['rates']['all']['num_rollouts']}"
            panel.line(x(row["step"]), y(interval["low"]), x(row["step"]), y(interval["high"]), "link", tip)


def _mean(curves: Sequence[Curve], metric: str) -> dict[int, float]:
    """{step: mean over the seeds that were evaluated there}, for the steps that all of them have."""
    rates_by_seed = []
    for curve in curves:
        if curve.rows:
            rates_by_seed.append({row["step"]: _rate(row, metric)["rate"] for row in curve.rows})
    means = {}
    for step in rates_by_seed[0] if rates_by_seed else ():
        rates = [by_step.get(step) for by_step in rates_by_seed]
        # A mean over fewer seeds at some of the steps would jump where a seed is missing.
        if None not in rates:
            means[step] = sum(rates) / len(rates)
    return means


def _rate(row: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """`count`, `rate` and `interval` of one metric in a row of evals.jsonl."""
    return row["rates"]["all"][metric]


def _apart(names: Sequence[tuple[float, str, int]], gap: float = 13.0) -> list[tuple[float, str, int]]:
    """(height, arm, color) from top to bottom, `gap` or more between heights.

    A name moves down where it would touch the one above; all move up if the last one falls below the axis.
    """
    placed: list[tuple[float, str, int]] = []
    for height, arm, color in sorted(names):
        if placed:
            height = max(height, placed[-1][0] + gap)
        placed.append((height, arm, color))
    over = max(0.0, placed[-1][0] - BOTTOM) if placed else 0.0
    return [(height - over, arm, color) for height, arm, color in placed]
