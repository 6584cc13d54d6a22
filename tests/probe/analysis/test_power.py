"""Power and minimum detectable effects: textbook values, simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from probe.analysis.statistics.significance import mde


def test_textbook_values():
    """Cohen (1988): d = .5 needs 64 a group and d = .8 needs 26, two-sided 5%, power 80%; paired d_z = .5 needs 34."""
    for effect, n, rho in ((0.5, 64, None), (0.8, 26, None), (0.5, 34, 0.5)):
        assert mde(1.0, n, paired_correlation=rho) < effect < mde(1.0, n - 1, paired_correlation=rho)


@pytest.mark.parametrize(("n", "rho"), [(3, None), (5, 0.6)])
def test_the_formula_is_what_the_test_of_a_run_finds(n, rho):
    """Student's test of two groups, and the paired one, reject at the detectable effect in 80% of 4000 samples."""
    rng = np.random.default_rng(n)
    effect = mde(2.0, n, paired_correlation=rho)
    common = 2 * math.sqrt(rho or 0.0) * rng.normal(size=(4000, n))
    own = 2 * math.sqrt(1 - (rho or 0.0))
    a, b = (common + own * rng.normal(size=(4000, n)) for _ in range(2))
    test = stats.ttest_ind(a + effect, b, axis=1) if rho is None else stats.ttest_rel(a + effect, b, axis=1)
    assert np.mean(test.pvalue < 0.05) == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 4000))


def test_one_unit_detects_nothing():
    assert mde(0.15, 1) == math.inf
