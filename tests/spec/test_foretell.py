"""The study foretell: Spearman's interval, simulated."""

import math

import numpy as np
import pytest
from scripts import ROOT, load_script

foretell = load_script(ROOT / "spec" / "studies" / "foretell" / "foretell.py")


@pytest.mark.parametrize("num_treatments", [8, 17])
@pytest.mark.parametrize("r", [0.0, 0.8])
def test_the_interval_covers(num_treatments: int, r: float) -> None:
    """Of bivariate normal measures and falls, whose rank correlation is 6 / pi arcsin(r / 2)."""
    rng, truth, covered = np.random.default_rng(0), 6 / math.pi * math.asin(r / 2), 0
    for _ in range(400):
        x = rng.normal(size=num_treatments)
        y = r * x + math.sqrt(1 - r * r) * rng.normal(size=num_treatments)
        _, interval = foretell.spearman([*x], [*y])
        covered += interval[0] <= truth <= interval[1]
    assert 0.92 <= covered / 400 <= 0.99


def test_a_perfect_ranking_is_no_certainty_and_no_ranking_no_number() -> None:
    rho, (low, high) = foretell.spearman([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])
    assert rho == pytest.approx(1)
    assert 0 < low < 0.99 < high < 1
    assert math.isnan(foretell.spearman([1, 1, 1, 1], [1, 2, 3, 4])[0])
    assert foretell.spearman([1, 2, 3], [3, 2, 1]) == (pytest.approx(-1), None), "three treatments have no interval"
