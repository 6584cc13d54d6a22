"""probe.step.projection: the identities of METHOD section 4, slow references, and the Haar variances by simulation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.settings.arms import SIDES
from probe.step.projection import haar_variance, project, project_modules, removed_norm, sample_cosines

SIDE_NAMES = sorted(SIDES)
RANKS = {"a": (8, 3), "b": (5, 1), "c": (6, 2)}


def orthonormal(k, r, dtype=torch.float64):
    """(k, r) with orthonormal rows, Haar up to signs."""
    q, upper = torch.linalg.qr(torch.randn(r, k, dtype=dtype))
    return (q * upper.diagonal().sign()).mT.contiguous()


def example(num_samples=4, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    gradients = {m: torch.randn(num_samples, r, dtype=dtype) for m, (r, _) in RANKS.items()}
    return gradients, {m: orthonormal(k, r, dtype) for m, (r, k) in RANKS.items()}


def projected(g, V, **side):
    return project(g, V, **side)[0]


def test_gates_by_hand():
    """g = (3, -2, 1), V the first two axes, c = (3, -2). Of a gradient inside the span rounding is set to 0."""
    g, V = torch.tensor([3.0, -2.0, 1.0]), torch.eye(3)[:2]
    assert projected(g, V, side="one_sided").tolist() == [0, -2, 1]
    assert projected(g, V, side="two_sided").tolist() == [0, 0, 1]
    assert projected(g, V, side="one_sided", overshoot=2.0).tolist() == [-3, -2, 1]
    torch.manual_seed(1)
    V = orthonormal(3, 32, torch.float32)
    assert projected(torch.randn(3) @ V, V, side="two_sided").abs().max() == 0


@pytest.mark.parametrize("side", SIDE_NAMES)
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 4), overshoot=st.sampled_from([0.0, 0.5, 1.0, 1.5]))
def test_gate_changes_only_the_coefficients(side, seed, k, overshoot):
    """V g' = c - overshoot * side(c), and the part of g outside the span of V is untouched."""
    torch.manual_seed(seed)
    g, V = torch.randn(7, dtype=torch.float64), orthonormal(k, 7)
    c, left_of_g = V @ g, projected(g, V, side=side, overshoot=overshoot)
    left = {"one_sided": c.clamp_min(0), "two_sided": c}[side]
    torch.testing.assert_close(V @ left_of_g, c - overshoot * left)
    torch.testing.assert_close(left_of_g - V.mT @ (V @ left_of_g), g - V.mT @ c)


@pytest.mark.parametrize("side", SIDE_NAMES)
def test_measures_equal_the_slow_reference(side):
    """METHOD's table written out with Python loops over samples, modules and directions."""
    gradients, V = example()
    found = project_modules(gradients, V, side=side)
    M = len(V)
    for i in range(4):
        for state, g in ((found.before, gradients), (found.after, found.gradients)):
            u = {m: sum(V[m][j] for j in range(len(V[m]))) / math.sqrt(len(V[m])) for m in V}
            norm = math.sqrt(sum(float(g[m][i] @ g[m][i]) for m in V))
            dots = {m: float(u[m] @ g[m][i]) for m in V}
            positive = sum(max(0.0, float(row @ g[m][i])) ** 2 for m in V for row in V[m])
            expected = {
                "cos": sum(dots.values()) / (math.sqrt(M) * norm),
                "mean_cos": sum(dots[m] / float(g[m][i].norm()) for m in V) / M,
                "hackward_frac": math.sqrt(positive) / norm,
                "norm": norm,
            }
            for name, value in expected.items():
                assert float(getattr(state, name)[i]) == pytest.approx(value, abs=1e-12), (name, i)
        fired = sum(bool((V[m] @ gradients[m][i] > 0).any()) if side == "one_sided" else True for m in V)
        assert float(found.frac_fired[i]) == pytest.approx(fired / M)
    far = project_modules(gradients, V, side=side, overshoot=1.5).gradients
    removed = torch.stack([(gradients[m] - far[m]).square().sum(-1) for m in RANKS]).sum(0).sqrt()
    torch.testing.assert_close(removed_norm(gradients, V, side=side, overshoot=1.5), removed)


def test_zero_gradient_has_no_cosine():
    """NaN and never 0, which reads as orthogonal; a module without gradient is left out of the mean over modules."""
    gradients, V = example(num_samples=2)
    for m in gradients:
        gradients[m][0] = 0
    gradients["a"][1] = 0
    found = project_modules(gradients, V, side="one_sided")
    for name, values in found.measures().items():
        if name == "frac_fired":
            continue
        assert torch.isnan(values[0]), f"{name} of a zero gradient is {values[0]}, expected NaN"
        assert torch.isfinite(values[1]), f"{name}: one zero module made the whole measure NaN"
    rest = {m: gradients[m][1] for m in ("b", "c")}
    torch.testing.assert_close(found.before.mean_cos[1], sample_cosines(rest, {m: V[m] for m in rest}).mean_cos)
    assert found.frac_fired[0] == 0


def test_modules_without_directions():
    """k = 0 is not counted in M and cannot fire; its gradient still belongs to norm(g)."""
    gradients, V = example()
    dropped = {**V, "c": V["c"][:0]}
    found, full = sample_cosines(gradients, dropped), sample_cosines(gradients, V)
    torch.testing.assert_close(found.norm, full.norm)
    rest = {m: gradients[m] for m in ("a", "b")}
    part = sample_cosines(rest, {m: V[m] for m in rest})
    torch.testing.assert_close(found.cos, part.cos * part.norm / full.norm)
    assert set(project_modules(gradients, dropped, side="two_sided").frac_fired.tolist()) == {1.0}
    with pytest.raises(ValueError, match="noise floor"):
        sample_cosines(gradients, {m: v[:0] for m, v in V.items()})
    with pytest.raises(ValueError, match="different modules"):
        sample_cosines(gradients, {m: V[m] for m in ("a", "b")})


def test_low_precision_is_accumulated_in_float32():
    """bfloat16 in, float32 sums: the cosine equals that of the same numbers in float64 to float32 accuracy."""
    gradients, V = example(dtype=torch.float32)
    low = {m: g.bfloat16() for m, g in gradients.items()}
    found = sample_cosines(low, V).cos
    exact = sample_cosines({m: g.double() for m, g in low.items()}, V).cos
    assert found.dtype == torch.float32
    assert exact.dtype == torch.float64
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=0)


def test_haar_variance_by_simulation():
    """Against 1500 Haar draws of the directions, for uneven norms, ranks, k and an empty module."""
    torch.manual_seed(3)
    sizes, ks, draws = {"a": 8, "b": 4, "c": 6, "d": 5}, {"a": 3, "b": 1, "c": 2, "d": 0}, 1500
    gradients = {m: torch.randn(2, r) * scale for (m, r), scale in zip(sizes.items(), (3, 0.5, 1, 1), strict=True)}
    gradients["b"][1] = 0
    drawn = [{m: orthonormal(k, sizes[m], torch.float32) for m, k in ks.items()} for _ in range(draws)]
    sampled = torch.stack([sample_cosines(gradients, V).cos for V in drawn])
    exact = haar_variance(gradients, {m: torch.zeros(k, sizes[m]) for m, k in ks.items()})
    tolerance = 5 * math.sqrt(2 / draws)  # relative standard error of a variance, five of them
    torch.testing.assert_close(sampled.var(0), exact, rtol=tolerance, atol=0)
    assert sampled.mean(0).abs().max() < 0.03
