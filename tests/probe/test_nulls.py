"""probe.analysis.statistics.nulls: tests against Haar directions, by simulated ones."""

import math

import numpy as np
import pytest

from probe.analysis.statistics.nulls import haar_mean, haar_test, upper_p


def haar_directions(rng, num_draws, r):
    u = rng.normal(size=(num_draws, r))
    return u / np.linalg.norm(u, axis=1, keepdims=True)


def test_haar_test_is_calibrated_for_many_modules():
    """The normal p of a sum over 20 modules of rank 16 rejects 5% of Haar draws at 5%."""
    rng = np.random.default_rng(0)
    cosines = sum(haar_directions(rng, 2500, 16)[:, 0] for _ in range(20)) / 20
    sd = math.sqrt(1 / (20 * 16))
    rejected = np.mean([haar_test(c, sd).p < 0.05 for c in cosines])
    assert rejected == pytest.approx(0.05, abs=0.015)
    with pytest.raises(ValueError, match="positive"):
        haar_test(0.1, 0.0)


@pytest.mark.parametrize(("common", "independent_fails"), [(0.0, False), (0.9, True)])
def test_one_draw_of_directions_is_shared_by_all_steps(common, independent_fails):
    """The mean of 20 cosines with ONE Haar direction: the shared bound holds even when the gradients point alike.

    There, treating steps as independent rejects far more than 5% of random directions.
    """
    rng = np.random.default_rng(3)
    r, num_steps, num_draws = 64, 20, 800
    gradients = math.sqrt(common) * rng.normal(size=r) + math.sqrt(1 - common) * rng.normal(size=(num_steps, r))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    sds = [1 / math.sqrt(r)] * num_steps
    tests = [haar_mean((gradients @ u).tolist(), sds) for u in haar_directions(rng, num_draws, r)]
    shared = np.mean([test.shared.p < 0.05 for test in tests])
    independent = np.mean([test.independent.p < 0.05 for test in tests])
    assert shared <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / num_draws), f"the bound rejects {shared:.1%}"
    assert (independent > 0.3) == independent_fails, f"independent steps reject {independent:.1%}"


def test_haar_mean_by_hand():
    found = haar_mean([0.1, 0.3], [0.1, 0.2])
    assert (found.n, found.mean) == (2, pytest.approx(0.2))
    assert found.sd_shared == pytest.approx(0.15)
    assert found.sd_independent == pytest.approx(math.sqrt(0.01 + 0.04) / 2)
    assert haar_mean([], []) is None


def test_draws_that_differ_by_rounding_are_ties():
    """Of four draws one is larger and two are the statistic again, in single precision: (1 + 3) / 5."""
    again = float(np.float32(0.7))
    assert again < 0.7
    assert upper_p(0.7, [again, 0.7, 0.9, 0.1]) == 0.8
    assert upper_p(-0.7, [-again, 0.9, -0.8, -0.75]) == 0.6
