import pytest
import torch
from safetensors.torch import load_file

from extraction.adapters import svd
from extraction.adapters.svd import decompose, digest, factorise_all, measure_rounding, needed_factors, rounded
from extraction.words import STORAGES


def random_weight(d_out, d_in, seed=0, dtype=torch.float32):
    return torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def factorise(weight, cache_dir, **options):
    """One weight."""
    return factorise_all({"w": weight}, cache_dir, **options)["w"]


def same(first, second):
    """Bit-equal factors, and the same of them."""
    pairs = zip(first, second, strict=True)
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def no_more_svds(monkeypatch):
    def fail(weights):
        assert not weights, "the cache was not used"
        return []

    monkeypatch.setattr(svd, "needed_factors", fail)


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


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rank", [None, 3])
def test_all_at_once_is_one_by_one(tmp_path, storage, rank):
    """Threads change nothing: the same bits cold, warm and without a cache, and torch's own threads are as before."""
    weights = {f"w{i}": random_weight(5 + i % 3, 6, seed=i) for i in range(12)}
    before = torch.get_num_threads()
    for cache in (None, tmp_path, tmp_path):
        for name, found in factorise_all(weights, cache, rank=rank, storage=storage).items():
            alone = factorise(weights[name], None, rank=rank, storage=storage)
            assert (found.digest, found.rounding) == (alone.digest, alone.rounding)
            assert same(found.factors, alone.factors), name
    assert torch.get_num_threads() == before


def test_second_call_reads_the_cache(tmp_path, monkeypatch):
    """The cached factors are the computed ones bit for bit, and nothing is computed again."""
    weight = random_weight(4, 6)
    first = factorise(weight, tmp_path / "svd")
    assert [path.name for path in (tmp_path / "svd").iterdir()] == [f"{digest(weight)}.safetensors"]
    no_more_svds(monkeypatch)
    second = factorise(weight, tmp_path / "svd")
    assert (first.computed, second.computed) == (True, False)
    assert second.digest == first.digest
    assert second.rounding is first.rounding is None
    assert same(first.factors, second.factors)


@pytest.mark.parametrize(("d_out", "d_in"), [(9, 4), (4, 9), (6, 6)])
@pytest.mark.parametrize("storage", STORAGES)
def test_one_entry_serves_every_rank(tmp_path, monkeypatch, d_out, d_in, storage):
    """Whoever asks first, all triplets are stored once; any rank afterwards is their beginning."""
    weight = random_weight(d_out, d_in)
    cut = factorise(weight, tmp_path, rank=2, storage=storage).factors
    assert len(list(tmp_path.iterdir())) == 1
    no_more_svds(monkeypatch)
    whole = factorise(weight, tmp_path, storage=storage).factors
    assert len(whole.S) == min(d_out, d_in)
    again = factorise(weight, tmp_path, rank=2, storage=storage).factors
    assert same(cut, again)
    expected = (None if whole.U is None else whole.U[:, :2], whole.S[:2], None if whole.Vh is None else whole.Vh[:2])
    assert same(cut, expected)


@pytest.mark.parametrize("warm", [False, True])
def test_rounded_entries(tmp_path, monkeypatch, warm):
    """U and Vh in bfloat16 on disk and in memory, and what that does; from the exact entry where there is one."""
    weight = random_weight(9, 4)
    (exact,) = needed_factors([weight])
    if warm:
        factorise(weight, tmp_path)
        no_more_svds(monkeypatch)
    for _ in ("made", "read"):
        found = factorise(weight, tmp_path, storage="bfloat16")
        assert same(found.factors, rounded(exact))
        assert found.rounding == measure_rounding(weight, exact, rounded(exact))
        no_more_svds(monkeypatch)
    path = tmp_path / f"{found.digest}.bfloat16.safetensors"
    assert {name: tensor.dtype for name, tensor in load_file(path).items()} == {
        "S": torch.float32,
        "Vh": torch.bfloat16,
        "rounding": torch.float64,
    }
    assert len(list(tmp_path.iterdir())) == 1 + warm


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
@pytest.mark.parametrize("storage", STORAGES)
def test_damaged_cache_file_is_computed_and_written_again(tmp_path, damage, storage):
    """Whatever happened to the file, the factors are right and the file is whole afterwards."""
    weight = random_weight(4, 6)
    expected = factorise(weight, tmp_path, storage=storage)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = factorise(weight, tmp_path, storage=storage)
    assert again.computed
    assert same(again.factors, expected.factors)
    assert path.read_bytes() == whole, "the damaged file was left in place"
