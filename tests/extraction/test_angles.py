"""Principal angles against hand-computed cases and the law of Haar directions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.controls import compare_modules, principal_angles


def orthonormal(k: int, r: int, seed: int) -> torch.Tensor:
    draw = torch.randn(r, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw)[0].T


def test_a_plane_turned_by_thirty_degrees() -> None:
    """V = (e1, e2), W = (e1, cos 30 e2 + sin 30 e3): angles 0 and 30; u and w by hand."""
    V = torch.eye(4)[:2]
    W = torch.stack([torch.eye(4)[0], torch.tensor([0.0, math.cos(math.pi / 6), math.sin(math.pi / 6), 0.0])])
    found = principal_angles(V, W)
    assert found.angles == pytest.approx((0, 30), abs=1e-3)
    assert found.overlap == pytest.approx((1 + 0.75) / 2)
    assert found.chance == 0.5
    assert found.axis_cos == pytest.approx((1 + math.cos(math.pi / 6)) / 2)


@settings(deadline=None, max_examples=40)
@given(k=st.integers(1, 4), others=st.integers(1, 4), r=st.integers(4, 9), seed=st.integers(0, 2**31))
def test_angles_belong_to_the_subspaces(k: int, others: int, r: int, seed: int) -> None:
    """The same for any orthonormal basis of either subspace and either order; min(k, l) of them, smallest first."""
    V, W = orthonormal(k, r, seed), orthonormal(others, r, seed + 1)
    turned = orthonormal(k, k, seed + 2) @ V
    found, again, swapped = principal_angles(V, W), principal_angles(turned, W), principal_angles(W, V)
    assert len(found.angles) == min(k, others)
    assert list(found.angles) == sorted(found.angles)
    assert found.angles == pytest.approx(again.angles, abs=1e-4)
    assert found.angles == pytest.approx(swapped.angles, abs=1e-4)
    assert found.axis_cos == pytest.approx(swapped.axis_cos)
    assert principal_angles(V, V).angles == pytest.approx([0] * k, abs=0.02)


def test_overlap_by_chance_is_what_haar_directions_have() -> None:
    """E overlap = max(k, l) / r, by 400 draws."""
    overlaps = [principal_angles(orthonormal(3, 20, s), orthonormal(2, 20, 1000 + s)).overlap for s in range(400)]
    assert sum(overlaps) / len(overlaps) == pytest.approx(3 / 20, abs=0.01)


def test_modules_that_keep_none_are_left_out() -> None:
    V = {"a": torch.eye(3)[:1], "b": torch.zeros(0, 3), "c": torch.eye(3)[:2]}
    W = {"a": torch.eye(3)[:2], "b": torch.eye(3)[:1], "c": torch.zeros(0, 3)}
    assert list(compare_modules(V, W)) == ["a"]
    with pytest.raises(ValueError, match=r"expected \(k, r\) and \(l, r\) with k, l > 0"):
        principal_angles(V["a"], V["b"])
