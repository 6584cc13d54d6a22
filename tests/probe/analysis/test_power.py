"""Power and minimum detectable effects: textbook values, simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from probe.analysis.statistics.significance import mde


def test_textbook_values():
    """Cohen (1988): d = .5 needs 64 a group and d = .8 needs 26, two-sided 5%, power 80%."""
    for effect, n in ((0.5, 64), (0.8, 26)):
        assert mde(1.0, n) < effect < mde(1.0, n - 1)
    assert mde(0.15, 1) == math.inf


def test_the_formula_is_what_the_test_of_a_run_finds():
    """Student's test of two groups of three rejects at the detectable effect in 80% of 4000 samples."""
    a, b = 2 * np.random.default_rng(3).normal(size=(2, 4000, 3))
    test = stats.ttest_ind(a + mde(2.0, 3), b, axis=1)
    assert np.mean(test.pvalue < 0.05) == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 4000))
