"""Offline geometry against the online one: extraction.directions and probe.step.projection on the same gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import pair_gram
from torch import Tensor

from extraction.directions import PairGradients, extract_directions
from extraction.settings import Method
from probe.analysis.statistics.geometry import (
    Axes,
    PairGram,
    StepGram,
    along_modules,
    cosines,
    extract,
    mean_module_unit,
    samples_of,
    weighted,
)
from probe.analysis.statistics.nulls import label_permutations, sign_transfer, true_labels
from probe.analysis.statistics.run_gradients import link
from probe.records.run import read_run
from probe.step.projection import sample_cosines

SIZES = {"a": 40, "b": 17, "c": 64}
NUM_PAIRS, NUM_SAMPLES = 12, 6


def hackward(draws, gradients):
    """(S,) norm(relu(V g)) / norm(g) along the first draw, over all modules."""
    components = np.maximum(np.matmul(gradients.inner, draws.rows[0].swapaxes(-1, -2)), 0.0)
    return np.sqrt(np.square(components).sum((0, 2))) / gradients.norm


def decaying(rows: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {m: torch.randn(rows, r, generator=generator) / torch.arange(1, r + 1) ** 0.5 for m, r in SIZES.items()}


@pytest.fixture(scope="module")
def pairs() -> PairGradients:
    held_out = torch.arange(NUM_PAIRS) % 4 == 1
    hack, clean = decaying(NUM_PAIRS, 0), decaying(NUM_PAIRS, 1)
    return PairGradients(hack=hack, clean=clean, held_out=held_out, metadata={})


def rows_of(pairs: PairGradients) -> list[np.ndarray]:
    """(2n, r) a module."""
    return [torch.cat([pairs.hack[m], pairs.clean[m]]).double().numpy() for m in SIZES]


def gram_of(pairs: PairGradients, **settings) -> PairGram:
    gram = pair_gram(rows_of(pairs), pairs.held_out.numpy(), k=3)
    return replace(gram, eps=float(torch.finfo(torch.float32).eps), **settings)


def step_of(pairs: PairGradients, unit: dict[str, Tensor]) -> StepGram:
    own = [unit[m].double().numpy() for m in SIZES]
    inner = np.stack([g @ rows.T for g, rows in zip(own, rows_of(pairs), strict=True)])
    return StepGram(inner=inner, samples=np.stack([g @ g.T for g in own]), weights={})


@pytest.mark.parametrize(
    ("method", "k", "tau", "floor"),
    [
        *(("svd", 1, 0.0, 0.0), ("svd", 3, 0.0, 0.0), ("svd", 5, 0.6, 0.0), ("svd", 4, 0.0, 0.5), ("svd", 4, 0.7, 0.3)),
        *(("mean", 1, 0.0, 0.0), ("mean", 1, 0.0, 0.5)),
    ],
)
def test_directions_equal_the_online_ones(pairs: PairGradients, method: Method, k: int, tau: float, floor: float):
    """Same V (up to float32), and with it the measures of gradients, within 1e-6."""
    gram = gram_of(pairs, method=method, k=k, tau=tau, drop_bottom_frac=floor)
    online = extract_directions(pairs.differences(), method=method, k=k, tau=tau, drop_bottom_frac=floor)
    offline = extract(gram, *true_labels(gram))
    for m, module in enumerate(SIZES):
        kept = offline.kept[0, m].sum()
        assert kept == len(online.vectors[module]), f"{module}: other directions were dropped"
    unit = decaying(NUM_SAMPLES, 2)
    expected = sample_cosines({m: g.double() for m, g in unit.items()}, online.vectors)
    gradients = samples_of(step_of(pairs, unit))
    np.testing.assert_allclose(cosines(offline.axes(), gradients)[0], expected.cos, atol=1e-6)
    np.testing.assert_allclose(hackward(offline, gradients), expected.hackward_frac, atol=1e-6)


def test_weighted_totals_equal_summing_gradients(pairs: PairGradients):
    """cos of sum_i w_i g_i for three advantage settings at once, against the sum itself; per module as well."""
    unit, gram = decaying(NUM_SAMPLES, 3), gram_of(pairs)
    weights = np.random.default_rng(0).normal(size=(3, NUM_SAMPLES))
    axes = extract(gram, *true_labels(gram)).axes()
    totals = weighted(step_of(pairs, unit), weights)
    online = extract_directions(pairs.differences(), k=3)
    sums = {m: torch.from_numpy(weights) @ g.double() for m, g in unit.items()}
    expected = sample_cosines(sums, online.vectors)
    np.testing.assert_allclose(cosines(axes, totals)[0], expected.cos, atol=1e-6)
    by_prompt = np.array([0.5, 0.3, 0.2])
    module_means = along_modules(axes, mean_module_unit(totals, by_prompt))[0].mean()
    np.testing.assert_allclose(module_means, by_prompt @ expected.mean_cos.numpy(), atol=1e-6)


def test_each_draw_equals_an_extraction_of_its_own(pairs: PairGradients):
    """Batched label permutations: draw b is the extraction of D = P[first_b] - P[second_b]."""
    gram = gram_of(pairs, drop_bottom_frac=0.25)
    first, second = label_permutations(gram, 7, np.random.default_rng(1))
    axes, unit = extract(gram, first, second).axes(), decaying(NUM_SAMPLES, 4)
    both = {m: torch.cat([pairs.hack[m], pairs.clean[m]]) for m in SIZES}
    for b in range(7):
        differences = {m: rows[first[b].tolist()] - rows[second[b].tolist()] for m, rows in both.items()}
        online = extract_directions(differences, k=3, drop_bottom_frac=0.25)
        expected = sample_cosines({m: g.double() for m, g in unit.items()}, online.vectors).cos
        np.testing.assert_allclose(cosines(axes, samples_of(step_of(pairs, unit)))[b], expected, atol=1e-6)


def test_draws_keep_to_the_extraction_pairs():
    """No draw touches a held-out pair; permutations use every gradient once."""
    held_out = np.arange(8) % 3 == 2
    allowed = {*np.flatnonzero(~held_out), *(np.flatnonzero(~held_out) + 8)}
    rng, gram = np.random.default_rng(0), pair_gram([np.zeros((16, 1))], held_out)
    first, second = label_permutations(gram, 50, rng)
    assert all({*a, *b} == allowed for a, b in zip(first, second)), "a gradient is used twice, or a held-out one"


def test_zero_gradients_have_no_cosine(pairs: PairGradients):
    gram, unit = gram_of(pairs), decaying(2, 7)
    unit = {m: torch.cat([g[:1], torch.zeros_like(g[:1])]) for m, g in unit.items()}
    axes = extract(gram, *true_labels(gram)).axes()
    assert np.isnan(cosines(axes, samples_of(step_of(pairs, unit)))).tolist() == [[False, True]]
    none = Axes(rows=axes.rows * 0, kept=axes.kept & False)
    assert np.isnan(cosines(none, samples_of(step_of(pairs, unit)))).all(), "no direction, and yet a cosine"


def test_the_held_out_sign_by_hand():
    """Cosines .6, 1, .8 and -1: 3 of 4 right, Clopper-Pearson [.194, .994]; what has no cosine is not counted wrong."""
    hack = np.array([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0], [4.0, 3.0], [-5.0, 0.0], [0.0, 0.0]])
    gram = pair_gram([np.concatenate([hack, 0 * hack])], [False, *[True] * 5], k=1)
    found = sign_transfer(gram)
    assert (found.n, found.value) == (4, 0.75)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.1941, 0.9937), abs=1e-4)
    assert found.parts["mean_cos"] == pytest.approx((0.6 + 1 + 0.8 - 1) / 4)
    assert sign_transfer(replace(gram, held_out=gram.held_out & False)) is None


def test_offline_equals_the_records_of_a_real_run(many_arms: Path):
    """cos_S_nll, cos_in and hackward_frac_in of every record, from inner products alone, within 1e-6."""
    run = read_run(many_arms)
    steps = [s for s in run.steps if s.arm == "projected" and s.cos_in is not None]
    linked = link(run, [s for s in run.samples if s.arm == "projected"], steps)
    assert linked.error < 1e-6
    pairs = linked.pairs
    found = hackward(extract(pairs, *true_labels(pairs)), linked.totals)
    np.testing.assert_allclose(found, [step.hackward_frac_in for step in steps], atol=1e-6)
