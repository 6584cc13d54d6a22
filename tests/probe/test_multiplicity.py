"""Holm and max-T: by hand, and their family-wise error by simulation."""

import math

import numpy as np
import pytest

from probe.analysis.statistics.significance import holm, max_t
from probe.analysis.statistics.thresholds import ALPHA


def test_holm_by_hand():
    """.01 x 3, .02 x 2 (raised to the .03 before it), .5 x 1; order of the input is kept."""
    assert holm({"c": 0.5, "a": 0.01, "b": 0.012}) == pytest.approx({"c": 0.5, "a": 0.03, "b": 0.03})
    assert list(holm({"c": 0.5, "a": 0.01})) == ["c", "a"]
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_max_t_controls_the_family_and_costs_less_than_bonferroni():
    """12 correlated statistics without effect: some p below .05 in 5% of families; one null sd each."""
    rng = np.random.default_rng(0)
    scale = np.linspace(0.1, 3, 12)
    false, smaller, num_sims = 0, 0, 250
    for _ in range(num_sims):
        draws = (rng.normal(size=(200, 12)) + 2 * rng.normal(size=(200, 1))) * scale
        z, p, critical = max_t(draws[0], draws[1:])
        false += p.min() < 0.05
        single = (1 + np.sum(np.abs(draws[1:]) >= np.abs(draws[0]), axis=0)) / 200
        smaller += p.min() < min(1.0, 12 * single.min())
    assert false / num_sims == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / num_sims))
    assert smaller > 0.7 * num_sims, "the dependence between modules was not used"


def test_max_t_finds_the_one_module_that_differs():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(999, 6)) * [1, 1, 1, 1, 1, 0]
    z, p, critical = max_t(np.array([0.1, 0, 6.0, -0.3, 0.2, 0.0]), draws)
    assert p[2] == pytest.approx(1 / 1000)
    assert p[[0, 1, 3, 4]].min() > 0.5
    assert (z[5], p[5]) == (0.0, 1.0), "a statistic that never moves has no z"


@pytest.mark.parametrize("num_draws", [19, 20, 100])
def test_the_critical_z_is_where_p_crosses_alpha(num_draws):
    """p < ALPHA exactly where |z| > critical; 19 draws cannot get below .05."""
    rng = np.random.default_rng(2)
    z, p, critical = max_t(np.linspace(0, 6, 400), rng.normal(size=(num_draws, 400)))
    assert math.isinf(critical) == (num_draws == 19)
    assert ((p < ALPHA) == (np.abs(z) > critical)).all()
