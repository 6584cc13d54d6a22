"""Means over prompts, and confidence intervals around means, ratios, rates and AUROCs; numpy and scipy only.

The prompt is the cluster: samples of one prompt are correlated, and an interval over samples would be too narrow. An
interval therefore uses one value per prompt, or leaves out one prompt at a time (the jackknife). Equal units show no
variance: they have no interval, never one of width 0. `spec/guide/numbers.md` tabulates the coverage.

A ratio of two means has Fieller's interval. Independent sources of variation (prompts, held-out pairs, extraction
pairs) add their covariances.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from probe.analysis.statistics.thresholds import POWER

Array = NDArray[np.float64]
MAX_PROMPTS = 800  # more prompts are not advised: the embedded environment has 881 training problems
ROUNDING = 1e-12  # relative to the largest value; smaller differences are rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided confidence interval; `f"{interval:+.3f}"` is `[+0.050, +0.120]`."""

    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Format as [low, high]."""
        return f"[{self.low:{form}}, {self.high:{form}}]"


def prompt_means(values: ArrayLike, prompts: Sequence[Hashable]) -> dict[Hashable, Any]:
    """Return {prompt: mean over its rows} of values (..., rows), in order of first appearance.

    A mean is a float for (rows,), else (...,).
    """
    x = np.asarray(values, dtype=np.float64)
    groups: dict[Hashable, list[int]] = {}
    for row, prompt in zip(range(x.shape[-1]), prompts, strict=True):
        groups.setdefault(prompt, []).append(row)
    # numpy's mean takes several times longer for so few numbers.
    means = {prompt: np.add.reduce(x[..., rows], axis=-1) / len(rows) for prompt, rows in groups.items()}
    return means if x.ndim > 1 else {prompt: float(mean) for prompt, mean in means.items()}


def prompt_weights(prompts: Sequence[Hashable]) -> Array:
    """Return (rows,) weights that turn a sum over rows into the mean over prompts of the prompts' means."""
    counts = Counter(prompts)
    return np.array([1.0 / (counts[prompt] * len(counts)) for prompt in prompts])


def within_prompt_differences(
    values: Sequence[float], labels: Sequence[bool], prompts: Sequence[Hashable]
) -> dict[Hashable, float]:
    """Return {prompt: mean of labelled minus mean of other values}, for the prompts that hold both."""
    x, is_labelled, names = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool), np.array(prompts)
    labelled, others = (prompt_means(x[side], names[side].tolist()) for side in (is_labelled, ~is_labelled))
    # Keep prompts in row order: seeded sign flips depend on it.
    return {
        name: labelled[name] - others[name] for name in dict.fromkeys(prompts) if name in labelled and name in others
    }


def varies(values: ArrayLike) -> bool:
    """Return True if some values differ by more than rounding."""
    x = np.asarray(values, dtype=np.float64)
    return len(x) > 1 and bool(np.ptp(x) > ROUNDING * np.abs(x).max())


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Return Student's interval of the mean of independent values; None if they show no variance."""
    x = np.asarray(values, dtype=np.float64)
    if not varies(x):
        return None
    half = float(student_quantile(level, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Interval(low=float(x.mean()) - half, high=float(x.mean()) + half)


@lru_cache(maxsize=256)
def student_quantile(level: float, df: int) -> float:
    """Return the t such that Student's variable lies within +-t with probability `level`."""
    return float(special.stdtrit(df, (1 + level) / 2))


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval | None:
    """Return Wilson's (1927) score interval of a proportion; None for n = 0."""
    if n == 0:
        return None
    z = float(special.ndtri((1 + level) / 2))
    centre, total = (successes + z**2 / 2) / (n + z**2), n + z**2
    half = z / total * math.sqrt(successes * (n - successes) / n + z**2 / 4)
    return Interval(low=centre - half if successes else 0.0, high=centre + half if successes < n else 1.0)


def auroc(scores: ArrayLike, labels: ArrayLike) -> Any:
    """Return the probability that a labelled row scores above an unlabelled one, ties one half; NaN if a side is empty.

    AUROC = (R - n1 (n1 + 1) / 2) / (n1 n0), R the rank sum of the n1 labelled rows (Mann and Whitney 1947).

    Args:
        scores: (..., rows); a NaN makes the AUROC of its draw NaN.
        labels: (..., rows) True for the side that should score higher.

    Returns:
        A float, or (...,) if either has draws.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    ranked, n1 = ranks(x), y.sum(-1)
    sums = y @ ranked if ranked.ndim == 1 else ranked @ y
    with np.errstate(invalid="ignore"):
        areas = (sums - n1 * (n1 + 1) / 2) / (n1 * (y.shape[-1] - n1))
    return areas if np.ndim(areas) else float(areas)


def ranks(x: Array) -> Array:
    """Return (..., rows) ranks from 1, ties averaged; a NaN makes all its ranks NaN. scipy's loads its tests."""
    ranked = np.empty(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        _, inverse, counts = np.unique(x[place], return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranked[place] = np.nan if np.isnan(x[place]).any() else (ends - (counts - 1) / 2)[inverse]
    return ranked


def auroc_interval(scores: ArrayLike, labels: ArrayLike, clusters: Sequence[Hashable]) -> Interval | None:
    """Return the 95% interval of the AUROC on the logit scale, with a jackknife variance over clusters.

        W[c, d]   wins of the labelled rows of cluster c over the unlabelled rows of cluster d, ties one half
        A         sum W / (n1 n0), shrunk by half a win and half a loss: (n A + 1/2) / (n + 1), n = min(n1, n0)
        variance  the jackknife's over clusters (Obuchowski 1997 for the clustered AUROC), at least A (1 - A) / 2n
        interval  logit A +- t sqrt(variance) / (A (1 - A)), t with (clusters - 1) degrees of freedom, counted on the
                  side that is in fewer clusters

    The half win and the floor matter for an AUROC near 1 on few prompts, where most samples show no loss at all: at 4
    prompts the bootstrap over prompts covers .43 to .8 there, this interval .95 or more.

    Args:
        scores: (rows,) numbers to rank.
        labels: (rows,) True for the side that should score higher.
        clusters: (rows,) the prompt of each row.

    Returns:
        None if a side is in fewer than two clusters.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    measured = areas_without_each(x, y, clusters)
    if measured is None:
        return None
    value, areas, df = measured
    jackknife, n = (len(areas) - 1) * areas.var(), min(y.sum(), (~y).sum())
    area = (value * n + 0.5) / (n + 1)
    variance = max(jackknife, area * (1 - area) / (2 * n))
    half = student_quantile(0.95, df) * math.sqrt(variance) / (area * (1 - area))
    low, high = special.expit(special.logit(area) + np.array([-half, half]))
    return Interval(low=float(low), high=float(high))


def areas_without_each(x: Array, y: NDArray[np.bool_], clusters: Sequence[Hashable]) -> tuple[float, Array, int] | None:
    """Return the AUROC, the AUROC without each cluster, and (clusters - 1) of the side that is in fewer clusters.

    None if a side is in fewer than two clusters.
    """
    member, num_clusters = cluster_numbers(clusters), len(set(clusters))
    n1, n0 = (np.bincount(member[side], minlength=num_clusters) for side in (y, ~y))
    df = int(min(np.count_nonzero(n1), np.count_nonzero(n0))) - 1
    if df < 1:
        return None
    # Only sums of W are needed; W itself would take memory quadratic in the number of prompts.
    of_labelled, over_unlabelled = _wins(x[y], x[~y]), n1.sum() - _wins(x[~y], x[y])
    within = [_wins(x[rows][y[rows]], x[rows][~y[rows]]).sum() for rows in rows_by_cluster(member)]
    total = of_labelled.sum()
    without = total + np.array(within)  # (clusters,) wins with one cluster left out
    without -= np.bincount(member[y], weights=of_labelled, minlength=num_clusters)
    without -= np.bincount(member[~y], weights=over_unlabelled, minlength=num_clusters)
    areas = without / ((n1.sum() - n1) * (n0.sum() - n0))
    return float(total / (n1.sum() * n0.sum())), areas, df


def _wins(values: Array, others: Array) -> Array:
    """Return (values,) wins of each value over the others, ties one half."""
    ordered = np.sort(others)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2


def cluster_numbers(clusters: Sequence[Hashable]) -> NDArray[np.intp]:
    """Return (rows,) cluster numbers, in order of first appearance."""
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([numbers[cluster] for cluster in clusters], dtype=np.intp)


def rows_by_cluster(member: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the rows of each cluster, in order; member (rows,) comes from `cluster_numbers`."""
    return np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])


def centred(x: Array, member: NDArray[np.intp]) -> Array:
    """Return x minus its cluster's mean; member (rows,) is the cluster number of each row."""
    count = np.maximum(np.bincount(member), 1)
    return x - (np.bincount(member, weights=x) / count)[member]


def clopper_pearson(count: float, n: int, *, level: float = 0.95) -> Interval:
    """Return the exact interval of a proportion (Clopper and Pearson 1934), n > 0."""
    tail = (1 - level) / 2
    low = special.betaincinv(count, n - count + 1, tail) if count > 0 else 0.0
    high = special.betaincinv(count + 1, n - count, 1 - tail) if count < n else 1.0
    return Interval(low=float(low), high=float(high))


def deciding_count(
    distance: float, variance: float, rest: float = 0.0, *, start: int = 2, most: int = MAX_PROMPTS
) -> int | None:
    """Return the number of units at which a 95% interval excludes a threshold with POWER; None above MAX_PROMPTS.

    Args:
        distance: from the estimate to the threshold.
        variance: between units; the estimate has this part of its variance / their number.
        rest: variance that more units do not reduce.
        start: smallest number.
        most: largest number that the degrees of freedom grow with.
    """
    counts = np.arange(max(start, 2), MAX_PROMPTS)
    df = np.minimum(counts, most) - 1
    errors = special.stdtrit(df, 0.975) + special.stdtrit(df, POWER)
    decides = distance**2 > errors**2 * (variance / counts + rest)
    return int(counts[decides.argmax()]) if decides.any() else None


def mean_covariance(values: ArrayLike) -> Array:
    """Return the (2, 2) covariance of the means of independent rows (n, 2); infinite for fewer than two rows.

    A constant column has variance 0: it does not vary from row to row.
    """
    rows = np.asarray(values, dtype=np.float64)
    if len(rows) < 2:
        return np.full((2, 2), np.inf)
    return np.cov(rows.T) / len(rows)


def fieller_interval(numerator: float, denominator: float, covariances: Iterable[Array], *, df: int) -> Interval | None:
    """Return the ratios q for which numerator - q denominator does not differ from 0 at the 5% level (Fieller 1954).

    Args:
        numerator: estimate of the upper mean.
        denominator: estimate of the lower mean.
        covariances: (2, 2) of (numerator, denominator), one per independent source of variation.
        df: degrees of freedom of Student's t, at least 1.

    Returns:
        None if that set is not an interval: the denominator does not differ significantly from 0, so the ratio can have
        any size, or a source of variation has too few members to estimate it.
    """
    covariance = np.sum(list(covariances), axis=0)
    if not np.isfinite(covariance).all() or df < 1:
        return None
    squared = student_quantile(0.95, df) ** 2
    # The set is { q : a q^2 + b q + c <= 0 }, bounded exactly where a > 0.
    a = denominator**2 - squared * covariance[1, 1]
    b = -2 * (numerator * denominator - squared * covariance[0, 1])
    c = numerator**2 - squared * covariance[0, 0]
    if a <= 0:
        return None
    half = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return Interval(low=(-b - half) / (2 * a), high=(-b + half) / (2 * a))
