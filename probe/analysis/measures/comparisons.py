"""Arms against the measured arm on identical batches: paired by prompt, as a difference and as an equivalence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.statistics.stats import (
    Equivalence,
    Interval,
    equivalence_test,
    prompt_means,
    sign_flip_test,
    t_interval,
)
from probe.analysis.statistics.thresholds import NEAR_ZERO
from probe.records.records import StepRecord

Measure = Literal["cos_in", "cos_out", "hackward_frac_out"]
MEASURES: tuple[Measure, ...] = ("cos_in", "cos_out", "hackward_frac_out")


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


def _by_prompt(steps: Sequence[StepRecord], arm: str, metric: Measure) -> Mapping:
    rows = [(s.problem_id, value) for s in steps if s.arm == arm and (value := getattr(s, metric)) is not None]
    return prompt_means([value for _, value in rows], [prompt for prompt, _ in rows])
