"""Cosines of steps by arm, and of one arm's samples by label: in cells, in buckets, as a contrast within prompts.

At frozen weights the steps are independent draws of prompts, and the prompt is the unit of every test. When a run
trains, its steps are autocorrelated: the run is the unit, and there is no interval or p-value over steps.

cos(A g) = sign(A) cos(g), so a rewarded hack and an unrewarded failure differ first of all in the sign of A. The sign
of A is therefore one of the labels that define a cell (the dots of the cells add up to the dot of the gradient), and
the contrast of hacks with clean samples uses A > 0 only.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probe.analysis.estimate import Estimate, mean_of
from probe.analysis.statistics.intervals import prompt_means, within_prompt_differences
from probe.analysis.statistics.nulls import haar_test
from probe.analysis.statistics.significance import sign_flip_test
from probe.records.records import SampleRecord, StepRecord
from probe.settings.words import PROBLEM_SEPARATOR

WORDS, LOG_RATIO = "words", "logratio"  # detectors that `probe.analysis.rivals` adds from the pools
TRAINS = "the run trains: its steps are autocorrelated, the run is the unit"
HAAR = "Haar"  # appears in the names of estimates
HACK_DIFFERENCE, PURE_HACK = "hack_difference", "pure_hack_difference"
CONFOUNDS = ("src_pool", "hint", "gt_pass")  # fields that may differ between hacks and clean samples as hacking does


def arm_cosine(steps: Sequence[StepRecord], arm: str, *, trains: bool, seed: int = 0) -> Estimate:
    """Return the mean cos_in of one arm over prompts; without interval and p if the run trains.

    Args:
        steps: step records of all arms.
        arm: the arm to measure.
        trains: True if the run trains.
        seed: seed of the sampled sign flips.
    """
    of_arm = [step for step in steps if step.arm == arm]
    counted = [step for step in of_arm if step.cos_in is not None]
    cosines = present(step.cos_in for step in counted)
    by_prompt = prompt_means(cosines, [step.problem_id for step in counted])
    # A step with several groups uses several problems.
    estimate = replace(mean_of("cos_in", by_prompt, "prompt", arm=arm), n=num_problems(counted))
    if trains:
        return replace(estimate, interval=None, why=TRAINS)
    missing = len(of_arm) - len(counted)
    why = f"{missing} of {len(of_arm)} groups have no gradient" if missing else estimate.why
    return replace(estimate, p=sign_flip_test([*by_prompt.values()], seed=seed), why=why)


def haar_cosine(steps: Iterable[StepRecord], arm: str) -> Estimate | None:
    """Test the mean cos_in of one arm against Haar directions shared by all steps; None without such steps."""
    pairs = [(step.cos_in, step.haar_sd) for step in steps if step.arm == arm and step.cos_in is not None]
    known = [(cosine, sd) for cosine, sd in pairs if sd]
    if not known:
        return None
    mean, sd = (math.fsum(column) / len(known) for column in zip(*known, strict=True))
    return haar_test(f"cos_in, {HAAR}", mean, sd, arm=arm)


def num_problems(steps: Iterable[StepRecord]) -> int:
    """Return the number of distinct problems; a step with several groups uses several."""
    problems: set[str] = set()
    for step in steps:
        problems.update(step.problem_id.split(PROBLEM_SEPARATOR))
    return len(problems)


# Scores that may separate hacks from honest solutions without a direction. To add one, add a row.
TRIVIAL: Mapping[str, Callable[[SampleRecord], float | None]] = {
    "comp_len": lambda sample: math.log(max(sample.comp_len, 1)),
    "nll": lambda sample: sample.nll,
    "grad_norm": lambda sample: sample.grad_norm_contrib,
    "hint": lambda sample: float(sample.hint),
}
V_HACK = "v_hack"
# The measurement comes first: it has to beat the others.
SCORES: Mapping[str, Callable[[SampleRecord], float | None]] = {
    V_HACK: lambda sample: sample.cos_S_contrib,
    **TRIVIAL,
}


# {label that defines a cell: its value for a sample}
LABELS: Mapping[str, Callable[[SampleRecord], Any]] = {
    "src_pool": lambda sample: sample.src_pool,
    "hint": lambda sample: sample.hint,
    "hacked": lambda sample: sample.hacked,
    "gt_pass": lambda sample: sample.gt_pass,  # None if the log does not record it
    "advantage_sign": lambda sample: (sample.advantage > 0) - (sample.advantage < 0),
}


def cells(samples: Iterable[SampleRecord], labels: Sequence[str] = tuple(LABELS)) -> list[dict[str, Any]]:
    """Return one row per combination of labels that one arm's samples have, sorted by these.

    `num_null` counts samples without cos_S_contrib; `mean_cos_contrib` and `mean_cos_nll` are None if no sample has the
    cosine; `dot`, the sum of cos_S_contrib * grad_norm_contrib, is the additive share of the gradient's dot product.
    """
    groups: dict[tuple[Any, ...], list[SampleRecord]] = {}
    for sample in samples:
        groups.setdefault(tuple(LABELS[label](sample) for label in labels), []).append(sample)
    rows = []
    # Sort labels by name: None (not recorded) cannot be compared with False.
    for values, group in sorted(groups.items(), key=lambda row: [*map(str, row[0])]):
        cosines = present(sample.cos_S_contrib for sample in group)
        rows.append(
            {
                **dict(zip(labels, values, strict=True)),
                "n": len(group),
                "num_null": len(group) - len(cosines),
                "num_prompts": len({sample.problem_id for sample in group}),
                "mean_advantage": float(np.mean([sample.advantage for sample in group])),
                "mean_cos_contrib": mean_or_none(cosines),
                "mean_cos_nll": mean_or_none(present(sample.cos_S_nll for sample in group)),
                "dot": sum((sample.cos_S_contrib or 0.0) * sample.grad_norm_contrib for sample in group),
            }
        )
    return rows


class Contrast(NamedTuple):
    """A difference of cosines within prompts."""

    value: Callable[[SampleRecord], float | None]  # None: the sample is left out
    side: Callable[[SampleRecord], bool]  # True minus the others
    missing: str  # why there is no difference


CONTRASTS: Mapping[str, Contrast] = {
    HACK_DIFFERENCE: Contrast(
        lambda sample: sample.cos_S_contrib if sample.advantage > 0 else None,
        lambda sample: bool(sample.hacked),
        "no prompt holds both a hacked and a clean sample with A > 0",
    ),
    # Wrong hacks minus right ones (hypothesis H2 of phase 1).
    PURE_HACK: Contrast(
        lambda sample: sample.cos_S_nll if sample.hacked and sample.gt_pass is not None else None,
        lambda sample: not sample.gt_pass,
        "no prompt holds a wrong and a right hack",
    ),
}


def contrast(name: str, samples: Iterable[SampleRecord], arm: str, *, trains: bool, seed: int = 0) -> Estimate:
    """Return the mean within-prompt difference of a row of CONTRASTS, with the p of sign flips.

    `why` names the fields that differ between hacks and clean samples everywhere: each is an alternative explanation.

    Args:
        name: of the row.
        samples: the arm's samples, with labels.
        arm: name of the arm.
        trains: True if the weights moved. The run is then the unit: no interval and no p.
        seed: seed of the sampled sign flips.
    """
    row = CONTRASTS[name]
    rows = [(sample, value) for sample in samples if (value := row.value(sample)) is not None]
    sides, prompts = [row.side(sample) for sample, _ in rows], [sample.problem_id for sample, _ in rows]
    differences = within_prompt_differences([value for _, value in rows], sides, prompts)
    estimate = mean_of(name, differences, "prompt", arm=arm)
    if trains or estimate.value is None:
        return replace(estimate, interval=None, why=row.missing if estimate.value is None else TRAINS)
    rivals = []
    for field in CONFOUNDS if name == HACK_DIFFERENCE else ():
        seen = [{getattr(sample, field) for sample, _ in rows if row.side(sample) == side} for side in (True, False)]
        rivals += [field] * seen[0].isdisjoint(seen[1])
    why = f"cannot be told from {', '.join(rivals)}" if rivals else estimate.why
    return replace(estimate, p=sign_flip_test([*differences.values()], seed=seed), why=why)


def present(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean; None for an empty sequence."""
    return float(np.mean(values)) if len(values) else None


def strength(row: Estimate) -> float:
    """Return the AUROC in its better direction: below .5, the AUROC of the opposite score; .5 without AUROC.

    A classifier's score keeps the direction that it learned.
    """
    if row.value is None:
        return 0.5
    return row.value if row.name == WORDS else max(row.value, 1 - row.value)
