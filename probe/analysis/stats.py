"""Tests and intervals for clustered measurements; numpy and scipy only.

The unit of every primary test is the prompt (the cluster). Welch's sample-level test is here because the seed printed
it: with labels correlated inside prompts its type-I error is a multiple of its level, which a test demonstrates.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

EXACT_SIGN_FLIPS = 16  # 2^16 sign patterns are enumerated; more differences are sampled
NUM_DRAWS = 9999
CHUNK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip:
    """A sign-flip test of mean zero. `mean` and `p` are None without differences."""

    n: int
    mean: float | None
    p: float | None  # two-sided
    exact: bool  # all 2^n patterns, otherwise sampled ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Welch:
    """Welch's t-test of two independent samples, a minus b. None where it is undefined."""

    n_a: int
    n_b: int
    t: float | None
    p: float | None  # two-sided


def sign_flip_test(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> SignFlip:
    """Two-sided test that the differences are symmetric about zero: |mean| against |mean| under random signs.

    n <= 16: p = share of the 2^n sign patterns whose |mean| is at least the observed one, so never below 2 / 2^n.
    Otherwise p = (1 + #) / (num_draws + 1) over seeded draws (Phipson and Smyth 2010).

    Args:
        differences: (n,) one independent difference per cluster.
    """
    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    if n == 0:
        return SignFlip(n=0, mean=None, p=None, exact=True)
    observed = abs(d.sum()) - 1e-12 * np.abs(d).sum()  # sums that differ by rounding alone are ties
    exact = n <= EXACT_SIGN_FLIPS
    if exact:
        sums = np.zeros(1)
        for x in d:
            sums = np.concatenate([sums + x, sums - x])
        p = float(np.mean(np.abs(sums) >= observed))
    else:
        rng = np.random.default_rng(seed)
        count = 0
        for start in range(0, num_draws, CHUNK):  # in chunks, so that many prompts fit in memory
            signs = 2.0 * rng.integers(0, 2, (min(CHUNK, num_draws - start), n)) - 1.0
            count += int(np.sum(np.abs(signs @ d) >= observed))
        p = (1 + count) / (num_draws + 1)
    return SignFlip(n=n, mean=float(d.mean()), p=p, exact=exact)


def welch_test(a: ArrayLike, b: ArrayLike) -> Welch:
    """Welch's t-test (unequal variances) of a minus b; undefined below two values a side or without any variance."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < 2 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return Welch(n_a=len(x), n_b=len(y), t=None, p=None)
    result = stats.ttest_ind_from_stats(
        x.mean(), x.std(ddof=1), len(x), y.mean(), y.std(ddof=1), len(y), equal_var=False
    )
    return Welch(n_a=len(x), n_b=len(y), t=float(result.statistic), p=float(result.pvalue))


def within_prompt_differences(
    values: Sequence[float], labels: Sequence[bool], prompts: Sequence[Hashable]
) -> dict[Hashable, float]:
    """{prompt: mean of its labelled values minus mean of its other values}, for the prompts that hold both."""
    sides: dict[Hashable, tuple[list[float], list[float]]] = {}
    for value, label, prompt in zip(values, labels, prompts, strict=True):
        sides.setdefault(prompt, ([], []))[0 if label else 1].append(value)
    return {p: float(np.mean(with_) - np.mean(without)) for p, (with_, without) in sides.items() if with_ and without}


def prompt_means(values: Sequence[float], prompts: Sequence[Hashable]) -> dict[Hashable, float]:
    """{prompt: mean of its values}."""
    groups: dict[Hashable, list[float]] = {}
    for value, prompt in zip(values, prompts, strict=True):
        groups.setdefault(prompt, []).append(value)
    return {prompt: float(np.mean(group)) for prompt, group in groups.items()}


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Student's interval of the mean of independent values; None below two values."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return None
    half = float(stats.t.ppf((1 + level) / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Interval(low=float(x.mean()) - half, high=float(x.mean()) + half)


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval | None:
    """Wilson's score interval of a proportion (Wilson 1927); None for n = 0."""
    if n == 0:
        return None
    low, high = stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    return Interval(low=float(low), high=float(high))


def bootstrap_mean(
    values: Mapping[Hashable, float], *, level: float = 0.95, num_draws: int = 1999, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap of the mean over prompts of one value a prompt: {prompt: value}; None below two prompts."""
    x = np.fromiter(values.values(), dtype=np.float64)
    if len(x) < 2:
        return None
    return _percentiles(_cluster_counts(len(x), num_draws, seed) @ x / len(x), level)


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Probability that a labelled row scores above an unlabelled one, ties counted half; NaN when a side is empty.

    AUROC = (R - n1 (n1 + 1) / 2) / (n1 n0), R the rank sum of the n1 labelled rows (Mann and Whitney 1947).
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    n1 = int(y.sum())
    n0 = len(y) - n1
    if n1 == 0 or n0 == 0:
        return float("nan")
    return float((stats.rankdata(x)[y].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    clusters: Sequence[Hashable],
    *,
    level: float = 0.95,
    num_draws: int = 1999,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap of the AUROC when whole clusters are drawn with replacement.

    With W[c, d] the wins of the labelled rows of cluster c over the unlabelled rows of cluster d, and w_c the number of
    times that a draw holds cluster c, AUROC = w W w / ((w n1) (w n0)): no draw ranks anything again.

    Returns:
        None below two clusters; draws without both labels are left out, and None when no draw is left.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    names = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    member = np.array([names[cluster] for cluster in clusters], dtype=np.intp)
    if len(names) < 2:
        return None
    onto = np.eye(len(names))[member]  # (rows, clusters) indicator
    difference = x[y][:, None] - x[~y][None, :]
    wins = onto[y].T @ ((difference > 0) + 0.5 * (difference == 0)) @ onto[~y]
    counts = _cluster_counts(len(names), num_draws, seed)
    num_pairs = (counts @ onto[y].sum(0)) * (counts @ onto[~y].sum(0))
    areas = ((counts @ wins) * counts).sum(1)[num_pairs > 0] / num_pairs[num_pairs > 0]
    return _percentiles(areas, level) if len(areas) else None


@lru_cache(maxsize=4)
def _cluster_counts(num_clusters: int, num_draws: int, seed: int) -> NDArray[np.float64]:
    """(draws, clusters): how often each cluster is in each draw of as many clusters with replacement."""
    even = np.full(num_clusters, 1.0 / num_clusters)
    return np.random.default_rng(seed).multinomial(num_clusters, even, num_draws).astype(np.float64)


def _percentiles(draws: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high))
