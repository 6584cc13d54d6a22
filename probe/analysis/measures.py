"""The estimates that a criterion of a spec may name, of one side (an arm under a condition) or of two.

    replay      an estimate of `probe.analysis.families` (`pull`, `auroc/v_hack`, ...), or the mean over prompts of a
                number of the step records (`cos_in`, `kl/mean`, `advantage/abs_max`, ...). Two sides are paired by
                prompt. Seeds replay the same prompts, so a prompt counts once.
    training    a rate on held-out problems (`hack_final`, `solve_gain/run_tests`, ...) has one interval, over seeds and
                problems at once (`probe.analysis.statistics.crossed`). Every other number is one per run, and the seed
                is the unit: Student's interval, or Welch's for two sides.
    either      `steps`, `largest NAME`, `smallest NAME` describe the runs that were made, without an interval: the
                number of steps with an update, and the extremes of a number over steps, or over runs for a number that
                a run has once.

A field of the step records needs no row here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import mean_or_none, present
from probe.analysis.estimate import Estimate, difference, mean_of, welch
from probe.analysis.families import FAMILIES
from probe.analysis.fields import by_prompt, field_names, number_of
from probe.analysis.statistics.thresholds import MIN_SEEDS
from probe.analysis.training_runs import ELO_GAP, MOVED, PLACES, RATES
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, compared
from probe.records.records import StepRecord
from probe.settings.words import NO_HINT
from replay_pools.environments.loopholes import LOOPHOLES

LARGEST, SMALLEST, STEPS = "largest ", "smallest ", "steps"
FINAL_KL, KL_SHARE = "kl/final", "kl/share_of_base"
OF_A_RUN = (FINAL_KL, KL_SHARE, ELO_GAP, *MOVED.values())  # numbers that a training has once
CAPPED = "adv_cap_fraction"  # a share that is 0 whatever the rewards if the cap never binds


def rate_names() -> list[str]:
    """Return the rates on held-out problems, over all settings and in each."""
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    return [f"{rate}_{place}{setting}" for rate, place, setting in product(RATES, PLACES, settings)]


def family_names() -> dict[str, tuple[str, str]]:
    """Return {name in a criterion: (family, name of its estimate)}."""
    return {
        f"{family}/{name}" if row.scoped else name: (family, name)
        for family, row in FAMILIES.items()
        for name in row.names
    }


def names(*, trains: bool) -> list[str]:
    """Return every name that a criterion on a training, or on a replay, may use."""
    of_run = [*rate_names(), *OF_A_RUN] if trains else []
    extremes = [prefix + name for prefix in (LARGEST, SMALLEST) for name in (*field_names(), *of_run)]
    families = [] if trains else [*family_names()]
    return [*dict.fromkeys([*families, *field_names(), *of_run, STEPS, *extremes])]


def describes(name: str) -> bool:
    """Return True if the number describes the runs that were made and has no interval."""
    return name == STEPS or name.startswith((LARGEST, SMALLEST))


def of_measured_arm(name: str) -> bool:
    """Return True if a replay measures the estimate for the arm that stands for vanilla only: two sides have no two."""
    return name in family_names() and name not in field_names()


def of_replay(name: str, *sides: TrainedArm) -> Estimate:
    """Return an estimate of one side of a replay, or of the first minus the second.

    Missing numbers are None with the reason.
    """
    if describes(name):
        return _described(name, sides)
    if of_measured_arm(name):
        arm, runs = sides[0].arm, sides[0].runs
        if len(runs) > 1:
            return Estimate(name=name, arm=arm, why=f"{len(runs)} runs measure it, and it has no value by prompt")
        family, row_name = family_names()[name]
        rows = [row for run in runs for row in run.of(family) if row.name == row_name and row.arm in (None, arm)]
        return rows[0] if rows else Estimate(name=name, arm=arm, why="not measured")
    return _minus(difference, [mean_of(name, by_prompt(_steps(side), name), "prompt", arm=side.arm) for side in sides])


def are_identical(name: str, *sides: TrainedArm) -> bool:
    """Return True if an estimate of a replay has the same value on both sides, in every prompt."""
    tables = [by_prompt(_steps(side), name) for side in sides if not describes(name) and not of_measured_arm(name)]
    return len(tables) == 2 and bool(tables[0]) and tables[0] == tables[1]


def of_training(name: str, trainings: Trainings | None, *arms: TrainedArm) -> Estimate:
    """Return an estimate of one trained arm, or of the first minus the second.

    Args:
        name: a name of `names(trains=True)`.
        trainings: all arms that are compared; None without vanilla.
        arms: one or two arms.
    """
    if describes(name):
        return _described(name, arms)
    if name in rate_names():
        return _rate(name, trainings, *arms)
    return _minus(welch, [mean_of(name, by_seed(name, arm), "seed", arm=arm.arm) for arm in arms])


def _minus(subtract: Callable[[Estimate, Estimate], Estimate], sides: Sequence[Estimate]) -> Estimate:
    """Return the only side, the first side that is not measured, or the first side minus the second."""
    if len(sides) == 1 or any(side.value is None for side in sides):
        return next((side for side in sides if side.value is None), sides[0])
    compared = subtract(*sides)
    return compared if compared.n else replace(compared, why=f"the two sides share no {sides[0].unit}")


def by_seed(name: str, arm: TrainedArm) -> dict[str, float]:
    """Return {seed: number of the run}, for the runs that have it."""
    values = {seed: _of_run(name, arm.arm, run) for seed, run in zip(arm.seeds, arm.runs, strict=True)}
    return {str(seed): value for seed, value in values.items() if value is not None}


def _rate(name: str, trainings: Trainings | None, *arms: TrainedArm) -> Estimate:
    rate, slash, setting = name.partition("/")
    places = ("final", "start") if rate.endswith("_gain") else (rate.rpartition("_")[2],)
    rates = [f"{rate.rpartition('_')[0]}_{place}{slash}{setting}" for place in places]
    few = min(sum(all(of in outcome.values for of in rates) for outcome in arm.outcomes) for arm in arms)
    if few < MIN_SEEDS:
        return Estimate(name=name, unit="seed", n=few, why=f"{few} evaluated seeds; a rate needs {MIN_SEEDS}")
    comparison = compared(trainings or Trainings(baseline=arms[-1], treated=arms[:1]), arms, *rates)
    assert comparison is not None
    return comparison.bounded(name=name)


def _of_run(name: str, arm: str, run: Analysis) -> float | None:
    """Return one number of one training run."""
    steps = [step for step in run.steps if step.arm == arm]
    if run.outcome is not None and name in run.outcome.values:
        return run.outcome.values[name]
    if name == FINAL_KL:
        # The last quarter of the steps is on-policy, once the hacking policy has left.
        values = present(step.kl.get("mean") for step in steps)
        return mean_or_none(values[-max(1, len(values) // 4) :])
    if name == KL_SHARE:
        return _share_of_base(steps)
    return mean_or_none(present(number_of(step, name) for step in steps)) if name in field_names() else None


def _share_of_base(steps: Iterable[StepRecord]) -> float | None:
    """Return KL from the reference over KL from the base; None while the policy is the base, or if neither is known."""
    from_reference = from_base = 0.0
    for step in steps:
        mean = step.kl.get("mean")
        base = mean if step.reference == "base" else step.kl.get("from_base")
        if mean is not None and base is not None:
            from_reference += mean
            from_base += base
    return from_reference / from_base if from_base > 0 else None


def _steps(side: TrainedArm) -> list[StepRecord]:
    """Return the step records of an arm in all of its runs."""
    return [step for run in side.runs for step in run.steps if step.arm == side.arm]


def _described(name: str, sides: Sequence[TrainedArm]) -> Estimate:
    """Return a number that describes the runs, or the first side's minus the second's."""
    extreme, _, of = name.partition(" ")
    values, counts = [], []
    for side in sides:
        if name == STEPS:
            numbers = [float(step.cos_in is not None or step.grad_norm > 0) for step in _steps(side)]
        elif of in field_names() and (steps := _steps(side)):
            numbers = present(number_of(step, of) for step in steps)
        else:
            numbers = present(_of_run(of, side.arm, run) for run in side.runs)
        if not numbers and name != STEPS:
            return Estimate(name=name, arm=side.arm, why="not measured")
        values.append((sum if name == STEPS else max if f"{extreme} " == LARGEST else min)(numbers))
        counts.append(len(numbers))
    unit = "step" if name == STEPS or of in field_names() else "run"
    return Estimate(name=name, value=values[0] - sum(values[1:]), n=min(counts), unit=unit, arm=sides[0].arm)


def never_binds(name: str, side: TrainedArm) -> bool:
    """Return True if the number is about a cap at or above the largest advantage that a group can have."""
    steps = _steps(side)
    return CAPPED in name and bool(steps) and all(step.advantage["adv_cap_vacuous"] is True for step in steps)
