import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.adapters import svd
from extraction.adapters.svd import MAX_CONDITION, condition, decompose, digest, factorise, factorise_all


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


def test_negated_weight_has_the_same_right_frame():
    """-W = (-U) diag(S) Vh: with the signs tied to Vh, the right frame does not see the sign of W."""
    weight = random_weight(4, 6, dtype=torch.float64)
    torch.testing.assert_close(decompose(-weight).Vh, decompose(weight).Vh)
    torch.testing.assert_close(decompose(-weight).U, -decompose(weight).U)


def test_half_precision_is_decomposed_in_float32():
    """A bf16 weight and its float32 copy hold the same values: same factors, same digest, one cache file."""
    half = random_weight(4, 6, dtype=torch.bfloat16)
    assert digest(half) == digest(half.float())
    assert all(torch.equal(a, b) for a, b in zip(decompose(half), decompose(half.float()), strict=True))
    assert decompose(half).U.dtype == torch.float32
    assert decompose(half.double()).U.dtype == torch.float64


def test_digest_sees_values_shape_and_precision():
    """No two of: a weight, one changed value, another shape of the same bytes, another precision."""
    weight = random_weight(4, 6)
    changed = weight.clone()
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(9.0))
    assert len({digest(w) for w in (weight, changed, weight.reshape(6, 4), weight.double())}) == 4
    assert digest(weight.T.contiguous().T) == digest(weight), "the digest depends on the memory layout"


def same(first, second):
    """Bit-equal factors, and the same of them."""
    pairs = zip(first, second, strict=True)
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@pytest.mark.parametrize(("d_out", "d_in", "stored"), [(9, 4, "S Vh"), (4, 9, "U S"), (6, 6, "U S Vh")])
def test_only_the_needed_factors_are_kept(tmp_path, d_out, d_in, stored):
    """The wide side of a rectangular weight follows from the other (extraction.adapters.svd): it is not stored."""
    factors, key = factorise(random_weight(d_out, d_in), tmp_path)
    assert " ".join(name for name, factor in factors._asdict().items() if factor is not None) == stored
    assert [path.name for path in tmp_path.iterdir()] == [f"{key}.safetensors"]
    assert key == digest(random_weight(d_out, d_in))


@pytest.mark.parametrize("smallest", [0.0, 1e-6, 1e-2])
def test_ill_conditioned_weight_keeps_both_factors(smallest):
    """Dividing by a tiny singular value would blow up rounding, so such a weight keeps U and Vh."""
    U, S, Vh = decompose(random_weight(9, 4, dtype=torch.float64))
    S = torch.tensor([1.0, 1.0, 1.0, smallest], dtype=torch.float64)
    assert not condition(S) <= MAX_CONDITION
    assert all(factor is not None for factor in factorise((U * S) @ Vh, None).factors)


def test_condition_is_the_mean_amplification():
    """|W|_F |W^+|_F / r: 1 for an orthogonal matrix, unchanged by scale."""
    weight = random_weight(7, 4, dtype=torch.float64)
    expected = torch.linalg.matrix_norm(weight) * torch.linalg.matrix_norm(torch.linalg.pinv(weight)) / 4
    for scale in (1.0, 1e-3):
        torch.testing.assert_close(condition(decompose(scale * weight).S), expected)
    assert condition(torch.full((5,), 0.3)) == 1.0


def test_all_at_once_is_one_by_one(tmp_path):
    """Threads change nothing: the same bits cold, warm and without a cache, and torch's own threads are as before."""
    weights = {f"w{i}": random_weight(5 + i % 3, 6, seed=i) for i in range(12)}
    before = torch.get_num_threads()
    for cache in (None, tmp_path, tmp_path):
        for name, found in factorise_all(weights, cache).items():
            factors, key = factorise(weights[name], None)
            assert found.digest == key
            assert same(found.factors, factors), name
    assert torch.get_num_threads() == before


def test_second_call_reads_the_cache(tmp_path, monkeypatch):
    """The cached factors are the computed ones bit for bit, and nothing is computed again."""
    weight = random_weight(4, 6)
    first = factorise(weight, tmp_path / "svd")
    monkeypatch.setattr(svd, "decompose", lambda _: pytest.fail("the cache was not used"))
    second = factorise(weight, tmp_path / "svd")
    assert second.digest == first.digest
    assert same(first.factors, second.factors)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"not safetensors" + data,
    ],
    ids=["empty", "truncated", "one bit flipped", "foreign header"],
)
def test_damaged_cache_file_is_computed_and_written_again(tmp_path, damage):
    """Whatever happened to the file, the factors are right and the file is whole afterwards."""
    weight = random_weight(4, 6)
    expected = factorise(weight, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert same(factorise(weight, tmp_path).factors, expected.factors)
    assert path.read_bytes() == whole, "the damaged file was left in place"
