"""Cells and buckets of the sample cosines: which samples carry the gradient.

cos(A g) = sign(A) cos(g): a sample that hacks and is paid and one that fails and is not differ in the sign of A before
they differ in anything else. The cells show that, and their dots add up to the whole gradient's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probe.records.records import SampleRecord

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
            mean_cos_contrib=mean_or_none(present(s.cos_S_contrib for s in group)),
            mean_cos_nll=mean_or_none(present(s.cos_S_nll for s in group)),
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
                values = present(cosines)
                rows.append(
                    Bucket(
                        arm=arm,
                        metric=metric,
                        src_pool=src_pool,
                        hacked=hacked,
                        n=len(values),
                        num_null=len(cosines) - len(values),
                        mean=mean_or_none(values),
                        sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
                    )
                )
    return rows


def present(values: Iterable[float | None]) -> list[float]:
    """The values that exist."""
    return [value for value in values if value is not None]


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return float(np.mean(values)) if len(values) else None
