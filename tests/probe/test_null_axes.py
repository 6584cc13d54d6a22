"""The axes of the nulls are drawn once for a set of pairs, and every analysis goes on from the same generator."""

from pathlib import Path

import numpy as np

from probe.analysis.statistics.gram import read_pairs
from probe.analysis.statistics.null_axes import null_axes
from probe.records.run import read_run


def test_the_same_pairs_share_their_axes(many_arms: Path):
    """Two readings of one file are the same key; another seed, or one number that differs, is another."""
    run = read_run(many_arms)
    axes = null_axes(read_pairs(run), 9, 0)
    assert null_axes(read_pairs(run), 9, 0) is axes
    assert not np.array_equal(null_axes(read_pairs(run), 9, 1).permuted.rows, axes.permuted.rows)
    changed = read_pairs(run)
    changed.pairs[0, 0, 0] *= 2
    assert changed != read_pairs(run)


def test_every_caller_draws_on_from_the_same_state(many_arms: Path):
    axes = null_axes(read_pairs(read_run(many_arms)), 9, 0)
    assert axes.rng().random() == axes.rng().random()
