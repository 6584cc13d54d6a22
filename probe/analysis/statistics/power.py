"""Power of t-tests, and the minimum effect that a number of units (seeds, prompts) can detect; scipy only.

Independent groups are compared by Welch's test (`significance.welch_test`), which estimates its degrees of freedom: at
Student's detectable effect it finds 70% with 3 units a side, 75% with 4, where Student's test finds 80%.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from probe.analysis.statistics.intervals import Array

# `mde` compares two arms. A correlation of .5 makes its paired error sd / sqrt(n), that of the mean of one sample.
ONE_SAMPLE = 0.5
NODES = 32  # of the quadrature: the power is exact to 1e-9


def detection_power(
    effect: float, sd: float, n: int, *, paired_correlation: float | None = None, alpha: float = 0.05
) -> float:
    """Probability that a two-sided t-test (unpaired: Welch's) rejects when the means differ by `effect`.

    Paired, n pairs with correlation rho:     ncp = effect / (sd sqrt(2 (1 - rho)) / sqrt(n)), df = n - 1
    power = P(T > t_crit) + P(T < -t_crit), T noncentral t (Cohen 1988, chapter 2; Julious 2010, chapters 3 and 4).

    Unpaired, n units in each of two groups:  ncp = effect / (sd sqrt(2 / n)). Welch's statistic is then Student's, a
    noncentral t with 2 n - 2 degrees of freedom, and its critical value depends on the share R of the first group in
    the two sample variances, df(R) = (n - 1) / (R^2 + (1 - R)^2). R is independent of the statistic and has the law
    Beta((n - 1) / 2, (n - 1) / 2): the power is the mean over R.

    Args:
        effect: difference of the means, in the unit of sd.
        sd: standard deviation of one group between units.
        n: units (seeds, prompts) in each group, or pairs.
        paired_correlation: between the two measurements of a pair; None for independent groups.
        alpha: level of the test, both tails together.

    Raises:
        ValueError: sd or alpha out of range, or fewer than 2 units, which show no variance.
    """
    error = _standard_error(sd, n, paired_correlation, alpha)
    return _power(abs(effect) / error, n, paired_correlation is not None, alpha)


def mde(
    sd: float, n: int, *, paired_correlation: float | None = None, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Minimum detectable effect: the difference of means that a test finds with probability `power`.

    `mde(0.15, 3)` is .53: with three runs per arm, a hack rate with standard deviation .15 between seeds has to move by
    .53 to be found. Infinite for n = 1, since one unit shows no variance.

    Args:
        sd, n, paired_correlation, alpha: as `detection_power`.
        power: probability of finding the effect.

    Raises:
        ValueError: as `detection_power`; `power` not between alpha and 1.
    """
    if not alpha < power < 1:
        raise ValueError(f"power: expected a number between alpha ({alpha:g}) and 1, found {power}")
    if n == 1:
        return math.inf
    error = _standard_error(sd, n, paired_correlation, alpha)
    return error * _detectable(n, paired_correlation is not None, alpha, power)


def sign_flip_mde(sd: float, n: int, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Minimum mean of n independent differences that the sign-flip test finds with probability `power`.

    As Student's, but that its p is never below 2 / 2^n: with 5 differences or fewer nothing is found at 5%, and where
    only differences of one sign are (6), that happens with probability Phi(effect / sd)^n. Simulated with normal
    differences it finds .78 to .80 for 6 and more.

    Args:
        sd: of the differences between units.
        n: differences.
        alpha, power: as `mde`.
    """
    patterns = 2**n
    if 2 / patterns >= alpha:
        return math.inf
    if 4 / patterns >= alpha:
        return sd * float(stats.norm.ppf(power ** (1 / n)))
    # A difference has the standard deviation sd sqrt(2 (1 - rho)), so that of rho = 1/2 has sd itself.
    return mde(sd, n, paired_correlation=ONE_SAMPLE, alpha=alpha, power=power)


def pairing_pays_above(n: int, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The correlation within pairs above which n pairs detect a smaller effect than two groups of n units.

    The paired test has n - 1 degrees of freedom, the unpaired one up to 2 n - 2: with few units, the correlation
    has to make up for a wider t distribution. The error of a paired difference goes with sqrt(1 - rho), so that

        mde_paired(rho) = mde_paired(0) sqrt(1 - rho) = mde_unpaired      at rho = 1 - (mde_unpaired / mde_paired(0))^2

    3 pairs pay above .42, 5 above .23, 10 above .11.
    """
    options = {"alpha": alpha, "power": power}
    return 1 - (mde(1.0, n, **options) / mde(1.0, n, paired_correlation=0.0, **options)) ** 2


def _power(ncp: float, n: int, paired: bool, alpha: float) -> float:
    """Power at an effect of `ncp` standard errors."""
    df = n - 1 if paired else 2 * n - 2
    critical, weights = (stats.t.isf(alpha / 2, df), 1.0) if paired else _welch_critical(n, alpha)
    # T(-ncp) mirrors T(ncp).
    return float(np.sum(weights * (stats.nct.sf(critical, df, ncp) + stats.nct.sf(critical, df, -ncp))))


@lru_cache(maxsize=256)
def _welch_critical(n: int, alpha: float) -> tuple[Array, Array]:
    """(values, their probabilities) of Welch's critical |t| of two groups of n with one variance: Gauss quadrature."""
    nodes, weights = special.roots_jacobi(NODES, (n - 3) / 2, (n - 3) / 2)
    share = (1 + nodes) / 2
    return stats.t.isf(alpha / 2, (n - 1) / (share**2 + (1 - share) ** 2)), weights / weights.sum()


@lru_cache(maxsize=256)
def _detectable(n: int, paired: bool, alpha: float, power: float) -> float:
    """The effect, in standard errors, that is found with probability `power`."""

    def surplus(ncp: float) -> float:
        return _power(ncp, n, paired, alpha) - power

    high = 1.0
    while surplus(high) < 0:
        high *= 2
    root: Any = optimize.brentq(surplus, 0.0, high, xtol=1e-9)  # a float, whatever the stubs say
    return root


def _standard_error(sd: float, n: int, rho: float | None, alpha: float) -> float:
    """Standard error of the difference of means; ValueError for arguments out of range."""
    if not (sd > 0 and math.isfinite(sd)):
        raise ValueError(f"sd: expected a positive number, found {sd}")
    if n < 2:
        raise ValueError(f"n: expected at least 2 units, found {n}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: expected a number between 0 and 1, found {alpha}")
    if rho is None:
        return sd * math.sqrt(2 / n)
    if not -1 < rho < 1:
        raise ValueError(f"paired_correlation: expected a number between -1 and 1, found {rho}")
    return sd * math.sqrt(2 * (1 - rho) / n)
