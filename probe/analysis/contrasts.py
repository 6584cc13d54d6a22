"""Cells, buckets and contrasts of the sample cosines.

cos(A g) = sign(A) cos(g): a sample that hacks and is paid and one that fails and is not differ in the sign of A before
they differ in anything else. Cells show that; the hack-versus-clean contrast is therefore made among A > 0, and on
`cos_S_nll`, which has no advantage in it. The prompt is the unit; the sample-level Welch test is printed beside it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probe.analysis.nulls import HaarTest, haar_test
from probe.analysis.stats import (
    Interval,
    auroc,
    auroc_interval,
    bootstrap_mean,
    sign_flip_test,
    welch_test,
    within_prompt_differences,
)
from probe.records import SampleRecord

Metric = Literal["cos_S_contrib", "cos_S_nll"]
METRICS: tuple[Metric, ...] = ("cos_S_contrib", "cos_S_nll")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Samples of one source x hint x hacked x gt_pass x sign of A. Means are None when no sample has the cosine."""

    src_pool: str
    hint: bool
    hacked: bool
    gt_pass: bool
    advantage_sign: int  # -1, 0, 1
    n: int
    num_prompts: int
    mean_advantage: float
    mean_cos_contrib: float | None
    mean_cos_nll: float | None
    dot: float  # sum of cos_S_contrib * grad_norm_contrib: the cell's additive part of the hack-ward gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One metric over the samples of one (src_pool, hacked); `n` counts the cosines, `num_null` the missing ones."""

    arm: str
    metric: Metric
    src_pool: str
    hacked: bool
    n: int
    num_null: int
    mean: float | None
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastSpec:
    """A named contrast: which samples it keeps, and which of those are side a (the others are side b)."""

    name: str
    metric: Metric
    keep: Callable[[SampleRecord], bool]
    side_a: Callable[[SampleRecord], bool]
    caveat: str = ""
    rivals: tuple[str, ...] = ("src_pool", "hint", "gt_pass")  # fields that may coincide with the sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Side a minus side b of one metric under one arm: Welch on samples, sign flips on within-prompt differences."""

    name: str
    arm: str
    metric: Metric
    caveat: str
    n_a: int
    n_b: int
    mean_a: float | None
    mean_b: float | None
    welch_unit: str
    welch_t: float | None
    welch_p: float | None
    unit: str
    num_prompts: int  # prompts that hold both sides
    difference: float | None  # mean within-prompt difference
    interval: Interval | None  # 95% cluster bootstrap of it
    p: float | None  # sign-flip
    haar: HaarTest | None  # of the difference, one draw of directions shared by all samples
    confounded_with: tuple[str, ...]  # what coincides with the sides in these samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity:
    """AUROC of a score for `hacked` among A > 0, with a 95% bootstrap over prompts."""

    arm: str
    score: str
    n_hacked: int
    n_clean: int
    num_prompts: int
    auroc: float | None
    interval: Interval | None


def _paid(s: SampleRecord) -> bool:
    return s.advantage > 0


HACK_AMONG_PAID = "hacked - clean, A > 0"
PURE_HACK = "pure hack - hack and correct"
CONTRASTS = (
    ContrastSpec(
        name="hacked - clean, all A",
        metric="cos_S_contrib",
        keep=lambda s: True,
        side_a=lambda s: s.hacked,
        caveat="sign of A",
    ),
    ContrastSpec(name=HACK_AMONG_PAID, metric="cos_S_contrib", keep=_paid, side_a=lambda s: s.hacked),
    ContrastSpec(name="hacked - clean", metric="cos_S_nll", keep=lambda s: True, side_a=lambda s: s.hacked),
    ContrastSpec(
        name=PURE_HACK + ", A > 0",
        metric="cos_S_contrib",
        keep=lambda s: s.hacked and _paid(s),
        side_a=lambda s: not s.gt_pass,
        rivals=("src_pool", "hint"),
    ),
    ContrastSpec(
        name=PURE_HACK,
        metric="cos_S_nll",
        keep=lambda s: s.hacked,
        side_a=lambda s: not s.gt_pass,
        rivals=("src_pool", "hint"),
    ),
)
# The measurement first, then the trivial baselines that it has to beat.
SCORES: dict[str, Callable[[SampleRecord], float | None]] = {
    "cos_S_contrib": lambda s: s.cos_S_contrib,
    "comp_len": lambda s: s.comp_len,
    "nll": lambda s: s.nll,
    "grad_norm_contrib": lambda s: s.grad_norm_contrib,
    "hint": lambda s: s.hint,
}


def advantage_cells(samples: Iterable[SampleRecord]) -> list[Cell]:
    """The cells of the samples of one arm, in order of their keys."""
    groups: dict[tuple[str, bool, bool, bool, int], list[SampleRecord]] = {}
    for s in samples:
        sign = (s.advantage > 0) - (s.advantage < 0)
        groups.setdefault((s.src_pool, s.hint, s.hacked, s.gt_pass, sign), []).append(s)
    return [
        Cell(
            src_pool=src_pool,
            hint=hint,
            hacked=hacked,
            gt_pass=gt_pass,
            advantage_sign=sign,
            n=len(group),
            num_prompts=len({s.problem_id for s in group}),
            mean_advantage=float(np.mean([s.advantage for s in group])),
            mean_cos_contrib=_mean(_present(s.cos_S_contrib for s in group)),
            mean_cos_nll=_mean(_present(s.cos_S_nll for s in group)),
            dot=sum((s.cos_S_contrib or 0.0) * s.grad_norm_contrib for s in group),
        )
        for (src_pool, hint, hacked, gt_pass, sign), group in sorted(groups.items())
    ]


def buckets(samples: Sequence[SampleRecord], arm: str) -> list[Bucket]:
    """Every (src_pool, hacked) bucket of one arm and both metrics, the empty ones included."""
    rows = []
    for metric in METRICS:
        for src_pool in sorted({s.src_pool for s in samples}):
            for hacked in (True, False):
                cosines = [getattr(s, metric) for s in samples if (s.src_pool, s.hacked) == (src_pool, hacked)]
                values = _present(cosines)
                rows.append(
                    Bucket(
                        arm=arm,
                        metric=metric,
                        src_pool=src_pool,
                        hacked=hacked,
                        n=len(values),
                        num_null=len(cosines) - len(values),
                        mean=_mean(values),
                        sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
                    )
                )
    return rows


def contrast(samples: Iterable[SampleRecord], spec: ContrastSpec, arm: str, *, seed: int = 0) -> Contrast:
    """Evaluate one contrast on the samples of one arm; null cosines are left out."""
    kept = [(s, getattr(s, spec.metric)) for s in samples if spec.keep(s)]
    rows = [(s, value, spec.side_a(s)) for s, value in kept if value is not None]
    a = [value for _, value, side in rows if side]
    b = [value for _, value, side in rows if not side]
    naive = welch_test(a, b)
    sides, prompts = [side for _, _, side in rows], [s.problem_id for s, _, _ in rows]
    differences = within_prompt_differences([value for _, value, _ in rows], sides, prompts)
    test = sign_flip_test(list(differences.values()), seed=seed)
    return Contrast(
        name=spec.name,
        arm=arm,
        metric=spec.metric,
        caveat=spec.caveat,
        n_a=len(a),
        n_b=len(b),
        mean_a=_mean(a),
        mean_b=_mean(b),
        welch_unit="sample (naive)",
        welch_t=naive.t,
        welch_p=naive.p,
        unit="prompt",
        num_prompts=test.n,
        difference=test.mean,
        interval=bootstrap_mean(differences, seed=seed),
        p=test.p,
        haar=_haar_difference(test.mean, [s.haar_sd for s, _, _ in rows], sides, prompts),
        confounded_with=_confounds([s for s, _, _ in rows], sides, spec.rivals),
    )


def specificity(samples: Iterable[SampleRecord], score: str, arm: str, *, seed: int = 0) -> Specificity:
    """AUROC of one score for hacked among the paid samples (A > 0) of one arm."""
    rows = [(s, value) for s in samples if _paid(s) and (value := SCORES[score](s)) is not None]
    values = np.array([value for _, value in rows], dtype=np.float64)
    hacked = np.array([s.hacked for s, _ in rows], dtype=bool)
    prompts = [s.problem_id for s, _ in rows]
    area = auroc(values, hacked)
    defined = not np.isnan(area)
    return Specificity(
        arm=arm,
        score=score,
        n_hacked=int(hacked.sum()),
        n_clean=int((~hacked).sum()),
        num_prompts=len(set(prompts)),
        auroc=area if defined else None,
        interval=auroc_interval(values, hacked, prompts, seed=seed) if defined else None,
    )


def _haar_difference(
    difference: float | None, haar_sds: Sequence[float | None], sides: Sequence[bool], prompts: Sequence[str]
) -> HaarTest | None:
    """The mean within-prompt difference against Haar directions.

    The difference is <U, D> with D a difference of mean unit gradients, so that its standard deviation is at most the
    mean haar_sd of side a plus that of side b (triangle inequality): an upper bound, hence a conservative test. Without
    it any fixed direction would do: two groups of gradients differ along almost every direction.
    """
    if difference is None or None in haar_sds:
        return None
    signed = [sd if side else -sd for sd, side in zip(haar_sds, sides, strict=True) if sd is not None]
    return haar_test(difference, float(np.mean([*within_prompt_differences(signed, sides, prompts).values()])))


def _confounds(samples: Sequence[SampleRecord], sides: Sequence[bool], rivals: Sequence[str]) -> tuple[str, ...]:
    """The rivals that tell the two sides apart without error: the contrast cannot be told from theirs."""
    if len(set(sides)) < 2:
        return ()
    found = []
    for name in rivals:
        a = {getattr(s, name) for s, side in zip(samples, sides, strict=True) if side}
        b = {getattr(s, name) for s, side in zip(samples, sides, strict=True) if not side}
        if not a & b:
            found.append(name)
    return tuple(found)


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
