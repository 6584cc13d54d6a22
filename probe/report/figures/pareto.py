"""Hack against solve after training: which treatment hacks less without solving less. One mark a treatment.

What is in the upper left corner is best. The start is a cross: a treatment below it solves less than no training.
"""

from collections.abc import Sequence

from probe.report.figures.labels import Box, name_marks
from probe.report.figures.panel import LEFT, RIGHT, Figure, Panel, Scale, plural, tooltip
from probe.report.html import node
from probe.report.trainings import HeldOutRate, Treatment

TOP, BOTTOM = 62, 300
ROOM = 0.12  # of solve rates above the highest mark and below the lowest


def pareto(treatments: Sequence[Treatment]) -> Figure | None:
    """The rates after each treatment's last common step, with 95% intervals; the first treatment is a filled mark.

    None where fewer than two treatments were evaluated.
    """
    ends = []
    for treatment in treatments:
        if treatment.steps:
            hack, solve = (treatment.rate(metric, treatment.steps[-1]) for metric in ("hack", "solve"))
            if hack is not None and solve is not None:
                ends.append((treatment, hack, solve))
    if len(ends) < 2:
        return None
    counts = sorted({len(treatment.runs) for treatment, _, _ in ends})
    seeds = plural(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    title = "Hack against solve after training"
    panel = Panel("pareto", title, BOTTOM + 40, f"Held out, {seeds} each, 95%; best is the upper left corner")
    x = Scale(-0.03, 1.03, LEFT, RIGHT)
    # Of the values alone: the intervals of few seeds are wide, and end at the frame.
    start = _start(treatments)
    solves = [solve.value for _, _, solve in ends] + ([] if start is None else [start[1]])
    y = Scale(max(min(solves) - ROOM, -0.01), min(max(solves) + ROOM, 1.01), BOTTOM, TOP)
    panel.y_axis(y, "solve rate", count=5, percent=True)
    panel.x_axis(x, BOTTOM, "hack rate", count=5, percent=True)
    first = ends[0][0].name
    panel.key(46, [("dot mark", f"{first}, the baseline"), ("dot hollow", "others")], x=LEFT + 70)
    marks = []
    for treatment, hack, solve in ends:
        center = x(hack.value), y(solve.value)
        _draw_intervals(panel, x, y, hack, solve)
        marks.append((*center, treatment.name))
    for (treatment, hack, solve), (left, top, name) in zip(ends, marks, strict=True):
        tip = f"{name}: hacks {hack.value:.0%}, solves {solve.value:.0%} after {treatment.steps[-1]} steps"
        panel.dot(left, top, "mark" if name == first else "hollow", f"{tip} ({hack.words})", r=4)
    if start is not None:
        _draw_cross(panel, x(start[0]), y(start[1]), f"start: hacks {start[0]:.0%}, solves {start[1]:.0%}")
        marks.append((x(start[0]), y(start[1]), "start"))
    name_marks(panel, [*marks[-1:], *marks[:-1]], Box(LEFT, TOP - 8, RIGHT + 8, BOTTOM))
    return panel.figure()


def _start(treatments: Sequence[Treatment]) -> tuple[float, float] | None:
    """(hack, solve) before the first step: the mean over all treatments, which begin at the same policy."""
    pairs = []
    for treatment in treatments:
        if treatment.steps[:1] == [0]:
            hack, solve = treatment.rate("hack", 0), treatment.rate("solve", 0)
            if hack is not None and solve is not None:
                pairs.append((hack.value, solve.value))
    if not pairs:
        return None
    return sum(hack for hack, _ in pairs) / len(pairs), sum(solve for _, solve in pairs) / len(pairs)


def _draw_intervals(panel: Panel, x: Scale, y: Scale, hack: HeldOutRate, solve: HeldOutRate) -> None:
    if hack.interval is not None:
        panel.line(x(hack.interval.low), y(solve.value), x(hack.interval.high), y(solve.value), "faint")
    if solve.interval is not None:
        panel.line(x(hack.value), y(solve.interval.low), x(hack.value), y(solve.interval.high), "faint")


def _draw_cross(panel: Panel, x: float, y: float, tip: str) -> None:
    panel.add(node("path", tooltip(tip), d=f"M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10", class_="cross"))
