"""Directions of pairs drawn anew: they follow from the pairs and the seed alone, so conditions and arms share them.

    axes = null_axes(linked.pairs, num_draws, seed)      single axes, many draws: v_hack, N2, N3
    drawn = redrawn(linked.pairs, num_draws, seed)       all k directions: v_hack, half-samples, permuted labels

A statistic that is linear in the gradients is one matrix product for all draws: `geometry.along`.
"""

import copy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from probe.analysis.statistics.geometry import Axes, DirectionDraws, concatenated, extract, svd_axes
from probe.analysis.statistics.gram import PairGram
from probe.analysis.statistics.nulls import half_samples, label_permutations, placebo_couples, true_labels

NUM_DRAWS = 199


@dataclass(frozen=True, slots=True, kw_only=True)
class NullAxes:
    """Axes of v_hack as the run extracted it, and of the directions of relabelled pairs."""

    truth: Axes
    permuted: Axes  # N2: labels permuted across all pairs
    couples: Axes | None  # N3: clean against clean; None where there are fewer couples than k
    drawn: np.random.Generator  # as the draws above left it

    def rng(self) -> np.random.Generator:
        """A generator that goes on after the draws of these axes, the same for every caller."""
        return copy.deepcopy(self.drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """Directions of the run's pairs as they are (one draw), and of B draws of each kind."""

    truth: DirectionDraws
    halves: DirectionDraws  # of half-samples: how much a statistic hangs on the pairs
    permuted: DirectionDraws  # of permuted labels: what it reads without a signal
    axes: Axes  # (1 + B) of v_hack itself, then of its half-samples


@lru_cache(maxsize=1)
def true_axes(pairs: PairGram) -> Axes:
    """The axes of v_hack as a single draw."""
    return svd_axes(pairs, *true_labels(pairs.held_out), pairs.extraction)


# One entry: axes are B x M x N numbers, and the runs that are analysed together mostly share their pairs.
@lru_cache(maxsize=1)
def null_axes(pairs: PairGram, num_draws: int, seed: int) -> NullAxes:
    """Draw the nulls of directions, B = num_draws of each."""
    # All nulls share one generator: another order of the draws would change every p-value of a stored analysis. A new
    # null is drawn after those that are here.
    rng = np.random.default_rng(seed)
    permuted = label_permutations(pairs.held_out, num_draws, rng)
    couples = placebo_couples(pairs.held_out, num_draws, rng)
    enough = couples[0].shape[1] >= pairs.extraction.k  # fewer couples than k cannot give k directions
    return NullAxes(
        truth=true_axes(pairs),
        permuted=svd_axes(pairs, *permuted, pairs.extraction),
        couples=svd_axes(pairs, *couples, pairs.extraction) if enough else None,
        drawn=rng,
    )


@lru_cache(maxsize=1)
def redrawn(pairs: PairGram, num_draws: int, seed: int) -> Redrawn:
    """Draw B = num_draws of each kind. The pairs must be at least two beside those that are held out."""
    # One generator in this order, as above.
    rng = np.random.default_rng(seed)
    halves = half_samples(pairs.held_out, num_draws, rng)
    permuted = label_permutations(pairs.held_out, num_draws, rng)
    truth = extract(pairs, *true_labels(pairs.held_out), pairs.extraction)
    halved = extract(pairs, *halves, pairs.extraction)
    return Redrawn(
        truth=truth,
        halves=halved,
        permuted=extract(pairs, *permuted, pairs.extraction),
        axes=concatenated([truth.axes(), halved.axes()]),
    )
