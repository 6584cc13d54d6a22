"""The steps of each arm, one by one and together, against the Haar null, and of two arms on identical batches.

At frozen weights the steps are independent draws of prompts, and prompts are the unit. In a run that trains, the steps
are autocorrelated: the run is the unit, and no p-value over steps is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.measures.cells import mean_or_none, present
from probe.analysis.statistics.intervals import Interval, prompt_means, t_interval
from probe.analysis.statistics.nulls import HaarMean, haar_mean, haar_test
from probe.analysis.statistics.significance import Equivalence, equivalence_test, sign_flip_test
from probe.analysis.statistics.thresholds import NEAR_ZERO
from probe.records.records import StepRecord
from probe.settings.words import PROBLEM_SEPARATOR

Measure = Literal["cos_in", "cos_out", "hackward_frac_out"]
MEASURES: tuple[Measure, ...] = ("cos_in", "cos_out", "hackward_frac_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """One step of one arm; z and p are those of `cos_in` under Haar directions."""

    arm: str
    step: int
    problem_id: str
    cos_in: float | None
    cos_out: float | None
    hackward_frac_in: float | None
    frac_fired: float | None
    reward_spread: float
    haar_z: float | None
    haar_p: float | None
    null_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """All steps of one arm. Steps with a null cosine are counted in `num_null` and are in no mean."""

    arm: str
    num_steps: int
    num_null: int
    num_prompts: int  # problems of the steps with a cosine, each once
    trains: bool  # an optimizer stepped: steps are autocorrelated
    mean_cos_in: float | None  # mean over prompts; over steps where it trains
    interval: Interval | None  # 95%, Student, over prompts
    interval_90: Interval | None  # for equivalence at 5%
    sign_flip_p: float | None  # over prompts
    num_positive: int  # steps with cos_in > 0
    mean_cos_out: float | None
    num_lowered: int  # steps with cos_out < cos_in
    mean_frac_fired: float | None
    mean_hackward_frac_in: float | None
    mean_cos_update: float | None
    haar: HaarMean | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """`arm` minus `versus` in one measure, prompt by prompt."""

    metric: Measure
    arm: str
    versus: str
    num_prompts: int
    difference: float | None
    interval: Interval | None  # 95%, Student
    p: float | None  # sign-flip
    equivalence: Equivalence | None  # inside +-NEAR_ZERO
    identical: bool  # every prompt gives exactly the same number in both arms: nothing was compared


def trajectory(steps: Sequence[StepRecord]) -> list[TrajectoryRow]:
    """One row a step and arm, in the order of the records."""
    return [_row(step) for step in steps]


def summarise(steps: Sequence[StepRecord], arm: str, *, seed: int = 0) -> ArmSummary:
    """The steps of one arm together."""
    own = [step for step in steps if step.arm == arm]
    counted = [(step, step.cos_in) for step in own if step.cos_in is not None]
    by_prompt = list(prompt_means([cos for _, cos in counted], [step.problem_id for step, _ in counted]).values())
    trains = any(step.cos_update is not None for step in own)
    with_sd = [(cos, step.haar_sd) for step, cos in counted if step.haar_sd]
    return ArmSummary(
        arm=arm,
        num_steps=len(own),
        num_null=len(own) - len(counted),
        num_prompts=num_problems([step for step, _ in counted]),
        trains=trains,
        mean_cos_in=mean_or_none(by_prompt),
        interval=None if trains else t_interval(by_prompt),
        interval_90=None if trains else t_interval(by_prompt, level=0.9),
        sign_flip_p=None if trains else sign_flip_test(by_prompt, seed=seed).p,
        num_positive=sum(cos > 0 for _, cos in counted),
        mean_cos_out=mean_or_none(present(step.cos_out for step, _ in counted)),
        num_lowered=sum(step.cos_out is not None and step.cos_out < cos for step, cos in counted),
        mean_frac_fired=mean_or_none(present(step.frac_fired for step, _ in counted)),
        mean_hackward_frac_in=mean_or_none(present(step.hackward_frac_in for step, _ in counted)),
        mean_cos_update=mean_or_none(present(step.cos_update for step, _ in counted)),
        haar=haar_mean([cos for cos, _ in with_sd], [sd for _, sd in with_sd]),
    )


def compare_arms(
    steps: Sequence[StepRecord], arm: str, versus: str, metric: Measure, *, trains: bool, seed: int = 0
) -> ArmComparison:
    """Pair two arms by prompt. In a run that trains, the run is the unit, and no test over prompts is given."""
    a, b = (_by_prompt(steps, name, metric) for name in (arm, versus))
    differences = [a[prompt] - b[prompt] for prompt in a if prompt in b]
    test = sign_flip_test(differences, seed=seed)
    return ArmComparison(
        metric=metric,
        arm=arm,
        versus=versus,
        num_prompts=test.n,
        difference=test.mean,
        interval=None if trains else t_interval(differences),
        p=None if trains else test.p,
        equivalence=None if trains else equivalence_test(differences, NEAR_ZERO),
        identical=test.n > 0 and not any(differences),
    )


def num_problems(steps: Iterable[StepRecord]) -> int:
    """How many problems the steps met; a step of training meets several."""
    return len({problem for step in steps for problem in step.problem_id.split(PROBLEM_SEPARATOR)})


def _row(step: StepRecord) -> TrajectoryRow:
    test = haar_test(step.cos_in, step.haar_sd) if step.cos_in is not None and step.haar_sd else None
    return TrajectoryRow(
        arm=step.arm,
        step=step.step,
        problem_id=step.problem_id,
        cos_in=step.cos_in,
        cos_out=step.cos_out,
        hackward_frac_in=step.hackward_frac_in,
        frac_fired=step.frac_fired,
        reward_spread=step.reward_spread,
        haar_z=test.z if test else None,
        haar_p=test.p if test else None,
        null_reason=step.null_reason,
    )


def _by_prompt(steps: Sequence[StepRecord], arm: str, metric: Measure) -> Mapping:
    rows = [(s.problem_id, value) for s in steps if s.arm == arm and (value := getattr(s, metric)) is not None]
    return prompt_means([value for _, value in rows], [prompt for prompt, _ in rows])
