"""The axes along which every null of a run is measured: they follow from the pairs and the seed alone.

    axes = null_axes(linked.pairs, num_draws, seed)      remembered: conditions and arms of a run share them
    axes.truth, axes.permuted, axes.couples              v_hack, N2, N3: `geometry.Axes` of 1, B and B draws
    rng = axes.rng()                                     for the draws that come after these

A statistic that is linear in the gradients is then one matrix product for all draws: `geometry.along`.
To add a null of directions: draw its labels in `null_axes` AFTER those that are there, and give it a field.
"""

import copy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from probe.analysis.statistics.geometry import Axes, svd_axes
from probe.analysis.statistics.gram import PairGram
from probe.analysis.statistics.nulls import label_permutations, placebo_couples, true_labels


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


@lru_cache(maxsize=1)
def true_axes(pairs: PairGram) -> Axes:
    """The axes of v_hack as a single draw."""
    return svd_axes(pairs, *true_labels(pairs.held_out), pairs.extraction)


# One entry: axes are B x M x N numbers, and the runs that are analysed together mostly share their pairs.
@lru_cache(maxsize=1)
def null_axes(pairs: PairGram, num_draws: int, seed: int) -> NullAxes:
    """Draw the nulls of directions, B = num_draws of each."""
    # All nulls share one generator: another order of the draws would change every p-value of a stored analysis.
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
