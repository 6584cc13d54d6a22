"""By simulation: permutation nulls are uniform without signal; intervals of few prompts and seeds cover.

`tests/bench/calibration_table.py` prints the whole table (spec/guide/numbers.md).
"""

import math

import numpy as np
import pytest
from planted import gradients_along, pair_gram
from scipy import stats

from probe.analysis.statistics.geometry import Gradients, cosines, extract
from probe.analysis.statistics.nulls import haar_test, label_permutations, null_test, true_labels, upper_p

NUM_DRAWS = 99
SIZES = (24, 40)


def decaying(rng, rows: int) -> list[np.ndarray]:
    return [rng.normal(size=(rows, r)) / np.arange(1, r + 1) for r in SIZES]


def uniform_p(p_values: list[float], rng) -> float:
    """KS p of Monte-Carlo p-values, made continuous: p - U / (B + 1) is uniform when p is."""
    return stats.kstest(np.array(p_values) - rng.random(len(p_values)) / (NUM_DRAWS + 1), "uniform").pvalue


def mean_cos(axes, found: Gradients) -> np.ndarray:
    return cosines(axes, found).mean(1)


def test_label_permutations_are_calibrated_on_decaying_spectra():
    """No signal, spectrum 1 / j: p of N2 is uniform, while the Haar floor would call far more than 5% significant."""
    rng = np.random.default_rng(0)
    p_values, haar = [], 0
    num_sims = 200
    for _ in range(num_sims):
        pairs = decaying(rng, 22)  # an odd number of pairs: no vote is tied
        found, gram = gradients_along(pairs, decaying(rng, 4)), pair_gram(pairs)
        observed = mean_cos(extract(gram, *true_labels(gram)).axes(), found)[0]
        axes = extract(gram, *label_permutations(gram, NUM_DRAWS, rng)).axes()
        p_values.append(null_test("cos", observed, mean_cos(axes, found)).p)
        floor = math.sqrt(sum((found.norms[m] ** 2).mean() / r for m, r in enumerate(SIZES)) / 2) / found.norm.mean()
        haar += abs(observed) > 1.96 * floor / math.sqrt(4)
    assert uniform_p(p_values, rng) > 0.01, f"{np.mean(np.array(p_values) < 0.05):.1%} below .05"
    assert haar / num_sims > 0.2, "the simulated spectrum is flat: Haar directions would be null enough"


def test_null_test_by_hand():
    """Draws -3 .. 3 without 0: |2| is reached by -3, -2, 2, 3, so p = (1 + 4) / (6 + 1)."""
    found = null_test("x", 2.0, [-3, -2, -1, 1, 2, 3])
    assert (found.p, found.null, found.value, found.n) == (5 / 7, 0.0, 2.0, 6)
    assert found.parts["z"] == pytest.approx(2 / math.sqrt(28 / 5))
    assert null_test("x", 0.9, [0.5, 0.6, 0.4], centre=0.5).p == 0.25
    assert null_test("x", 1.0, [1.0, 1.0]).parts["z"] is None
    assert null_test("x", 0.9, [0.1, 0.6, 0.4], centre=0.5).high == 1.0, "an AUROC ends at 1"
    assert haar_test("x", -0.9, 0.2).low == -1.0, "a cosine at -1"


def haar_directions(rng, num_draws, r):
    u = rng.normal(size=(num_draws, r))
    return u / np.linalg.norm(u, axis=1, keepdims=True)


@pytest.mark.parametrize(("common", "independent_fails"), [(0.0, False), (0.9, True)])
def test_one_draw_of_directions_is_shared_by_all_steps(common, independent_fails):
    """The mean of 20 cosines with ONE Haar direction: the shared bound holds even when the gradients point alike.

    There, treating steps as independent rejects far more than 5% of random directions.
    """
    rng = np.random.default_rng(3)
    r, num_steps, num_draws = 64, 20, 800
    gradients = math.sqrt(common) * rng.normal(size=r) + math.sqrt(1 - common) * rng.normal(size=(num_steps, r))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    sd = 1 / math.sqrt(r)
    means = [float((gradients @ u).mean()) for u in haar_directions(rng, num_draws, r)]
    shared = np.mean([haar_test("x", mean, sd).p < 0.05 for mean in means])
    independent = np.mean([haar_test("x", mean, sd / math.sqrt(num_steps)).p < 0.05 for mean in means])
    assert shared <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / num_draws), f"the bound rejects {shared:.1%}"
    assert (independent > 0.3) == independent_fails, f"independent steps reject {independent:.1%}"


def test_draws_that_differ_by_rounding_are_ties():
    """Of four draws one is larger and two are the statistic again, in single precision: (1 + 3) / 5."""
    again = float(np.float32(0.7))
    assert again < 0.7
    assert upper_p(0.7, [again, 0.7, 0.9, 0.1]) == 0.8
    assert upper_p(-0.7, [-again, 0.9, -0.8, -0.75]) == 0.6
