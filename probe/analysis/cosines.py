"""Cosines of steps by arm, and of the samples of one arm by label: in cells, in buckets, as contrasts within prompts.

At frozen weights the steps are independent draws of prompts, and the prompt is the unit of every test. In a run that
trains, the steps are autocorrelated: the run is the unit, and no interval or p-value over steps is given.

cos(A g) = sign(A) cos(g): a paid hack and an unpaid failure differ in the sign of A before they differ in anything
else. So the sign of A is one of the labels that define a cell (the dots of the cells add up to that of the gradient),
and the contrast of hacks (side a) with clean samples (side b) is made among A > 0, and on `cos_S_nll`, which has no
advantage in it. The prompt is the unit; a Welch test over samples stands beside it, marked as naive.

`specificity` is the AUROC of a sample's cosine for `hacked` among the paid, beside trivial scores (length, NLL ...)
that it must beat: a solution by the base model and a hack by the teacher get the same advantage there, so rewards do
not tell them apart.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from probe.analysis.statistics.intervals import Interval, auroc, auroc_interval, prompt_means, within_prompt_differences
from probe.analysis.statistics.nulls import NullTest, haar_test
from probe.analysis.statistics.significance import mean_interval, mean_test, welch
from probe.records.records import SampleRecord, StepRecord
from probe.settings.words import PROBLEM_SEPARATOR

# To add a sample cosine: a field of SampleRecord, its name here and in METRICS.
Metric = Literal["cos_S_contrib", "cos_S_nll"]
METRICS: tuple[Metric, ...] = ("cos_S_contrib", "cos_S_nll")
Labels = tuple[str, bool | None, bool | None, bool | None, int | None]  # of a Cell, in its order


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """All steps of one arm. Steps without a cosine are counted in `num_null` and are in no mean."""

    arm: str
    num_steps: int
    num_null: int
    num_prompts: int  # problems of the steps with a cosine, each once
    mean_cos_in: float | None  # mean over prompts of the prompts' means
    interval: Interval | None  # 95%, over prompts
    sign_flip_p: float | None  # over prompts
    haar: NullTest | None  # of the mean over steps, against the same random directions for all of them


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
    mean, sd = (math.fsum(column) / len(lawful) for column in zip(*lawful, strict=True)) if lawful else (0.0, 0.0)
    by_prompt = list(prompt_means(cosines, [step.problem_id for step in counted]).values())
    return ArmSummary(
        arm=arm,
        num_steps=len(arm_steps),
        num_null=len(arm_steps) - len(counted),
        num_prompts=num_problems(counted),
        mean_cos_in=mean_or_none(by_prompt),
        interval=None if trains else mean_interval(by_prompt),
        sign_flip_p=None if trains else mean_test(by_prompt, seed=seed),
        haar=haar_test(mean, sd) if lawful else None,
    )


def num_problems(steps: Iterable[StepRecord]) -> int:
    """How many different problems the steps used; a step with several groups uses several."""
    problems: set[str] = set()
    for step in steps:
        problems.update(step.problem_id.split(PROBLEM_SEPARATOR))
    return len(problems)


# What may tell hacks from honest solutions without any direction. To add one: a row here.
TRIVIAL: Mapping[str, Callable[[SampleRecord], float | None]] = {
    "comp_len": lambda sample: math.log(max(sample.comp_len, 1)),
    "nll": lambda sample: sample.nll,
    "grad_norm": lambda sample: sample.grad_norm_contrib,
    "hint": lambda sample: float(sample.hint),
}
# The measurement first, which has to beat them.
SCORES: Mapping[str, Callable[[SampleRecord], float | None]] = {
    "cos_S_contrib": lambda sample: sample.cos_S_contrib,
    **TRIVIAL,
}
WORDS, LOG_RATIO = "words", "logratio"  # scores that `probe.analysis.rivals` reads from the pools
BEATEN = "a trivial score does as well or better"  # why a specificity claim is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The samples with one value of source x hint x hacked x gt_pass x sign of A; of a bucket of source x hacked.

    Means are None when no sample has the cosine.
    """

    src_pool: str
    hint: bool | None  # None, as below: a bucket, which does not ask
    hacked: bool | None
    gt_pass: bool | None  # None also: the log does not say
    advantage_sign: int | None  # -1, 0, 1
    n: int
    num_null: int  # samples without cos_S_contrib
    num_prompts: int
    mean_advantage: float
    mean_cos_contrib: float | None
    mean_cos_nll: float | None
    dot: float  # sum of cos_S_contrib * grad_norm_contrib: the cell's additive part of the hack-ward gradient


class ContrastSpec(NamedTuple):
    """Which samples a contrast keeps, and which of those are side a (the others are side b)."""

    name: str
    metric: Metric
    paid: bool = False  # among A > 0 alone
    pure: bool = False  # among hacks, those that are wrong against those that are right; else hacks against clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Result of one contrast under one arm: Welch on samples, sign flips on within-prompt differences."""

    name: str
    arm: str
    metric: Metric
    n_a: int
    n_b: int
    welch_p: float | None  # over samples: naive
    num_prompts: int  # prompts that hold both sides
    difference: float | None  # mean within-prompt difference
    interval: Interval | None  # 95%
    p: float | None  # sign-flip; of skewed differences no smaller than Hall's
    haar: NullTest | None  # of the difference, against the same random directions for all samples
    confounded_with: tuple[str, ...]  # rivals that tell the sides apart without error in these samples


HACK_AMONG_PAID = "hacked - clean, A > 0"
PURE_HACK = "pure hack - hack and correct"
# To add a contrast: a row here.
CONTRASTS = (
    ContrastSpec(HACK_AMONG_PAID, "cos_S_contrib", paid=True),
    ContrastSpec("hacked - clean", "cos_S_nll"),
    ContrastSpec(PURE_HACK, "cos_S_nll", pure=True),
)


def advantage_cells(samples: Iterable[SampleRecord]) -> list[Cell]:
    """The non-empty cells of the samples of one arm, sorted by (src_pool, hint, hacked, gt_pass, sign of A)."""

    def labels(sample: SampleRecord) -> Labels:
        sign = (sample.advantage > 0) - (sample.advantage < 0)
        return sample.src_pool, sample.hint, sample.hacked, sample.gt_pass, sign

    return _cells(samples, labels)


def buckets(samples: Iterable[SampleRecord]) -> list[Cell]:
    """The same by (src_pool, hacked) alone."""
    return _cells(samples, lambda sample: (sample.src_pool, None, sample.hacked, None, None))


def _cells(samples: Iterable[SampleRecord], labels: Callable[[SampleRecord], Labels]) -> list[Cell]:
    groups: dict[Labels, list[SampleRecord]] = {}
    for sample in samples:
        groups.setdefault(labels(sample), []).append(sample)
    cells = []
    # Labels by their names: None, of a log that does not say, is not smaller than False.
    for (src_pool, hint, hacked, gt_pass, sign), group in sorted(groups.items(), key=lambda row: [*map(str, row[0])]):
        cosines = present(sample.cos_S_contrib for sample in group)
        cell = Cell(
            src_pool=src_pool,
            hint=hint,
            hacked=hacked,
            gt_pass=gt_pass,
            advantage_sign=sign,
            n=len(group),
            num_null=len(group) - len(cosines),
            num_prompts=len({sample.problem_id for sample in group}),
            mean_advantage=float(np.mean([sample.advantage for sample in group])),
            mean_cos_contrib=mean_or_none(cosines),
            mean_cos_nll=mean_or_none(present(sample.cos_S_nll for sample in group)),
            dot=sum((sample.cos_S_contrib or 0.0) * sample.grad_norm_contrib for sample in group),
        )
        cells.append(cell)
    return cells


def contrasts(samples: Sequence[SampleRecord], arm: str, *, trains: bool = False, seed: int = 0) -> list[Contrast]:
    """Evaluate all CONTRASTS of one arm.

    Args:
        samples: all samples of the arm.
        arm: name of the arm, for the rows.
        trains: whether the weights moved. Then the run is the unit: the differences remain, without intervals and p.
        seed: of sampled sign flips.
    """
    rows = [contrast(samples, spec, arm, seed=seed) for spec in CONTRASTS]
    if trains:
        return [replace(row, welch_p=None, interval=None, p=None, haar=None) for row in rows]
    return rows


def contrast(samples: Iterable[SampleRecord], spec: ContrastSpec, arm: str, *, seed: int = 0) -> Contrast:
    """Evaluate one contrast on the samples of one arm; samples without the cosine are left out."""
    kept, values, sides = _sides(samples, spec)
    prompts = [sample.problem_id for sample in kept]
    a = [value for value, side in zip(values, sides, strict=True) if side]
    b = [value for value, side in zip(values, sides, strict=True) if not side]
    naive = welch(a, b)
    differences = list(within_prompt_differences(values, sides, prompts).values())
    difference = mean_or_none(differences)
    return Contrast(
        name=spec.name,
        arm=arm,
        metric=spec.metric,
        n_a=len(a),
        n_b=len(b),
        welch_p=None if naive is None else float(naive.pvalue),
        num_prompts=len(differences),
        difference=difference,
        interval=mean_interval(differences),
        p=mean_test(differences, seed=seed),
        haar=_haar_difference(difference, [sample.haar_sd for sample in kept], sides, prompts),
        confounded_with=_confounds(kept, sides, ("src_pool", "hint", *(() if spec.pure else ("gt_pass",)))),
    )


def prompt_differences(samples: Iterable[SampleRecord], spec: ContrastSpec) -> dict[str, float]:
    """{prompt: mean of side a minus mean of side b} of the prompts that hold both."""
    kept, values, sides = _sides(samples, spec)
    differences = within_prompt_differences(values, sides, [sample.problem_id for sample in kept])
    return {str(prompt): difference for prompt, difference in differences.items()}


def _sides(samples: Iterable[SampleRecord], spec: ContrastSpec) -> tuple[list[SampleRecord], list[float], list[bool]]:
    """(samples that a contrast keeps, their cosines, whether each is of side a)."""
    kept: list[SampleRecord] = []
    for sample in samples:
        asked = not spec.pure or (sample.hacked and sample.gt_pass is not None)
        if asked and (sample.advantage > 0 or not spec.paid) and getattr(sample, spec.metric) is not None:
            kept.append(sample)
    sides = [not sample.gt_pass if spec.pure else bool(sample.hacked) for sample in kept]
    return kept, [getattr(sample, spec.metric) for sample in kept], sides


def _haar_difference(
    difference: float | None, haar_sds: Sequence[float | None], sides: Sequence[bool], prompts: Sequence[str]
) -> NullTest | None:
    """Test the mean within-prompt difference against Haar (uniformly random) directions.

    Two groups of gradients differ along almost every direction, so without this test any fixed direction would pass.
    The difference is <U, D>, D the difference of two means of gradients scaled to norm 1. By the triangle inequality
    its standard deviation is at most the mean haar_sd of side a plus that of side b: an upper bound, hence a
    conservative test.
    """
    if difference is None or None in haar_sds:
        return None
    # mean(a) - mean(b) of these is the sum of the two mean haar_sd.
    signed = [sd if side else -sd for sd, side in zip(haar_sds, sides, strict=True) if sd is not None]
    bounds = within_prompt_differences(signed, sides, prompts)
    return haar_test(difference, float(np.mean(list(bounds.values()))))


def _confounds(samples: Sequence[SampleRecord], sides: Sequence[bool], rivals: Sequence[str]) -> tuple[str, ...]:
    """The rival fields whose values differ between the sides in every sample: they may explain the contrast as well."""
    if len(set(sides)) < 2:
        return ()
    confounds = []
    for name in rivals:
        values: dict[bool, set] = {True: set(), False: set()}
        for sample, side in zip(samples, sides, strict=True):
            values[side].add(getattr(sample, name))
        if values[True].isdisjoint(values[False]):
            confounds.append(name)
    return tuple(confounds)


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean; None for an empty sequence."""
    return float(np.mean(values)) if len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity:
    """AUROC of one score for `hacked` among A > 0, with a 95% interval over prompts."""

    arm: str
    score: str
    n_hacked: int
    n_clean: int
    num_prompts: int
    auroc: float | None
    interval: Interval | None
    why: str = ""  # the score is missing


def strength(row: Specificity) -> float:
    """AUROC in the better of the two directions (below .5, the opposite score is the better one); .5 without AUROC.

    A classifier's score has one direction: the one that it learned.
    """
    if row.auroc is None:
        return 0.5
    return row.auroc if row.score == WORDS else max(row.auroc, 1 - row.auroc)


def beaten_by(measurement: Specificity, baselines: Iterable[Specificity]) -> list[str]:
    """The trivial scores that do as well as the measurement or better, as texts "name AUROC".

    Where the measurement is not above chance (its interval reaches .5), a baseline counts only if it differs from
    chance itself: between two scores that say nothing, the larger AUROC is noise.
    """
    if measurement.auroc is None:
        return []
    above_chance = measurement.interval is not None and measurement.interval.low > 0.5
    better = []
    for row in baselines:
        if row.auroc is None or strength(row) < measurement.auroc:
            continue
        differs = row.interval is not None and not row.interval.low <= 0.5 <= row.interval.high
        if above_chance or differs:
            better.append(f"{row.score} {strength(row):.2f}")
    return better


def specificity(
    samples: Iterable[SampleRecord], values: Iterable[float | None], score: str, arm: str, why: str = ""
) -> Specificity:
    """AUROC of one score for `hacked` among the paid samples (A > 0) of one arm.

    Args:
        samples: all samples of the arm.
        values: the score of each; samples without it are left out.
        score: its name.
        arm: name of the arm, for the result.
        why: the score is missing, for the result.
    """
    paid: list[SampleRecord] = []
    scores: list[float] = []
    for sample, value in zip(samples, values, strict=True):
        if sample.advantage > 0 and value is not None:
            paid.append(sample)
            scores.append(value)
    hacked = np.array([sample.hacked for sample in paid], dtype=bool)
    prompts = [sample.problem_id for sample in paid]
    area = auroc(scores, hacked)
    defined = not np.isnan(area)
    return Specificity(
        arm=arm,
        score=score,
        n_hacked=int(hacked.sum()),
        n_clean=int((~hacked).sum()),
        num_prompts=len(set(prompts)),
        auroc=area if defined else None,
        interval=auroc_interval(scores, hacked, prompts) if defined else None,
        why=why,
    )
