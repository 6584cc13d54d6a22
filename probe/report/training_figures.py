"""Figures of trainings: the curves of `probe.report.trainings`, and hack against solve at the end.

The first arm is the baseline of the comparison.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from probe.analysis.formatting import short
from probe.analysis.verdict.trained_arms import TrainedArm
from probe.report.drawing import ARMS, EDGE, HACK, PAPER, Figure, drawn
from probe.report.facts import plural
from probe.report.trainings import CURVES, rate_at, steps_of

MOST_NAMED = len(ARMS)  # further treatments are thin grey lines
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X"


def curves(axes: Axes, arms: Sequence[TrainedArm], name: str) -> None:
    """Draw a line with 95% intervals for each treatment; the first, the baseline, lies on top."""
    curve, intervals = CURVES[name], "Wilson 95%" if all(len(arm.runs) == 1 for arm in arms) else "95% over seeds"
    series = [(short(arm.name, 60), points) for arm in arms if (points := curve.of(arm))]
    last = max((max(points) for _, points in series), default=0)
    for place, (label, points) in enumerate(series):
        over, steps, values = 3 - place / 100, [*map(float, points)], [point.span[1] for point in points.values()]
        if place >= MOST_NAMED:
            label = plural(len(series) - MOST_NAMED, "other treatment")
            axes.plot(steps, values, color=EDGE, alpha=0.55, lw=1, zorder=2, label=label)
            continue
        if any(point.is_bounded for point in points.values()):  # shifted, or intervals would hide one another
            shift = 0.008 * last * (place - (min(len(series), MOST_NAMED) - 1) / 2)
            steps = [step + shift for step in steps]
        marker = "o" if len(points) <= 40 else ""
        axes.plot(steps, values, color=ARMS[place], ls=DASHES[place], marker=marker, ms=3.5, zorder=over, label=label)
        for step, point in zip(steps, points.values(), strict=True):
            if point.is_bounded:
                axes.plot((step, step), (point.low, point.high), color=ARMS[place], alpha=0.45, lw=1, zorder=over)
    axes.set_title(curve.title)
    axes.set(xlabel="optimizer steps (number)", ylabel=curve.unit)
    if curve.is_rate:
        axes.set(ylabel=f"{curve.unit} ({intervals})", ylim=(-0.03, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def pareto(axes: Axes, arms: Sequence[TrainedArm]) -> None:
    """Draw final hack and solve rates with 95% intervals: the upper left is best, and below the cross solving drops."""
    ends = []
    for arm in arms:
        hack, solve = (rate_at(arm, metric, max(steps_of(arm), default=-1)) for metric in ("hack", "solve"))
        if hack is not None and solve is not None:
            ends.append((arm, hack, solve))
    if len(ends) < 2:
        return
    for place, (arm, hack, solve) in enumerate(ends):
        color, marker = ARMS[place % MOST_NAMED], MARKERS[place % len(MARKERS)]
        if hack.is_bounded:
            axes.plot((hack.low, hack.high), (solve.value,) * 2, color=color, alpha=0.35, lw=1)
        if solve.is_bounded:
            axes.plot((hack.value,) * 2, (solve.low, solve.high), color=color, alpha=0.35, lw=1)
        label = short(arm.name, 60) if place else f"{arm.name} (baseline)"
        face = PAPER if place else color
        axes.plot([hack.value], [solve.value], marker, color=color, mfc=face, ms=6, mew=1.4, label=label, ls="none")
    starts = [(rate_at(arm, "hack", 0), rate_at(arm, "solve", 0)) for arm, *_ in ends]
    known = [(hack.value, solve.value) for hack, solve in starts if hack is not None and solve is not None]
    if known:
        mean = [sum(values) / len(known) for values in zip(*known, strict=True)]
        axes.plot(*([value] for value in mean), "+", color=HACK, ms=10, mew=2, label="start", ls="none")
    # Limits come from the values only: intervals of few seeds are wide and are cut at the frame.
    solves = [solve.value for _, _, solve in ends] + [solve for _, solve in known]
    axes.set(xlim=(-0.03, 1.03), ylim=(max(min(solves) - 0.12, -0.03), min(max(solves) + 0.12, 1.03)))
    axes.set_title("Hack against solve after training")
    axes.set(xlabel="hack rate, held out (95%)", ylabel="solve rate, held out (95%)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def figures_of_training(arms: Sequence[TrainedArm]) -> list[Figure]:
    """Return the figures that have something to draw: hack and solve, one against the other, and the rest."""
    figures = [drawn(name, curves, arms, name) for name in CURVES]
    figures.insert(2, drawn("pareto", pareto, arms))
    return [figure for figure in figures if figure is not None]
