"""Minimum detectable effects: textbook values."""

import math

from probe.analysis.statistics.significance import mde


def test_textbook_values():
    """Cohen (1988): d = .5 needs 64 a group and d = .8 needs 26, two-sided 5%, power 80%."""
    for effect, n in ((0.5, 64), (0.8, 26)):
        assert mde(1.0, n) < effect < mde(1.0, n - 1)
    assert mde(0.15, 1) == math.inf
