"""Control directions: the Haar law by its moments and its density, permutation by labels that identify every row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from extraction.directions import (
    Directions,
    PairGradients,
    flipped_differences,
    haar_directions,
    permuted_differences,
)


def like(shapes: dict[str, tuple[int, int]]) -> Directions:
    """Directions of given (k, r); their values must not matter."""
    vectors = {module: torch.full(shape, 0.5) for module, shape in shapes.items()}
    return Directions(vectors=vectors, singular_values={}, votes={}, metadata={"model": "m"})


SHAPES = st.integers(1, 9).flatmap(lambda r: st.tuples(st.integers(0, r), st.just(r)))


@settings(deadline=None, max_examples=50)
@given(shapes=st.lists(SHAPES, min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_haar_rows_are_orthonormal_and_seeded(shapes: list[tuple[int, int]], seed: int) -> None:
    """V V^T = 1 in the numbers and sizes of v_hack, none for a module that kept none; same seed, same bytes."""
    named = {f"m{number}": shape for number, shape in enumerate(shapes)}
    found, again = (haar_directions(like(named), seed=seed) for _ in range(2))
    assert {module: tuple(v.shape) for module, v in found.vectors.items()} == named
    for module, (k, _) in named.items():
        v = found.vectors[module]
        assert v.dtype == torch.float32
        torch.testing.assert_close(v @ v.T, torch.eye(k), atol=1e-6, rtol=0)
        assert torch.equal(v, again.vectors[module]), "not a function of the seed"
        assert found.singular_values[module].shape == found.votes[module].shape == (k,)
    assert found.metadata == {"fingerprint": None, "control": "haar", "seed": seed}


NUM_MODULES, NUM_SEEDS = 8, 250


@pytest.mark.parametrize(("k", "axis"), [(1, "first"), (3, "any")])
def test_haar_cosines_follow_their_law(k: int, axis: str) -> None:
    """With u = sum_i V_i / sqrt(k), c = <u, g> / |g|: (1 + c) / 2 ~ Beta((r-1)/2, (r-1)/2) for any fixed g.

    The first coordinate is the one that a QR without the sign of R's diagonal makes one-sided.
    """
    r = 7
    g = torch.eye(r)[0] if axis == "first" else torch.randn(r, generator=torch.Generator().manual_seed(5))
    shapes = like({f"m{number}": (k, r) for number in range(NUM_MODULES)})
    draws = torch.stack([v for seed in range(NUM_SEEDS) for v in haar_directions(shapes, seed=seed).vectors.values()])
    cosines = draws.sum(1) @ g / (k**0.5 * g.norm())
    assert abs(float(cosines.mean())) < 4 / (r * len(cosines)) ** 0.5, "a preferred side"
    law = stats.beta((r - 1) / 2, (r - 1) / 2, loc=-1, scale=2)
    assert stats.kstest(cosines.numpy(), law.cdf).pvalue > 1e-3


def labelled_pairs(n: int = 6, num_held_out: int = 2) -> PairGradients:
    """Gradients that say which they are: row j of [hack; clean] is e_j in module `one_hot` and (j, j^2) in `label`.

    Held-out pairs lie between the others.
    """
    rows = torch.eye(2 * n)
    labels = torch.arange(2.0 * n)[:, None] ** torch.tensor([1.0, 2.0])
    held_out = torch.zeros(n, dtype=torch.bool)
    held_out[1 : 1 + num_held_out] = True
    return PairGradients(
        hack={"one_hot": rows[:n], "label": labels[:n]},
        clean={"one_hot": rows[n:], "label": labels[n:]},
        held_out=held_out,
        metadata={"model": "m"},
    )


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 8), seed=st.integers(0, 2**31), data=st.data())
def test_permuted_differences_deal_every_extraction_gradient_once(n: int, seed: int, data: st.DataObject) -> None:
    """Row = e_i - e_j names its two gradients: together they are the extraction pairs', each once, in every module."""
    pairs = labelled_pairs(n, data.draw(st.integers(0, n - 1)))
    found = permuted_differences(pairs, seed=seed)
    plus, minus = found["one_hot"].argmax(1), found["one_hot"].argmin(1)
    dealt = sorted([*plus.tolist(), *minus.tolist()])
    extraction = [j for j in range(2 * n) if not pairs.held_out[j % n]]
    assert dealt == extraction, "a gradient is lost, used twice, or held out"
    assert torch.equal(found["one_hot"], torch.eye(2 * n)[plus] - torch.eye(2 * n)[minus])
    labels = torch.cat([pairs.hack["label"], pairs.clean["label"]])
    assert torch.equal(found["label"], labels[plus] - labels[minus]), "modules are permuted differently"


def test_permutation_is_seeded_and_crosses_pairs() -> None:
    """Same seed, same rows; other seeds, other rows; couples are not the old pairs, nor labels their old sides."""
    first, again, other = (permuted_differences(labelled_pairs(12, 0), seed=seed)["one_hot"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    plus, minus = first.argmax(1), first.argmin(1)
    assert (plus % 12 != minus % 12).sum() >= 8, "gradients stay with their pair: only labels within pairs moved"
    assert 2 <= (plus < 12).sum() <= 10, "hack gradients stay on their side"


def test_flipped_pairs_keep_their_rows_but_for_the_sign() -> None:
    """Row p is +D[p] or -D[p] with one sign for all modules; both signs occur, and a seed repeats them."""
    pairs = labelled_pairs(12, 3)
    D, flipped = pairs.differences(), flipped_differences(pairs, seed=0)
    signs = (flipped["one_hot"] * D["one_hot"]).sum(1) / 2
    assert signs.abs().eq(1).all()
    assert 1 <= (signs < 0).sum() <= 8
    for module in D:
        assert torch.equal(flipped[module], signs[:, None] * D[module])
        assert torch.equal(flipped_differences(pairs, seed=0)[module], flipped[module])
