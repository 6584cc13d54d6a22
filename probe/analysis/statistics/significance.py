"""Significance tests for clustered measurements: one test, or a family adjusted together; numpy and scipy only.

The prompt is the unit of every primary test: its samples are correlated, so a test takes one number per prompt. Welch's
sample-level test ignores that, and with correlated labels its type-I error is several times its level (a test shows
this). It is here because the experiment that this project began from printed it; reports call it naive.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from probe.analysis.statistics.intervals import Interval, varies

Array = NDArray[np.float64]
EXACT_SIGN_FLIPS = 16  # up to 2^16 sign patterns are enumerated; for more differences they are sampled
NUM_DRAWS = 9999
CHUNK = 1 << 20  # signs in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip:
    """Result of a sign-flip test of mean zero. `mean` and `p` are None without differences."""

    n: int
    mean: float | None
    p: float | None  # two-sided
    exact: bool  # all 2^n patterns, otherwise sampled ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Welch:
    """Result of Welch's t-test of two independent samples, a minus b. None where it is undefined."""

    n_a: int
    n_b: int
    t: float | None
    p: float | None  # two-sided


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxT:
    """z and family-wise p of each of the M statistics of a family."""

    z: Array  # (M,)
    p: Array  # (M,)
    critical: float  # p < alpha exactly where |z| > critical; infinite for too few draws


def sign_flip_test(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> SignFlip:
    """Two-sided test that the differences are symmetric about zero: |mean| against |mean| under random signs.

    A test of mean zero for symmetric differences; `probe.analysis.statistics.means.mean_test` for any.

    n <= 16: p = share of the 2^n sign patterns whose |mean| is at least the observed one, so never below 2 / 2^n.
    Otherwise p = (1 + #) / (num_draws + 1) over seeded draws (Phipson and Smyth 2010).

    Args:
        differences: (n,) one independent difference per cluster.
        num_draws: sign patterns to sample where they are too many to enumerate.
        seed: of the sampled patterns.
    """
    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    if n == 0:
        return SignFlip(n=0, mean=None, p=None, exact=True)
    # The same sum in another order differs by rounding: it must count as a tie.
    observed = abs(d.sum()) - 1e-12 * np.abs(d).sum()
    exact = n <= EXACT_SIGN_FLIPS
    if exact:
        sums = np.zeros(1)
        for x in d:
            sums = np.concatenate([sums + x, sums - x])
        p = float(np.mean(np.abs(sums) >= observed))
    else:
        count = 0
        for start in range(0, num_draws, _rows(n)):
            sums = 2 * (_positive(n, num_draws, seed, start) @ d) - d.sum()
            count += int(np.sum(np.abs(sums) >= observed))
        p = (1 + count) / (num_draws + 1)
    return SignFlip(n=n, mean=float(d.mean()), p=p, exact=exact)


def _rows(n: int) -> int:
    """How many patterns of n signs are in memory at once."""
    return max(1, CHUNK // n)


# Few entries: one is as large as CHUNK allows.
@lru_cache(maxsize=4)
def _positive(n: int, num_draws: int, seed: int, start: int) -> Array:
    """(rows, n) patterns from number `start` on: 1 for a positive sign, else 0."""
    bits = np.unpackbits(_packed_signs(n, num_draws, seed)[start : start + _rows(n)], axis=1, count=n)
    return bits.astype(np.float64)


# The tests of a run share few numbers of prompts. A sign is one bit, so that runs of many prompts fit too.
@lru_cache(maxsize=16)
def _packed_signs(n: int, num_draws: int, seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    size = _rows(n)
    parts = []
    for start in range(0, num_draws, size):
        parts.append(np.packbits(rng.integers(0, 2, (min(size, num_draws - start), n)) == 1, axis=1))
    return np.concatenate(parts)


def welch_test(a: ArrayLike, b: ArrayLike) -> Welch:
    """Welch's t-test (unequal variances) of mean(a) - mean(b).

    Undefined (t and p are None) with fewer than two values on a side, or when neither side has any variance.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < 2 or not (varies(x) or varies(y)):
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
    # From the variances, as the test: scipy warns of a side whose values are the same but for rounding.
    in_x, in_y = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    df = (in_x + in_y) ** 2 / (in_x**2 / (len(x) - 1) + in_y**2 / (len(y) - 1))
    half = float(stats.t.isf((1 - level) / 2, df)) * math.sqrt(in_x + in_y)
    mean = float(x.mean() - y.mean())
    return Interval(low=mean - half, high=mean + half)


def max_t(observed: Array, draws: Array, *, alpha: float = 0.05) -> MaxT:
    """Single-step max-T (Westfall and Young 1993): p_m = (1 + draws whose largest |z| reaches |z_m|) / (B + 1).

    z divides by the standard deviation of each statistic under the null. The draws keep the dependence between the
    statistics, so correlated modules cost less power than a Bonferroni correction by M.

    Args:
        observed: (M,) statistics with null mean 0.
        draws: (B, M) the same under the null.
        alpha: the family-wise level that `critical` belongs to.
    """
    sd = np.sqrt(np.square(draws).mean(0))
    scale = np.where(sd > 0, sd, np.inf)
    z = observed / scale
    largest = np.abs(draws / scale).max(1)
    above = math.ceil(alpha * (len(draws) + 1)) - 2  # p < alpha allows at most this many draws that reach |z|
    critical = math.inf
    if 0 <= above < len(draws):
        critical = float(np.sort(largest)[::-1][above])
    count = (largest[:, None] >= np.abs(z) * (1 - 1e-12)).sum(0)  # 1e-12: z that differ by rounding alone are ties
    return MaxT(z=z, p=(1 + count) / (len(draws) + 1), critical=critical)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values (1979): the i-th smallest of m times m - i + 1, never decreasing."""
    adjusted = {}
    largest = 0.0
    for position, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - position)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
