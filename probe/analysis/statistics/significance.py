"""Significance tests for clustered measurements, one test or a family of them; numpy and scipy only.

The unit of every primary test is the prompt (the cluster). Welch's sample-level test is here because the seed printed
it: with labels correlated inside prompts its type-I error is a multiple of its level, which a test demonstrates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from probe.analysis.statistics.intervals import Interval, t_interval

Array = NDArray[np.float64]
EXACT_SIGN_FLIPS = 16  # 2^16 sign patterns are enumerated; more differences are sampled
NUM_DRAWS = 9999
CHUNK = 1000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests that a mean is inside +-bound."""

    bound: float
    p: float
    interval: Interval  # 1 - 2 alpha: inside +-bound exactly when p < alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxT:
    """z and the family-wise p of every statistic of a family."""

    z: Array  # (M,)
    p: Array  # (M,)
    critical: float  # p < alpha exactly where |z| > critical; infinite for too few draws


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


def welch_interval(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Welch's interval of mean(a) - mean(b) of independent samples; None where `welch_test` is undefined."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if welch_test(x, y).t is None:
        return None
    found = stats.ttest_ind(x, y, equal_var=False).confidence_interval(level)
    return Interval(low=float(found.low), high=float(found.high))


def equivalence_test(values: ArrayLike, bound: float, *, alpha: float = 0.05) -> Equivalence | None:
    """Two one-sided t-tests that the mean lies inside +-bound (Schuirmann 1987); None below two values.

    p is the larger of the two one-sided p-values; p < alpha exactly when the 1 - 2 alpha interval lies inside.
    """
    x = np.asarray(values, dtype=np.float64)
    interval = t_interval(x, level=1 - 2 * alpha)
    if interval is None:
        return None
    error = x.std(ddof=1) / np.sqrt(len(x))
    if error == 0:
        p = float(abs(x.mean()) >= bound)
    else:
        p = float(
            max(stats.t.sf((x.mean() + bound) / error, len(x) - 1), stats.t.cdf((x.mean() - bound) / error, len(x) - 1))
        )
    return Equivalence(bound=bound, p=p, interval=interval)


def max_t(observed: Array, draws: Array, *, alpha: float = 0.05) -> MaxT:
    """Single-step max-T (Westfall and Young 1993): p_m = (1 + draws whose largest |z| reaches |z_m|) / (B + 1).

    z divides by the standard deviation of each statistic under the null, and the draws keep the dependence between the
    statistics, so that correlated modules cost less than Bonferroni's M.

    Args:
        observed: (M,) statistics with null mean 0.
        draws: (B, M) the same under the null.
        alpha: the family-wise level that `critical` belongs to.
    """
    sd = np.sqrt(np.square(draws).mean(0))
    scale = np.where(sd > 0, sd, np.inf)
    z = observed / scale
    largest = np.abs(draws / scale).max(1)
    above = math.ceil(alpha * (len(draws) + 1)) - 2  # p < alpha leaves so many draws at least as large as |z|, or fewer
    critical = float(np.sort(largest)[::-1][above]) if 0 <= above < len(draws) else math.inf
    count = (largest[:, None] >= np.abs(z) * (1 - 1e-12)).sum(0)
    return MaxT(z=z, p=(1 + count) / (len(draws) + 1), critical=critical)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values (1979): the i-th smallest of m times m - i + 1, never decreasing."""
    adjusted, largest = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - place)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
