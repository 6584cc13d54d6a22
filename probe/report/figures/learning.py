"""Hack and solve rates on held-out problems while a policy trains: a line a seed, their mean by arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.report.figures.panel import LEFT, Figure, Panel, Scale

TOP, BOTTOM, END = 44, 190, 262
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
    """One rate of every run; a single run of an arm has its Wilson interval, several have their mean."""
    if not any(curve.rows for curve in curves):
        return None
    arms = list(dict.fromkeys(curve.arm for curve in curves))
    panel = Panel(f"learning-{metric}", f"{METRICS[metric]}, held out", BOTTOM + 40, MEANING[metric])
    last = max(row["step"] for curve in curves for row in curve.rows)
    x, y = Scale(0, max(last, 1), LEFT, END), Scale(0.0, 1.0, BOTTOM, TOP)
    for share in (0, 0.25, 0.5, 0.75, 1):
        panel.line(LEFT, y(share), END, y(share), "zero" if share == 0 else "grid")
        panel.text(LEFT - 6, y(share) + 3.5, f"{share:.0%}", "tick", "end")
    panel.x_axis(x, BOTTOM, "optimizer steps", count=5)
    ends = []
    for place, arm in enumerate(arms):
        own = [curve for curve in curves if curve.arm == arm]
        ends.append((y(_draw_arm(panel, x, y, metric, own, place % ARM_CLASSES)), arm, place % ARM_CLASSES))
    for height, arm, place in _apart(ends):
        panel.text(END + 6, height + 3.5, arm, f"fill-{place}" if place else "")
    return panel.figure()


def _draw_arm(panel: Panel, x: Scale, y: Scale, metric: str, curves: Sequence[Curve], place: int) -> float:
    """The lines of one arm; returns the last value of its main line."""
    color = f" arm-{place}" if place else ""
    for curve in curves:
        points = [(x(row["step"]), y(_rate(row, metric)["rate"] or 0.0)) for row in curve.rows]
        panel.path(points, ("thin" if len(curves) > 1 else "curve") + color, f"{curve.arm}, seed {curve.seed}")
        if len(curves) == 1:
            _intervals(panel, x, y, metric, curve)
    mean = _mean(curves, metric)
    if len(curves) > 1:
        points = [(x(step), y(value)) for step, value in mean.items()]
        panel.path(points, "curve" + color, f"{curves[0].arm}: mean of {len(curves)} seeds")
    for step, value in mean.items():
        what = f"mean of {len(curves)} seeds" if len(curves) > 1 else f"seed {curves[0].seed}"
        panel.dot(
            x(step),
            y(value),
            f"fill-{place}" if place else "mark",
            f"{curves[0].arm}, step {step}: {value:.0%} ({what})",
            r=2.6,
        )
    return list(mean.values())[-1] if mean else 0.0


def _intervals(panel: Panel, x: Scale, y: Scale, metric: str, curve: Curve) -> None:
    for row in curve.rows:
        interval = _rate(row, metric)["interval"]
        if interval is not None:
            tip = f"Wilson 95% interval of {_rate(row, metric)['count']} of {row['rates']['all']['num_rollouts']}"
            panel.line(x(row["step"]), y(interval["low"]), x(row["step"]), y(interval["high"]), "link", tip)


def _mean(curves: Sequence[Curve], metric: str) -> dict[int, float]:
    """{step: mean over the seeds that were evaluated there}, for the steps that all of them have."""
    tables = [{row["step"]: _rate(row, metric)["rate"] for row in curve.rows} for curve in curves if curve.rows]
    shared = [step for step in tables[0] if all(table.get(step) is not None for table in tables)] if tables else []
    return {step: sum(table[step] for table in tables) / len(tables) for step in shared}


def _rate(row: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    return row["rates"]["all"][metric]


def _apart(ends: Sequence[tuple[float, str, int]], gap: float = 13.0) -> list[tuple[float, str, int]]:
    """Labels at their heights, moved down where they would touch the one above, and all up if the last falls off."""
    placed: list[tuple[float, str, int]] = []
    for height, arm, place in sorted(ends):
        placed.append((max(height, placed[-1][0] + gap) if placed else height, arm, place))
    over = max(0.0, placed[-1][0] - BOTTOM) if placed else 0.0
    return [(height - over, arm, place) for height, arm, place in placed]
