"""Intervals of rates whose units are clusters: the seeds of a training, or held-out problems met by several of them.

A rate over units is the mean of their shares, and units differ by more than the outcomes in them would. The interval is
exact where it matters: Clopper and Pearson's (1934) of an effective number of outcomes (Korn and Graubard 1998),

    effective  share (1 - share) / variance of the mean share, at most the number of outcomes
    adjusted   effective (z / t)^2, t of as many degrees of freedom as there are units, less one

so that 0 of 64 in each of three seeds is [0, .09], and in each of two [0, .70]: two seeds say next to nothing about
seeds. Student's interval has no width there, and of a rate of 5% with an intra-seed correlation of .1 it covers 83%.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from probe.analysis.statistics.intervals import Array, Interval, student_quantile, wilson_interval


def clopper_pearson(count: float, n: float, *, level: float = 0.95) -> Interval:
    """The exact interval of a proportion; count and n > 0 need not be whole (Korn and Graubard 1998)."""
    tail = (1 - level) / 2
    low = stats.beta.ppf(tail, count, n - count + 1) if count > 0 else 0.0
    high = stats.beta.isf(tail, count + 1, n - count) if count < n else 1.0
    return Interval(low=float(low), high=float(high))


def share_interval(shares: ArrayLike, trials: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Interval of the mean over units of a share.

    Args:
        shares: (n,) of yes among the outcomes of a unit.
        trials: (n,) outcomes of a unit.
        level: of the interval.

    Returns:
        None below two units, which say nothing about other units.
    """
    x, num_outcomes = np.asarray(shares, dtype=np.float64), float(np.sum(trials))
    if len(x) < 2:
        return None
    share, variance = float(np.clip(x.mean(), 0, 1)), float(x.var(ddof=1) / len(x))
    effective = num_outcomes
    if variance > 0:
        effective = min(share * (1 - share) / variance, num_outcomes)
    adjusted = effective * float(stats.norm.isf((1 - level) / 2) / student_quantile(level, len(x) - 1)) ** 2
    return clopper_pearson(share * adjusted, adjusted, level=level)


def outcomes_interval(a: Array, b: Array, trials_a: Array, trials_b: Array, *, level: float = 0.95) -> Interval:
    """Newcombe's (1998) interval of a difference of two mean shares, all outcomes taken as independent.

    It is what drawing outcomes alone leaves open, whatever the units do: the least that an interval has to span.

    Args:
        a, b: (n,) and (m,) shares.
        trials_a, trials_b: outcomes behind them.
        level: of the interval.
    """
    one, other = (_pooled(*side, level) for side in ((a, trials_a), (b, trials_b)))
    difference = float(a.mean() - b.mean())
    below = np.hypot(a.mean() - one.low, other.high - b.mean())
    above = np.hypot(one.high - a.mean(), b.mean() - other.low)
    return Interval(low=difference - float(below), high=difference + float(above))


def _pooled(shares: Array, trials: Array, level: float) -> Interval:
    """Wilson's interval of as many outcomes as there are, as many of them yes as the mean share says."""
    n = int(trials.sum())
    interval = wilson_interval(round(float(shares.mean()) * n), n, level=level)
    assert interval is not None
    return interval
