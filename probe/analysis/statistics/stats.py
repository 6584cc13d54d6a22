"""Tests and intervals for clustered measurements; numpy and scipy only.

The unit of every primary test is the prompt (the cluster). Welch's sample-level test is here because the seed printed
it: with labels correlated inside prompts its type-I error is a multiple of its level, which a test demonstrates.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests that a mean is inside +-bound."""

    bound: float
    p: float
    interval: Interval  # 1 - 2 alpha: inside +-bound exactly when p < alpha


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


def prompt_weights(prompts: Sequence[Hashable]) -> NDArray[np.float64]:
    """(rows,) weights with which a sum over rows is the mean over prompts of the prompts' means."""
    counts = Counter(prompts)
    return np.array([1.0 / (counts[prompt] * len(counts)) for prompt in prompts])


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
