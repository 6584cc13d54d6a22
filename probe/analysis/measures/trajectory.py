"""Step cosines of each arm: as one summary per arm, and as differences between two arms.

At frozen weights the steps are independent draws of prompts, and the prompt is the unit of every test. In a run that
trains, the steps are autocorrelated: the run is the unit, and no interval or p-value over steps is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.measures.contrasts import mean_or_none, present
from probe.analysis.statistics.intervals import Interval, prompt_means
from probe.analysis.statistics.nulls import HaarMean, haar_mean
from probe.analysis.statistics.significance import equivalence_test, mean_interval, mean_test
from probe.analysis.statistics.thresholds import NEAR_ZERO
from probe.records.records import StepRecord
from probe.settings.words import PROBLEM_SEPARATOR

# What two arms are compared in. To add a measure: a field of StepRecord, its name here and in MEASURES.
Measure = Literal["cos_in", "cos_out", "hackward_frac_out"]
MEASURES: tuple[Measure, ...] = ("cos_in", "cos_out", "hackward_frac_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """All steps of one arm. Steps without a cosine are counted in `num_null` and are in no mean."""

    arm: str
    num_steps: int
    num_null: int
    num_prompts: int  # problems of the steps with a cosine, each once
    trains: bool  # an optimizer steps: steps are autocorrelated
    mean_cos_in: float | None  # mean over prompts of the prompts' means
    interval: Interval | None  # 95%, over prompts
    sign_flip_p: float | None  # over prompts
    mean_cos_out: float | None
    num_lowered: int  # steps with cos_out < cos_in
    mean_frac_fired: float | None
    mean_hackward_frac_in: float | None
    mean_cos_update: float | None
    haar: HaarMean | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """`arm` minus `versus` in one measure, paired by prompt."""

    metric: Measure
    arm: str
    num_prompts: int
    difference: float | None
    interval: Interval | None  # 95%
    p: float | None  # sign-flip
    equivalence_p: float | None  # that it is inside +-NEAR_ZERO
    identical: bool  # every prompt gives exactly the same number in both arms: nothing was compared


def summarise(steps: Sequence[StepRecord], arm: str, *, trains: bool, seed: int = 0) -> ArmSummary:
    """Summarise the steps of one arm.

    Args:
        steps: of all arms.
        arm: whose steps are summarised.
        trains: whether it is a run that trains; then no interval and no test over prompts is given.
        seed: of sampled sign flips.
    """
    arm_steps = [step for step in steps if step.arm == arm]
    counted = [step for step in arm_steps if step.cos_in is not None]
    cosines = present(step.cos_in for step in counted)
    lawful = [(step.cos_in, step.haar_sd) for step in counted if step.cos_in is not None and step.haar_sd]
    lowered = [step for step in counted if step.cos_out is not None and step.cos_out < (step.cos_in or 0.0)]
    by_prompt = list(prompt_means(cosines, [step.problem_id for step in counted]).values())
    return ArmSummary(
        arm=arm,
        num_steps=len(arm_steps),
        num_null=len(arm_steps) - len(counted),
        num_prompts=num_problems(counted),
        trains=trains,
        mean_cos_in=mean_or_none(by_prompt),
        interval=None if trains else mean_interval(by_prompt),
        sign_flip_p=None if trains else mean_test(by_prompt, seed=seed).p,
        mean_cos_out=mean_or_none(present(step.cos_out for step in counted)),
        num_lowered=len(lowered),
        mean_frac_fired=mean_or_none(present(step.frac_fired for step in counted)),
        mean_hackward_frac_in=mean_or_none(present(step.hackward_frac_in for step in counted)),
        mean_cos_update=mean_or_none(present(step.cos_update for step in counted)),
        haar=haar_mean([cosine for cosine, _ in lawful], [sd for _, sd in lawful]),
    )


def compare_arms(
    steps: Sequence[StepRecord], arm: str, versus: str, metric: Measure, *, trains: bool, seed: int = 0
) -> ArmComparison:
    """Compare two arms that saw identical batches, prompt by prompt.

    Args:
        steps: step records of both arms.
        arm: the arm to compare.
        versus: the arm that is subtracted.
        metric: field of the step records.
        trains: whether the weights moved; then no test over prompts is given.
        seed: of sampled sign flips.
    """
    values, versus_values = _by_prompt(steps, arm, metric), _by_prompt(steps, versus, metric)
    differences = [values[prompt] - versus_values[prompt] for prompt in values if prompt in versus_values]
    test = mean_test(differences, seed=seed)
    return ArmComparison(
        metric=metric,
        arm=arm,
        num_prompts=test.n,
        difference=test.mean,
        interval=None if trains else mean_interval(differences),
        p=None if trains else test.p,
        equivalence_p=None if trains else equivalence_test(differences, NEAR_ZERO),
        identical=test.n > 0 and not any(differences),
    )


def num_problems(steps: Iterable[StepRecord]) -> int:
    """How many different problems the steps used; a step with several groups uses several."""
    problems: set[str] = set()
    for step in steps:
        problems.update(step.problem_id.split(PROBLEM_SEPARATOR))
    return len(problems)


def _by_prompt(steps: Sequence[StepRecord], arm: str, metric: Measure) -> Mapping:
    """{prompt: mean of a metric over the arm's steps that have it}."""
    values, prompts = [], []
    for step in steps:
        value = getattr(step, metric)
        if step.arm == arm and value is not None:
            values.append(value)
            prompts.append(step.problem_id)
    return prompt_means(values, prompts)
