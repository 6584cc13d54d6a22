"""Curves of trained arms over seeds: held-out rates and quantities of the step records. Torch-free.

arms = trained_arms(report)                  the baseline of the comparison comes first
rate_at(arms[0], "hack", steps_of(arms[0])[-1])
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from probe.analysis.analyze import Analysis
from probe.analysis.statistics.crossed import mean, rate
from probe.analysis.training_runs import deployed
from probe.analysis.verdict.trained_arms import TrainedArm, arms_of
from probe.records.records import StepRecord
from probe.report.inputs import Report
from probe.settings.words import ALL


class Point(NamedTuple):
    """A value of an arm at one step, with its 95% interval over seeds, or within the only seed."""

    step: int
    value: float
    low: float | None = None  # None: unknown or unbounded
    high: float | None = None


# {field: (title, unit, value of a step)}
IN_TRAINING: Mapping[str, tuple[str, str, Callable[[StepRecord], float | bool | None]]] = {
    "solve": ("Solve rate in training", "share of the sampled rollouts", lambda step: step.solve),
    "entropy": ("Entropy of the policy", "nats a sampled token", lambda step: step.entropy),
    "loss": ("Loss whose gradient is taken, before projection", "loss (nats a token)", lambda step: step.loss),
    "abs-advantage": (
        "Mean |A| after credit and cap",
        "|A|, mean over completion tokens",
        lambda step: step.advantage["advantage/abs_mean"],
    ),
}


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


def rate_at(arm: TrainedArm, metric: str, step: int) -> Point | None:
    """Return a held-out rate (`hack`, `exploit` or `solve`) at a step; None if a run graded nothing.

    The interval over several seeds is at least as wide as the sampling of outcomes implies; one seed has Wilson's.
    """
    rates = [rates_of(run)[step] for run in arm.runs]
    values = [row[metric]["rate"] for row in rates]
    if None in values:
        return None
    if len(arm.runs) == 1:
        bounds = rates[0][metric]["interval"] or {}
        return Point(step, values[0], bounds.get("low"), bounds.get("high"))
    compared = mean(rate([[value] for value in values], sum(row["num_rollouts"] for row in rates)))
    assert compared is not None  # because there are two seeds
    bounds = compared.bounded()
    return Point(step, sum(values) / len(values), max(bounds.low, 0.0), bounds.high)


def curve(arm: TrainedArm, metric: str) -> list[Point]:
    """Return a held-out rate at every common step."""
    return [point for step in steps_of(arm) if (point := rate_at(arm, metric, step)) is not None]


def in_training(arm: TrainedArm, field: str) -> list[Point]:
    """Return the mean over seeds of a row of IN_TRAINING, at the steps with a value for every seed."""
    values: dict[int, list[float]] = {}
    for run in arm.runs:
        for step in run.steps:
            value = IN_TRAINING[field][2](step)
            if value is not None:
                values.setdefault(step.step, []).append(float(value))
    return [Point(step, fmean(of)) for step, of in sorted(values.items()) if len(of) == len(arm.runs)]
