import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.adapters.svd import (
    MAX_CONDITION,
    condition,
    decompose,
    frames,
    largest,
    measure_rounding,
    needed_factors,
    rounded,
)


def random_weight(d_out, d_in, seed=0, dtype=torch.float32):
    return torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@settings(deadline=None, max_examples=30)
@given(d_out=st.integers(1, 9), d_in=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_factors_rebuild_the_weight(d_out, d_in, seed):
    """W = U diag(S) Vh with orthonormal frames, S descending, and the largest entry of each row of Vh positive."""
    weight = random_weight(d_out, d_in, seed, torch.float64)
    U, S, Vh = decompose(weight)
    rank = min(d_out, d_in)
    identity = torch.eye(rank, dtype=torch.float64)
    torch.testing.assert_close((U * S) @ Vh, weight)
    torch.testing.assert_close(U.T @ U, identity)
    torch.testing.assert_close(Vh @ Vh.T, identity)
    assert (S.diff() <= 0).all()
    assert (Vh.gather(1, Vh.abs().argmax(1, keepdim=True)) > 0).all(), "the sign convention is broken"


def same(first, second):
    """Bit-equal factors, and the same of them."""
    pairs = zip(first, second, strict=True)
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@pytest.mark.parametrize(("d_out", "d_in", "kept"), [(9, 4, "S Vh"), (4, 9, "U S"), (6, 6, "U S Vh")])
def test_only_the_needed_factors_are_kept(d_out, d_in, kept):
    """The wide side of a rectangular weight follows from the other (extraction.adapters.svd)."""
    (factors,) = needed_factors([random_weight(d_out, d_in)])
    assert " ".join(name for name, factor in factors._asdict().items() if factor is not None) == kept


@pytest.mark.parametrize(("d_out", "d_in"), [(9, 4), (4, 9), (6, 6)])
def test_a_stack_is_decomposed_as_its_weights(d_out, d_in):
    """Reference: each weight alone. No factor is a view of the whole stack, which it would keep in memory."""
    weights = [random_weight(d_out, d_in, seed) for seed in range(3)]
    for weight, found in zip(weights, needed_factors(weights), strict=True):
        (alone,) = needed_factors([weight])
        assert same(found, alone)
        held = [factor.untyped_storage().nbytes() / factor.nbytes for factor in found if factor is not None]
        assert set(held) == {1.0}


@pytest.mark.parametrize("smallest", [0.0, 1e-6, 1e-2])
def test_ill_conditioned_weight_keeps_both_factors(smallest):
    """Dividing by a tiny singular value would blow up rounding, so such a weight keeps U and Vh."""
    U, S, Vh = decompose(random_weight(9, 4, dtype=torch.float64))
    S = torch.tensor([1.0, 1.0, 1.0, smallest], dtype=torch.float64)
    assert not condition(S) <= MAX_CONDITION
    assert all(factor is not None for factor in needed_factors([(U * S) @ Vh])[0])


def test_condition_is_the_mean_amplification():
    """|W|_F |W^+|_F / r: 1 for an orthogonal matrix, unchanged by scale."""
    weight = random_weight(7, 4, dtype=torch.float64)
    expected = torch.linalg.matrix_norm(weight) * torch.linalg.matrix_norm(torch.linalg.pinv(weight)) / 4
    for scale in (1.0, 1e-3):
        torch.testing.assert_close(condition(decompose(scale * weight).S), expected)
    assert condition(torch.full((5,), 0.3)) == 1.0


@settings(deadline=None, max_examples=30)
@given(d_out=st.integers(1, 9), d_in=st.integers(1, 9), rank=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_largest_triplets_are_the_best_approximation(d_out, d_in, rank, seed):
    """Eckart-Young: |W - U_R S_R V_R|^2 = the sum of the other S^2. What is kept holds no memory of the rest."""
    weight = random_weight(d_out, d_in, seed, torch.float64)
    whole = decompose(weight)
    U, S, Vh = cut = largest(whole, rank)
    assert len(S) == min(rank, d_out, d_in)
    expected = whole.S[rank:].square().sum().sqrt()
    torch.testing.assert_close(torch.linalg.matrix_norm(weight - (U * S) @ Vh), expected, rtol=0, atol=1e-12)
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in cut)
    assert same(largest(whole, None), whole)


@pytest.mark.parametrize(("d_out", "d_in"), [(9, 4), (4, 9), (6, 6)])
@pytest.mark.parametrize("rank", [None, 2])
def test_frames_of_what_is_kept(d_out, d_in, rank):
    """The frame that is not kept follows from the other one and W, for any number of triplets."""
    weight = random_weight(d_out, d_in, dtype=torch.float64)
    U, S, Vh = decompose(weight)
    found = frames(largest(needed_factors([weight])[0], rank), weight)
    for frame, expected in zip(found, (U[:, :rank], Vh[:rank]), strict=True):
        torch.testing.assert_close(frame, expected)


@pytest.mark.parametrize(("d_out", "d_in"), [(96, 40), (40, 96), (64, 64)])
def test_rounding_is_measured(d_out, d_in):
    """Reference: the same numbers spelled out. bfloat16 rounds an entry by at most 2^-9 of it."""
    weight = random_weight(d_out, d_in)
    (exact,) = needed_factors([weight])
    stored = rounded(exact)
    assert [part is None or part.dtype for part in (stored.U, stored.Vh)] == [
        part is None or torch.bfloat16 for part in (exact.U, exact.Vh)
    ]
    assert torch.equal(stored.S, exact.S)
    found = measure_rounding(weight, exact, stored)
    rows = [part.float() for part in (None if stored.U is None else stored.U.T, stored.Vh) if part is not None]
    products = [(i == j, float(a @ b)) for f in rows for i, a in enumerate(f) for j, b in enumerate(f)]
    assert found.orthonormality == pytest.approx(max(abs(ab - equal) for equal, ab in products), abs=1e-6)
    assert 1e-4 < found.orthonormality < 2**-8
    assert 1e-7 < found.cosine_error < 2**-15, "the angle is of the order of the rounding, 2^-9"
    nothing = measure_rounding(weight, exact, exact)
    assert nothing.cosine_error < 1e-12
    assert nothing.orthonormality < 1e-5
