"""Rates over seeds and held-out problems at once: both are drawn, and all seeds meet the same problems.

A cell is the share of one problem in one seed. The variance of a mean over cells, or of a difference of two of them, is

    seeds      of the seeds' means, over their number; at least that of drawing the outcomes, r (1 - r) / n with
               r = (yes + 2) / (n + 4) (Agresti and Coull 1998): equal rates in all seeds, or none at all, are chance
    problems   of the problems' means (or their differences), over their number
    both       what is left in the cells: it is in each of the two, and is taken out once
    variance   seeds + problems - both                                       (Cameron, Gelbach and Miller 2011)

with Welch and Satterthwaite's degrees of freedom. How often the intervals cover, of one comparison, of many at once and
of data that were looked at: tests/probe/test_crossed.py.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from probe.analysis.statistics.intervals import Array, Bounded, Interval
from probe.analysis.statistics.significance import ONE_SAMPLE, detection_power
from probe.analysis.statistics.thresholds import ALPHA, POWER

MANY = 64  # seeds an arm, from where on more of them are no advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The shares of one side: a rate, or its change within the same runs."""

    shares: Array  # (seeds, problems); one column where problems were not kept apart
    drawing: float  # variance of the mean by drawing outcomes alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A mean, or a difference of two; and what more seeds would do to it."""

    value: float
    error: float  # standard error
    df: float  # of Student's law of value / error
    n: int  # seeds of the smaller side
    sd: float  # between seeds of one side; of a change within runs, of that change
    problems: float  # the part of the variance that more seeds leave
    paired: bool  # a change within the same runs

    def bounded(self, level: float = ALPHA) -> Bounded:
        """The value with the interval that misses the truth with probability `level`, half of it on each side."""
        half = float(stats.t.isf(level / 2, self.df)) * self.error
        return Bounded(
            value=self.value, interval=Interval(low=max(self.value - half, -1.0), high=min(self.value + half, 1.0))
        )

    def power(self, effect: float, seeds: int, level: float = ALPHA) -> float:
        """Probability that as many seeds a side tell a difference of that size from 0 (unpaired: Welch's test)."""
        sides = 1 if self.paired else 2
        sd = math.sqrt(self.sd**2 + seeds * self.problems / sides)
        # `sd` is that of a difference already: pairs that go together by one half differ by as much as one side.
        return detection_power(effect, sd, seeds, paired_correlation=ONE_SAMPLE if self.paired else None, alpha=level)

    def seeds_to_see(self, effect: float, level: float = ALPHA) -> int | None:
        """The first number of seeds a side that see a difference of that size with POWER; None above MANY."""
        return next((seeds for seeds in range(2, MANY + 1) if self.power(effect, seeds, level) >= POWER), None)


def rate(shares: ArrayLike, trials: int) -> Cells:
    """A rate.

    Args:
        shares: (seeds, problems) of yes.
        trials: outcomes behind all of them.
    """
    x = np.atleast_2d(np.asarray(shares, dtype=np.float64))
    drawn = (x.mean() * trials + 2) / (trials + 4)
    return Cells(shares=x, drawing=float(drawn * (1 - drawn) / trials))


def change(end: Cells, start: Cells) -> Cells:
    """End minus start of the same runs on the same problems."""
    return Cells(shares=end.shares - start.shares, drawing=end.drawing + start.drawing)


def mean(cells: Cells) -> Comparison | None:
    """The mean of a side; None below two seeds, which say nothing about other seeds."""
    return _compared([cells], paired=True)


def difference(a: Cells, b: Cells) -> Comparison | None:
    """Mean of a minus mean of b, runs of their own on the same problems (columns); None where a side has one seed."""
    return _compared([a, b], paired=False)


def _compared(sides: list[Cells], *, paired: bool) -> Comparison | None:
    counts = [len(side.shares) for side in sides]
    if min(counts) < 2:
        return None
    # Variances of the means over seeds, which are never below those of drawing outcomes.
    over_seeds = [max(float(side.shares.mean(1).var(ddof=1)) / len(side.shares), side.drawing) for side in sides]
    by_problem = sides[0].shares.mean(0)
    if not paired:
        by_problem = by_problem - sides[1].shares.mean(0)
    num_problems = len(by_problem)
    problems = 0.0
    if num_problems > 1:
        left = sum(_left_in_cells(side.shares) for side in sides)
        problems = max(float(by_problem.var(ddof=1)) / num_problems - left, 0.0)
    variance = sum(over_seeds) + problems
    spread = sum(part**2 / (count - 1) for part, count in zip(over_seeds, counts, strict=True))
    spread += problems**2 / max(num_problems - 1, 1)
    sd = math.sqrt(sum(part * count for part, count in zip(over_seeds, counts, strict=True)) / len(sides))
    return Comparison(
        value=float(by_problem.mean()),
        error=math.sqrt(variance),
        df=variance**2 / spread,
        n=min(counts),
        sd=sd,
        problems=problems,
        paired=paired,
    )


def _left_in_cells(x: Array) -> float:
    """Variance of the mean by what seed and problem together do not explain."""
    num_seeds, num_problems = x.shape
    left = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    return float(np.square(left).sum()) / ((num_seeds - 1) * (num_problems - 1)) / x.size
