"""Curves of trained arms over seeds: held-out rates and quantities of the step records. Torch-free.

arms = trained_arms(report)                  the baseline of the comparison comes first
rate_at(arms[0], "hack", steps_of(arms[0])[-1])
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.crossed import compare, rate
from probe.analysis.statistics.intervals import Interval
from probe.analysis.training_runs import deployed
from probe.analysis.verdict.trained_arms import TrainedArm, arms_of
from probe.records.records import StepRecord
from probe.report.inputs import Report
from probe.settings.words import ALL

Curve = Mapping[int, Estimate]  # by optimizer step


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
    found = compared.bounded(name=metric)
    return replace(found, interval=Interval(low=max(found.low, 0.0), high=found.high))


def curve(arm: TrainedArm, metric: str) -> Curve:
    """Return a held-out rate at every common step."""
    return {step: found for step in steps_of(arm) if (found := rate_at(arm, metric, step)) is not None}


def in_training(arm: TrainedArm, field: str) -> Curve:
    """Return the mean over seeds of a row of IN_TRAINING, at the steps with a value for every seed."""
    values: dict[int, list[float]] = {}
    for run in arm.runs:
        for step in run.steps:
            value = IN_TRAINING[field][2](step)
            if value is not None:
                values.setdefault(step.step, []).append(float(value))
    whole = {step: of for step, of in sorted(values.items()) if len(of) == len(arm.runs)}
    return {step: Estimate(name=field, value=fmean(of)) for step, of in whole.items()}
