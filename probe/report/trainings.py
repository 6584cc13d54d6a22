"""Trained arms over seeds: curves of held-out rates and of the step records, and hack against solve at the end.

    arms = trained_arms(report)                     the baseline of the comparison comes first
    CURVES["learning-hack"].of(arms[0])             {optimizer step: estimate}
    figures_of_training(arms)

To add a curve, add a row to CURVES.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.formatting import short
from probe.analysis.statistics.crossed import compare, rate
from probe.analysis.statistics.intervals import Interval
from probe.analysis.training_runs import deployed
from probe.analysis.verdict.trained_arms import TrainedArm, arms_of
from probe.records.records import StepRecord
from probe.report.analyses import Report
from probe.report.drawing import ARMS, EDGE, HACK, PAPER, Figure, drawn
from probe.report.facts import plural
from probe.settings.words import ALL

MOST_NAMED = len(ARMS)  # further treatments are thin grey lines
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X"


def trained_arms(report: Report) -> list[TrainedArm]:
    """Return the evaluated arms of a report, named as in its verdicts, with the baseline first."""
    arms = arms_of(report.analyses) if report.evaluation is None else report.evaluation.trained
    return [arm for arm in arms if arm.runs]


def rates_of(run: Analysis) -> dict[int, Mapping[str, Any]]:
    """Return {optimizer step: rates of the deployed weights, in the loophole of the training}."""
    mode = run.records.training.rollouts.mode
    return {row["step"]: row["rates"].get(mode) or row["rates"][ALL] for row in deployed(run.records.evals)}


def steps_of(arm: TrainedArm) -> list[int]:
    """Return the steps at which every run was evaluated, because a mean over changing seeds would jump."""
    return sorted(set.intersection(*({*rates_of(run)} for run in arm.runs)))


def rate_at(arm: TrainedArm, metric: str, step: int) -> Estimate | None:
    """Return a held-out rate (`hack`, `exploit` or `solve`) at a step; None if a run did not grade any rollout.

    The interval over several seeds is at least as wide as the sampling of outcomes implies; one seed has Wilson's.
    """
    rates = [rates_of(run).get(step, {metric: {"rate": None}}) for run in arm.runs]
    values = [row[metric]["rate"] for row in rates]
    if None in values:
        return None
    if len(arm.runs) == 1:
        ends = rates[0][metric]["interval"]
        return Estimate(name=metric, value=values[0], interval=None if ends is None else Interval(**ends))
    compared = compare(rate([[value] for value in values], sum(row["num_rollouts"] for row in rates)))
    assert compared is not None  # because there are two seeds
    estimate = compared.bounded(name=metric)
    return replace(estimate, interval=Interval(low=max(estimate.low, 0.0), high=estimate.high))


def _held_out(metric: str, arm: TrainedArm) -> dict[int, Estimate]:
    """Return a held-out rate at every common step."""
    return {step: rate for step in steps_of(arm) if (rate := rate_at(arm, metric, step)) is not None}


def _in_training(value_of: Callable[[StepRecord], Any], arm: TrainedArm) -> dict[int, Estimate]:
    """Return the mean over seeds of a value of the step records, at the steps with a value for every seed."""
    values: dict[int, list[float]] = {}
    for run in arm.runs:
        for step in run.steps:
            if (value := value_of(step)) is not None:
                values.setdefault(step.step, []).append(float(value))
    return {
        step: Estimate(name="", value=fmean(of_seeds))
        for step, of_seeds in sorted(values.items())
        if len(of_seeds) == len(arm.runs)
    }


class Curve(NamedTuple):
    """A quantity over the steps of a training."""

    title: str
    unit: str
    of: Callable[[TrainedArm], Mapping[int, Estimate]]
    is_rate: bool = False  # a share of held-out rollouts, with intervals


RATES = {
    "hack": "Hack rate: exploit present, correct or not",
    "solve": "Solve rate: every hidden answer is right",
    "exploit": "Exploit rate: paid without being right",
}
# {name of the figure: its curve}
CURVES: Mapping[str, Curve] = {
    f"learning-{metric}": Curve(title, f"{metric} rate, held out", partial(_held_out, metric), is_rate=True)
    for metric, title in RATES.items()
} | {
    f"training-{name}": Curve(title, unit, partial(_in_training, value_of))
    for name, title, unit, value_of in (
        ("solve", "Solve rate in training", "share of the sampled rollouts", lambda step: step.solve),
        ("entropy", "Entropy of the policy", "nats a sampled token", lambda step: step.entropy),
        ("loss", "Loss whose gradient is taken, before projection", "loss (nats a token)", lambda step: step.loss),
        (
            "abs-advantage",
            "Mean |A| after credit and cap",
            "|A|, mean over completion tokens",
            lambda step: step.advantage["advantage/abs_mean"],
        ),
    )
}


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
