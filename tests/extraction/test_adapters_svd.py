import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.adapters import svd
from extraction.adapters.svd import (
    MAX_CONDITION,
    condition,
    decompose,
    digest,
    digest_all,
    factorise_all,
    largest,
    needed,
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
def test_the_wide_factor_is_left_out(d_out, d_in, kept):
    factors = needed(decompose(random_weight(d_out, d_in)))
    assert " ".join(name for name, factor in factors._asdict().items() if factor is not None) == kept


@pytest.mark.parametrize("smallest", [0.0, 1e-6, 1e-2])
def test_ill_conditioned_weight_keeps_both_factors(smallest):
    """condition(S) = |W|_F |W^+|_F / r: 1 for an orthogonal matrix, unchanged by scale."""
    weight = random_weight(9, 4, dtype=torch.float64)
    U, S, Vh = decompose(weight)
    expected = torch.linalg.matrix_norm(weight) * torch.linalg.matrix_norm(torch.linalg.pinv(weight)) / 4
    torch.testing.assert_close(condition(S), expected)
    torch.testing.assert_close(condition(1e-3 * S), expected)
    assert condition(torch.full((5,), 0.3)) == 1.0
    S = torch.tensor([1.0, 1.0, 1.0, smallest], dtype=torch.float64)
    assert not condition(S) <= MAX_CONDITION
    assert all(factor is not None for factor in needed(decompose((U * S) @ Vh)))


@settings(deadline=None, max_examples=30)
@given(d_out=st.integers(1, 9), d_in=st.integers(1, 9), rank=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_largest_triplets_are_the_best_approximation(d_out, d_in, rank, seed):
    """Eckart-Young: |W - U_R S_R V_R|^2 = the sum of the other S^2. What is kept holds no memory of the rest."""
    weight = random_weight(d_out, d_in, seed, torch.float64)
    whole = decompose(weight)
    U, S, Vh = cut = largest(whole, rank)
    assert len(S) == min(rank, d_out, d_in)
    expected = whole.S[rank:].square().sum().sqrt()
    missing = torch.linalg.matrix_norm(weight - (U * S) @ Vh)
    torch.testing.assert_close(missing, expected, rtol=0, atol=1e-12)
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in cut)
    assert same(largest(whole, None), whole)


def factorise(weight, cache_dir, **options):
    return factorise_all({"w": weight}, {"w": digest(weight)}, cache_dir, **options)["w"]


def test_digest_sees_values_shape_and_precision():
    """No two of: a weight, one changed value, another shape of the same bytes, another precision.

    A bf16 weight and its float32 copy hold the same values: same factors, same digest, one cache file.
    """
    weight = random_weight(4, 6)
    changed = weight.clone()
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(9.0))
    assert len({digest(w) for w in (weight, changed, weight.reshape(6, 4), weight.double())}) == 4
    assert digest(weight.T.contiguous().T) == digest(weight), "the digest depends on the memory layout"
    half = weight.bfloat16()
    assert digest(half) == digest(half.float())
    assert same(decompose(half), decompose(half.float()))
    assert (decompose(half).S.dtype, decompose(half.double()).S.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("rank", [None, 1, 3])
def test_all_at_once_is_one_by_one(tmp_path, rank):
    """Threads change nothing: the same bits cold, warm and without a cache, and torch's own threads are as before."""
    weights = {f"w{i}": random_weight(5 + i % 3, 6, seed=i) for i in range(12)}
    digests = digest_all(weights)
    assert digests == {name: digest(weight) for name, weight in weights.items()}
    before = torch.get_num_threads()
    for cache in (None, tmp_path, tmp_path):
        for name, found in factorise_all(weights, digests, cache, rank=rank).items():
            alone = factorise(weights[name], None, rank=rank)
            assert same(found, alone), name
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("d_out", "d_in"), [(9, 4), (4, 9), (5, 5)])
def test_one_entry_serves_every_rank(tmp_path, monkeypatch, d_out, d_in):
    """Whoever asks first, all triplets are stored once; a rank afterwards is their beginning."""
    weight = random_weight(d_out, d_in)
    cut = factorise(weight, tmp_path, rank=3)
    assert [path.name.split(".")[0] for path in tmp_path.iterdir()] == [digest(weight)]
    monkeypatch.setattr(svd, "decompose", pytest.fail)
    whole = factorise(weight, tmp_path)
    assert len(whole.S) == min(d_out, d_in)
    assert same(cut, factorise(weight, tmp_path, rank=3))
    assert same(cut, largest(whole, 3))


@pytest.mark.parametrize("rank", [None, 1])
def test_damaged_cache_file_is_computed_and_written_again(tmp_path, rank):
    """Whatever `read_tensors` refuses, as tests of it have it."""
    weight = random_weight(4, 6)
    expected = factorise(weight, tmp_path, rank=rank)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again = factorise(weight, tmp_path, rank=rank)
    assert same(again, expected)
    assert path.read_bytes() == whole, "the damaged file was left in place"
