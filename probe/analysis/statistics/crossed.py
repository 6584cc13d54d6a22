"""Rates over seeds and held-out problems at once: both are random samples, and all seeds meet the same problems.

A cell is the share of one problem in one seed. The variance of a mean over cells, or of a difference of two means, is

    seeds      variance of the seeds' means / their number; at least the outcomes' sampling variance, r (1 - r) / n
               with r = (yes + 2) / (n + 4) (Agresti and Coull 1998): equal rates in all seeds, or all 0, are chance
    problems   variance of the problems' means (or their differences) / their number
    both       residual variance in the cells: both terms contain it, so it is subtracted once
    variance   seeds + problems - both                                       (Cameron, Gelbach and Miller 2011)

with Welch-Satterthwaite degrees of freedom. Three or four seeds hardly determine a variance. Arms that are compared
together therefore share one number: the average ratio of the variance of a seed's rate to r (1 - r)
(`common_spread`; a quasi-binomial variance, McCullagh and Nelder 1989, section 4.5). A rate near the floor then has a
small variance without luck. The common reference side keeps its own variance if that is larger, because it enters
every comparison. tests/probe/analysis/test_crossed.py measures the coverage of the intervals: of one comparison, of
many at once, and of data that were inspected first.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Array, Interval
from probe.analysis.statistics.thresholds import ALPHA, MIN_SEEDS, POWER

MAX_SEEDS = 64  # seeds per arm; more are not advised
CERTAIN = 30.0  # standard errors, beyond which power is 1 to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The shares of one side: a rate, or its change within the same runs."""

    shares: Array  # (seeds, problems); one column if problems were not kept apart
    drawing: float  # sampling variance of the mean, from the outcomes alone
    binomial: float = 0.0  # r (1 - r), never 0; unused by a change
    keeps_own: bool = False  # True: use its own variance if larger than the common one


# (variance of a seed's rate relative to r (1 - r), common to several sides; its degrees of freedom)
Spread = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A mean, or a difference of two, with the effect of more seeds on it."""

    value: float
    error: float  # standard error
    df: float  # of Student's t for value / error
    n: int  # seeds on the smaller side
    seeds: float  # variance between seeds, summed over the sides; it is divided by their number
    problems: float  # part of the variance that more seeds do not reduce

    def bounded(self, level: float = ALPHA, name: str = "difference") -> Estimate:
        """Return the value with a two-sided, equal-tailed interval that misses the truth with probability `level`."""
        half = float(special.stdtrit(self.df, 1 - level / 2)) * self.error
        interval = Interval(low=max(self.value - half, -1.0), high=min(self.value + half, 1.0))
        return Estimate(name=name, value=self.value, interval=interval, n=self.n, unit="seed", null=0.0, p=self.p)

    @property
    def p(self) -> float:
        """The two-sided p of no difference."""
        return 2 * float(special.stdtr(self.df, -abs(self.value) / self.error))

    def power(self, effect: float, seeds: int, level: float = ALPHA) -> float:
        """Return the probability that `seeds` seeds per side detect a difference of size `effect`."""
        error = math.sqrt(self.seeds / seeds + self.problems)
        if effect > CERTAIN * error:
            return 1.0
        df = self.df * (seeds - 1) / (self.n - 1)
        return 1 - float(special.nctdtr(df, effect / error, special.stdtrit(df, 1 - level / 2)))

    def seeds_to_see(self, effect: float, level: float = ALPHA) -> int | None:
        """Return the smallest number of seeds per side that detects `effect` with POWER; None above MAX_SEEDS."""
        seeds = bisect_left(
            range(MAX_SEEDS + 1), POWER, lo=MIN_SEEDS, key=lambda number: self.power(effect, number, level)
        )
        return seeds if seeds <= MAX_SEEDS else None


def rate(shares: ArrayLike, trials: int) -> Cells:
    """Return the cells of a rate.

    Args:
        shares: (seeds, problems) of yes.
        trials: total number of outcomes.
    """
    x = np.atleast_2d(np.asarray(shares, dtype=np.float64))
    drawn = (x.mean() * trials + 2) / (trials + 4)
    binomial = float(drawn * (1 - drawn))
    return Cells(shares=x, drawing=binomial / trials, binomial=binomial)


def change(end: Cells, start: Cells) -> Cells:
    """Return end minus start of the same runs on the same problems."""
    return Cells(shares=end.shares - start.shares, drawing=end.drawing + start.drawing)


def compare(*sides: Cells, common: Spread | None = None) -> Comparison | None:
    """Return the mean of a side, or the first side minus the second: separate runs on the same problems (columns).

    None if a side has one seed, which carries no information about other seeds.

    Args:
        sides: one or two.
        common: spread of all sides that are compared together; None: each side uses its own seeds' variance.
    """
    counts = [len(side.shares) for side in sides]
    if min(counts) < 2:
        return None
    over_seeds = [_over_seeds(side, common) for side in sides]
    by_problem = sides[0].shares.mean(0)
    if len(sides) > 1:
        by_problem = by_problem - sides[1].shares.mean(0)
    num_problems, problems = len(by_problem), 0.0
    if num_problems > 1:
        left = sum(_left_in_cells(side.shares) for side in sides)
        problems = max(float(by_problem.var(ddof=1)) / num_problems - left, 0.0)
    variance = sum(over_seeds) + problems
    spread = problems**2 / max(num_problems - 1, 1)
    if common is None:
        spread += sum(part**2 / (count - 1) for part, count in zip(over_seeds, counts, strict=True))
    else:
        spread += sum(over_seeds) ** 2 / common[1]  # both sides share one estimate
    value, error, df = float(by_problem.mean()), math.sqrt(variance), variance**2 / spread
    seeds = sum(part * count for part, count in zip(over_seeds, counts, strict=True))
    return Comparison(value=value, error=error, df=df, n=min(counts), seeds=seeds, problems=problems)


def common_spread(sides: Iterable[Cells]) -> Spread | None:
    """Estimate one spread of rates over seeds from all sides together; None if no side has two seeds.

    Sides are weighted by the possible variance of their rate: a side at the floor carries little information.
    """
    squares = expected = expected_squares = 0.0
    for side in sides:
        means = side.shares.mean(1)
        squares += float(np.square(means - means.mean()).sum())
        expected += (len(means) - 1) * side.binomial
        expected_squares += (len(means) - 1) * side.binomial**2
    if not expected:
        return None
    return squares / expected, expected**2 / expected_squares


def _over_seeds(side: Cells, common: Spread | None) -> float:
    """Return the variance of the mean over seeds, at least the sampling variance of the outcomes."""
    count = len(side.shares)
    variance = float(side.shares.mean(1).var(ddof=1))
    if common is not None:
        shared = common[0] * side.binomial
        variance = max(variance, shared) if side.keeps_own else shared
    return max(variance / count, side.drawing)


def _left_in_cells(x: Array) -> float:
    """Return the variance of the mean that seed and problem together do not explain."""
    num_seeds, num_problems = x.shape
    left = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    return float(np.square(left).sum()) / ((num_seeds - 1) * (num_problems - 1)) / x.size
