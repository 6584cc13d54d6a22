"""The first-order forecast: against the side of the step on the gradients themselves, and against Haar draws."""

import numpy as np
import pytest
import torch
from planted import Planted, link_vectors

from extraction.directions import extract_directions
from probe.analysis.estimate import Estimate
from probe.analysis.forecast import forecast
from probe.step.projection import project

REWARDS = np.array([3.5] * 6 + [0.5] * 2)


def unit(gradient: np.ndarray) -> np.ndarray:
    return gradient / np.linalg.norm(gradient)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum())


def rows_of(linked, **settings) -> dict[str, Estimate]:
    """{target: what projection removes of it}, and `norm`."""
    return {row.name.removeprefix("removed/"): row for row in forecast(linked, **settings)}


def removed_by_gate(vectors, gradient: np.ndarray, side: str, overshoot: float) -> np.ndarray:
    rows = []
    for i, row in enumerate(gradient):
        V = vectors[f"m{i}"].double()
        rows.append(row - project(torch.tensor(row), V, side=side, overshoot=overshoot)[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("side", "overshoot"), [("one_sided", 1.0), ("one_sided", 2.0), ("two_sided", 1.0)])
def test_the_forecast_is_the_gate_of_the_step(side, overshoot):
    """Share of the progress removed and norm removed, from the vectors that the step's own side returns."""
    hack, clean, samples = Planted(prompts=5).vectors(np.random.default_rng(5))
    found = rows_of(link_vectors(hack, clean, samples, held_out=16), side=side, overshoot=overshoot, num_draws=10)
    differences = {f"m{i}": torch.tensor(hack[:32, i] - clean[:32, i]) for i in range(hack.shape[1])}
    vectors = extract_directions(differences, k=2, drop_bottom_frac=0.0).vectors
    totals = [unit(np.tensordot(REWARDS - REWARDS.mean(), group, 1)) for group in samples]
    removed = [removed_by_gate(vectors, total, side, overshoot) for total in totals]
    assert found["norm"].value == pytest.approx(np.sqrt(np.mean([dot(part, part) for part in removed])), rel=1e-5)
    targets = {
        "margin": [[unit(h - c) for h, c in zip(hack[32:], clean[32:], strict=True)]] * 5,
        "hacks": [[unit(group[:4].mean(0))] for group in samples],
        "honest": [[unit(group[4:6].mean(0))] for group in samples],
    }
    for name, by_step in targets.items():
        lost = np.mean([[dot(removed[t], h) for h in by_step[t]] for t in range(5)])
        progress = np.mean([[dot(totals[t], h) for h in by_step[t]] for t in range(5)])
        row = found[name]
        assert row.parts["progress"] == pytest.approx(progress, rel=1e-5)
        if row.value is not None:
            assert row.value == pytest.approx(lost / progress, rel=1e-4)
    assert found["margin"].is_bounded


def test_a_gate_along_the_hack_removes_it_and_spares_the_honest():
    """Against directions of permuted pairs that remove the same norm: the margin is lost, honest progress is not."""
    found = rows_of(Planted(pair_signal=3.0, step_signal=3.0).link(np.random.default_rng(0)), num_draws=99)
    margin, honest = found["margin"], found["honest"]
    assert margin.value > 0.6
    assert margin.p < 0.05
    assert margin.low > margin.null
    assert honest.value is None or honest.value < 0.3
