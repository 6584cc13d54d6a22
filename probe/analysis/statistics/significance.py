"""Significance tests for clustered measurements, and what is left of them where values are skewed.

The prompt is the unit of every primary test: its samples are correlated, so a test takes one number per prompt. Welch's
sample-level test ignores that, and with correlated labels its type-I error is several times its level (a test shows
this). It is here because the experiment that this project began from printed it; reports call it naive.

Student's interval and the sign-flip test take the values as symmetric about their mean. Where they are not, the tail
that is missing from a small sample shifts both: of lognormal values, a 5% test of mean zero rejects 17% at n = 8, 14%
at 17 and 11% at 40. Hall's (1992) transformation takes the first-order effect of skewness out. With w = (mean - m) / sd
and g the skewness,

    H(m) = sqrt(n) (w + g w^2 / 3 + g^2 w^3 / 27 + g / 6n)

is compared with Student's t. Where a sample is visibly skewed, what stands here is no more certain than both allow.
That leaves 11%, 8% and 6%: nothing known to us holds 5% of lognormal values at n = 8, because a sample that misses the
tail does not look skewed. So a reader is told as well (`is_skewed`).

`effects_by_prompt` is the effect of a label with the other labels held constant: regression with fixed prompt effects,

    value = effect * label + covariates + prompt

taken out by centring every column within its prompt. They need no assumption about the distribution of prompt effects,
as the random effects of a mixed model do. A step has one prompt, so they absorb the step effects too.
Shapes: B responses at once, rows of samples, C prompts.

`mde` is from the exact power of t-tests. Independent groups are compared by Welch's test, which estimates
its degrees of freedom: at Student's detectable effect it finds 70% with 3 units a side, 75% with 4, where Student's
test finds 80%.
"""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from probe.analysis.statistics.intervals import (
    Array,
    Interval,
    centred,
    cluster_numbers,
    student_quantile,
    t_interval,
    varies,
)
from probe.analysis.statistics.thresholds import ALPHA, POWER

# `mde` compares two arms. A correlation of .5 makes its paired error sd / sqrt(n), that of the mean of one sample.
ONE_SAMPLE = 0.5
NODES = 32  # of the quadrature: the power is exact to 1e-9

COLLINEAR = 1e-8  # share of a column that the other columns must leave unexplained for it to count as independent

EXACT_SIGN_FLIPS = 16  # up to 2^16 sign patterns are enumerated; for more differences they are sampled
NUM_DRAWS = 9999
CHUNK = 1 << 20  # signs in memory at once
# Skewness above SKEWED sqrt(n) moves a 2.5% tail of Student's t by .02 (the first term of its Edgeworth expansion).
SKEWED = 0.24
MIN_SKEWED = 8  # below, the skewness of a sample says nothing about that of its population
SKEWED_CAVEAT = "skewed values: interval and p allow for it in part, at 8 to 17 of them by half"


def sign_flip_test(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> float | None:
    """Two-sided test that the differences are symmetric about zero: |mean| against |mean| under random signs.

    A test of mean zero for symmetric differences; `mean_test` for any. None without differences.

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
        return None
    # The same sum in another order differs by rounding: it must count as a tie.
    observed = abs(d.sum()) - 1e-12 * np.abs(d).sum()
    if n <= EXACT_SIGN_FLIPS:
        sums = np.zeros(1)
        for x in d:
            sums = np.concatenate([sums + x, sums - x])
        return float(np.mean(np.abs(sums) >= observed))
    count = 0
    for packed in _packed_signs(n, num_draws, seed):
        positive = np.unpackbits(packed, axis=1, count=n).astype(np.float64)
        count += int(np.sum(np.abs(2 * (positive @ d) - d.sum()) >= observed))
    return (1 + count) / (num_draws + 1)


# The tests of a run share few numbers of prompts. A sign is one bit, so that runs of many prompts fit too.
@lru_cache(maxsize=16)
def _packed_signs(n: int, num_draws: int, seed: int) -> list[NDArray[np.uint8]]:
    """Patterns of n signs, (rows, n bits) as many at a time as CHUNK allows: 1 for a positive sign."""
    rng = np.random.default_rng(seed)
    size = max(1, CHUNK // n)
    parts = []
    for start in range(0, num_draws, size):
        parts.append(np.packbits(rng.integers(0, 2, (min(size, num_draws - start), n)) == 1, axis=1))
    return parts


def welch(a: ArrayLike, b: ArrayLike) -> Any | None:
    """Welch's t-test of mean(a) - mean(b), as scipy has it: `statistic`, two-sided `pvalue`, `confidence_interval`.

    None with fewer than two values on a side, or when neither side has any variance.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < 2 or not (varies(x) or varies(y)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a side whose values are the same but for rounding
        return stats.ttest_ind(x, y, equal_var=False)


def max_t(observed: Array, draws: Array) -> tuple[Array, Array, float]:
    """Single-step max-T (Westfall and Young 1993): p_m = (1 + draws whose largest |z| reaches |z_m|) / (B + 1).

    z divides by the standard deviation of each statistic under the null. The draws keep the dependence between the
    statistics, so correlated modules cost less power than a Bonferroni correction by M.

    Args:
        observed: (M,) statistics with null mean 0.
        draws: (B, M) the same under the null.

    Returns:
        z (M,), p (M,), and the critical |z|: p < ALPHA exactly where |z| is above it; infinite for too few draws.
    """
    sd = np.sqrt(np.square(draws).mean(0))
    scale = np.where(sd > 0, sd, np.inf)
    z = observed / scale
    largest = np.abs(draws / scale).max(1)
    above = math.ceil(ALPHA * (len(draws) + 1)) - 2  # p < ALPHA allows at most this many draws that reach |z|
    critical = math.inf
    if 0 <= above < len(draws):
        critical = float(np.sort(largest)[::-1][above])
    count = (largest[:, None] >= np.abs(z) * (1 - 1e-12)).sum(0)  # 1e-12: z that differ by rounding alone are ties
    return z, (1 + count) / (len(draws) + 1), critical


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values (1979): the i-th smallest of m times m - i + 1, never decreasing."""
    adjusted = {}
    largest = 0.0
    for position, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - position)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def is_skewed(values: ArrayLike) -> bool:
    """Whether a sample is so skewed that Student's t and sign flips miss their level by .02 on one side or more."""
    x = np.asarray(values, dtype=np.float64)
    return len(x) >= MIN_SKEWED and varies(x) and abs(_skewness(x)) > SKEWED * np.sqrt(len(x))


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Student's interval of a mean; of a skewed sample the hull with Hall's. None where the values show no variance."""
    student = t_interval(values, level=level)
    if student is None or not is_skewed(values):
        return student
    hall = hall_interval(values, level=level)
    return Interval(low=min(student.low, hall.low), high=max(student.high, hall.high))


def mean_test(values: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> float | None:
    """Two-sided test of mean zero: sign flips, and of a skewed sample Hall's test, whichever is less certain.

    None without values.

    Args:
        values: (n,) one independent value per cluster.
        num_draws, seed: as `sign_flip_test`.
    """
    x = np.asarray(values, dtype=np.float64)
    p = sign_flip_test(x, num_draws=num_draws, seed=seed)
    if p is not None and is_skewed(x):
        p = max(p, float(2 * stats.t.sf(abs(_hall(x, 0.0)), len(x) - 1)))
    return p


def hall_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """The means that H does not reject: H is a cubic in w that only rises, so that its inverse has a closed form.

    Args:
        values: (n,) with variance and skewness.
        level: of the interval.
    """
    x = np.asarray(values, dtype=np.float64)
    n, g = len(x), _skewness(x)
    ends = student_quantile(level, n - 1) * np.array([1.0, -1.0])
    w = 3 / g * (np.cbrt(1 + g * (ends / np.sqrt(n) - g / (6 * n))) - 1)
    low, high = x.mean() - x.std() * w
    return Interval(low=float(low), high=float(high))


def _skewness(x: Array) -> float:
    """Third moment over the 3/2 power of the second, of values that vary.

    `scipy.stats.skew` is the same number after 0.2 ms of checks, of which an analysis would spend seconds.
    """
    deviations = x - x.mean()
    squares = deviations * deviations
    return float((squares * deviations).mean() / squares.mean() ** 1.5)


def _hall(x: Array, mean: float) -> float:
    """H(mean)."""
    n, g, w = len(x), _skewness(x), float((x.mean() - mean) / x.std())
    return float(np.sqrt(n) * (w + g * w**2 / 3 + g**2 * w**3 / 27 + g / (6 * n)))


def effects_by_prompt(
    responses: Array, label: Sequence[bool], covariates: Mapping[str, Sequence[float]], prompts: Sequence[Hashable]
) -> Array | None:
    """Fit the model to B responses by least squares, and split the adjusted effect of the label over the prompts.

    With w the weights by which the effect is a sum over rows, and e the residuals of the fit, prompt c holds
    effect + C sum_{i in c} w_i e_i. The variance of such a mean is the sandwich estimator that is robust to correlation
    within prompts (Liang and Zeger 1986), times C / (C - 1).

    Args:
        responses: (B, rows).
        label: (rows,) the label whose effect is asked for.
        covariates: {name: (rows,)}, tried in this order. Columns that are constant within prompts, or combinations of
            earlier ones, are left out.
        prompts: (rows,) the prompt of each row; those that hold one side alone count too, as rows of the covariates.

    Returns:
        (B, C): a response's mean over prompts is its effect, and their spread its cluster-robust variance. None where
        no prompt holds both labels, or the covariates determine the label within prompts.
    """
    member = cluster_numbers(prompts)
    num_prompts = len(set(prompts))
    target = centred(np.asarray(label, dtype=np.float64), member)
    kept: list[Array] = []  # of norm 1, centred, none a combination of the others
    for column in covariates.values():
        within = centred(np.asarray(column, dtype=np.float64), member)
        if _is_new(within, kept):
            kept.append(within / np.linalg.norm(within))
    if not np.any(target) or not _is_new(target, kept):
        return None
    y = responses - _prompt_sums(responses, member)[:, member] / np.bincount(member)[member]
    X = np.column_stack([target, *kept])  # (rows, p)
    coefficients = np.linalg.lstsq(X, y.T, rcond=None)[0]  # (p, B)
    others = X[:, 1:]
    unexplained = target - others @ np.linalg.lstsq(others, target, rcond=None)[0] if kept else target
    size = float(unexplained @ unexplained)
    residuals = y - (X @ coefficients).T
    return coefficients[0][:, None] + num_prompts * _prompt_sums(residuals * (unexplained / size), member)


def _prompt_sums(values: Array, member: NDArray[np.intp]) -> Array:
    """(B, C) sums of values (B, rows) over the rows of each prompt, without a matrix of rows by prompts."""
    order = np.argsort(member, kind="stable")
    starts = np.searchsorted(member[order], np.arange(int(member.max()) + 1))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _is_new(column: Array, kept: Sequence[Array]) -> bool:
    """Whether a centred column is neither zero nor a combination of the kept ones."""
    size = np.linalg.norm(column)
    if size <= COLLINEAR or not kept:
        return bool(size > COLLINEAR)
    basis = np.column_stack(kept)
    residual = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0]
    return bool(np.linalg.norm(residual) > COLLINEAR * size)


def mde(sd: float, n: int, *, paired_correlation: float | None = None) -> float:
    """Minimum detectable effect: the difference of means that a t-test (unpaired: Welch's) finds with POWER.

    Paired, n pairs with correlation rho:     ncp = effect / (sd sqrt(2 (1 - rho)) / sqrt(n)), df = n - 1
    power = P(T > t_crit) + P(T < -t_crit), T noncentral t (Cohen 1988, chapter 2; Julious 2010, chapters 3 and 4).

    Unpaired, n units in each of two groups:  ncp = effect / (sd sqrt(2 / n)). Welch's statistic is then Student's, a
    noncentral t with 2 n - 2 degrees of freedom, and its critical value depends on the share R of the first group in
    the two sample variances, df(R) = (n - 1) / (R^2 + (1 - R)^2). R is independent of the statistic and has the law
    Beta((n - 1) / 2, (n - 1) / 2): the power is the mean over R.

    `mde(0.15, 3)` is .53: with three runs per arm, a hack rate with standard deviation .15 between seeds has to move by
    .53 to be found. Infinite for n = 1, since one unit shows no variance.

    Args:
        sd: standard deviation of one group between units.
        n: units (seeds, prompts) in each group, or pairs.
        paired_correlation: between the two measurements of a pair; None for independent groups.
    """
    if n == 1:
        return math.inf
    error = sd * math.sqrt(2 * (1 - (paired_correlation or 0.0)) / n)
    return error * _detectable(n, paired_correlation is not None)


def sign_flip_mde(sd: float, n: int) -> float:
    """Minimum mean of n independent differences that the sign-flip test finds with probability POWER.

    As Student's, but that its p is never below 2 / 2^n: with 5 differences or fewer nothing is found at 5%, and where
    only differences of one sign are (6), that happens with probability Phi(effect / sd)^n. Simulated with normal
    differences it finds .78 to .80 for 6 and more.

    Args:
        sd: of the differences between units.
        n: differences.
    """
    patterns = 2**n
    if 2 / patterns >= ALPHA:
        return math.inf
    if 4 / patterns >= ALPHA:
        return sd * float(stats.norm.ppf(POWER ** (1 / n)))
    # A difference has the standard deviation sd sqrt(2 (1 - rho)), so that of rho = 1/2 has sd itself.
    return mde(sd, n, paired_correlation=ONE_SAMPLE)


def _power(ncp: float, n: int, paired: bool) -> float:
    """Power at an effect of `ncp` standard errors."""
    df = n - 1 if paired else 2 * n - 2
    critical, weights = (stats.t.isf(ALPHA / 2, df), 1.0) if paired else _welch_critical(n)
    # T(-ncp) mirrors T(ncp).
    return float(np.sum(weights * (stats.nct.sf(critical, df, ncp) + stats.nct.sf(critical, df, -ncp))))


@lru_cache(maxsize=256)
def _welch_critical(n: int) -> tuple[Array, Array]:
    """(values, their probabilities) of Welch's critical |t| of two groups of n with one variance: Gauss quadrature."""
    nodes, weights = special.roots_jacobi(NODES, (n - 3) / 2, (n - 3) / 2)
    share = (1 + nodes) / 2
    return stats.t.isf(ALPHA / 2, (n - 1) / (share**2 + (1 - share) ** 2)), weights / weights.sum()


@lru_cache(maxsize=256)
def _detectable(n: int, paired: bool) -> float:
    """The effect, in standard errors, that is found with probability POWER at the level ALPHA, both tails together."""

    def surplus(ncp: float) -> float:
        return _power(ncp, n, paired) - POWER

    high = 1.0
    while surplus(high) < 0:
        high *= 2
    root: Any = optimize.brentq(surplus, 0.0, high, xtol=1e-9)  # a float, whatever the stubs say
    return root
