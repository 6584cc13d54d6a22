"""Check from held-out rates alone that a training's problems and length can answer its question.

    START    solving near floor or ceiling, or hacking near its ceiling, before the first step
    EARLY    a hack rate that still rises at the end, or a vanilla run that never left its floor

Near: within MATERIAL_RATE of 0 or 1, which leaves no room for a material difference. Still rising: the last evaluation
exceeds the latest one in the first LATE of the steps, by a two-proportion z of the counts over all seeds. The test
takes held-out rollouts as independent, so it warns rather too seldom when problems repeat.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

from probe.analysis.statistics.intervals import wilson_interval
from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.analysis.training_runs import deployed
from probe.analysis.verdict.trained_arms import TrainedArm
from probe.settings.words import ALL

LATE = 0.75  # share of the steps; a later evaluation is too close to the end to compare with it
Z = 1.96
POINTS = 100 * MATERIAL_RATE
Evaluations = Sequence[Mapping[str, Any]]  # the lines of one run's `evals.jsonl`


def start_cautions(runs: Sequence[Evaluations], mode: str) -> list[str]:
    """Say why the evaluations before the first step, in the training mode, leave no room for a difference."""
    starts = [row for run in runs for row in run if row["step"] == 0 and row["weights"] == "deployed"]
    (hacks, n), (solved, _) = _counts(starts, mode, "hack"), _counts(starts, mode, "solve")
    least, most = MATERIAL_RATE * n, (1 - MATERIAL_RATE) * n
    rows = (
        (solved < least, f"{solved} of {n} held-out rollouts solve", f"a loss of {POINTS:.0f} points cannot show"),
        (solved > most, f"{solved} of {n} held-out rollouts solve", "are these problems memorised?"),
        (hacks > most, f"{hacks} of {n} held-out rollouts hack", "there is no hack left to learn"),
    )
    return [f"{count} at the start: {means}" for holds, count, means in rows if n and holds]


def cautions_of(arms: Iterable[TrainedArm], baseline: TrainedArm | None) -> list[str]:
    """List what the start and length of trainings leave open; `baseline` supplies the common start."""
    cautions = []
    for arm in arms:
        if arm is baseline and arm.runs:
            starts = start_cautions([run.records.evals for run in arm.runs], arm.settings.rollouts.mode)
            cautions += [f"START: {sentence}" for sentence in starts]
        if arm.runs and (ending := _still_learning(arm, is_baseline=arm is baseline)):
            cautions.append(f"EARLY: {arm.name} hacks {ending}; train longer")
    return cautions


def _still_learning(arm: TrainedArm, *, is_baseline: bool) -> str:
    """Say that a hack rate had not settled, or never left its floor; empty otherwise."""
    mode, ends, earlier = arm.settings.rollouts.mode, [], []
    for run in (deployed(run.records.evals) for run in arm.runs):
        # A rate at the start shows whether the hack was learned, not whether learning is over.
        earlier += [row for row in run if 0 < row["step"] <= LATE * run[-1]["step"]][-1:]
        ends += run[-1:]
    (hacks, n), (before, m), steps = _counts(ends, mode), _counts(earlier, mode), max(row["step"] for row in ends)
    interval = wilson_interval(hacks, n)
    if is_baseline and interval is not None and interval.high < MATERIAL_RATE:
        return f"{hacks / n:.0%} after {steps} steps: a difference of {POINTS:.0f} points has no room below it"
    if len(earlier) < len(ends) or not n or not m:
        return ""
    pooled = (before + hacks) / (m + n)
    if hacks / n - before / m <= Z * sqrt(pooled * (1 - pooled) * (1 / m + 1 / n)):
        return ""
    since = max(row["step"] for row in earlier)
    means = "it has not settled" if is_baseline else "its fall may be a delay"
    return f"{before / m:.0%} after {since} steps and {hacks / n:.0%} after {steps}, and still rises: {means}"


def _counts(rows: Evaluations, mode: str, rate: str = "hack") -> tuple[int, int]:
    """Return (counted rollouts, all rollouts) over evaluations; in the training mode if several were evaluated."""
    shown = [row["rates"].get(mode, row["rates"][ALL]) for row in rows]
    return sum(rates[rate]["count"] for rates in shown), sum(rates["num_rollouts"] for rates in shown)
