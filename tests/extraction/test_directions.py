"""Directions against planted signals, hand-computed cases and slow loops; controls by their laws and by labels."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from extraction.directions import (
    Directions,
    PairGradients,
    extract_directions,
    flipped_differences,
    haar_directions,
    load_directions,
    permuted_differences,
    save_directions,
)
from replay_pools.base.errors import InputError

SIZES = {"layers.0.q": 24, "layers.0.down": 40, "a": 31}  # not in alphabetical order


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pairs_with_signal() -> tuple[PairGradients, dict[str, Tensor]]:
    """hack = content + 2 axis + noise, clean = content + noise; 15 pairs, 3 held out, and each module's axis (r,)."""
    hack, clean, axes = {}, {}, {}
    for number, (module, r) in enumerate(SIZES.items()):
        axes[module] = torch.nn.functional.normalize(noise(r, seed=50 + number), dim=0)
        content = 3 * noise(15, r, seed=number)
        clean[module] = content + 0.1 * noise(15, r, seed=10 + number)
        hack[module] = content + 0.1 * noise(15, r, seed=20 + number) + 2 * axes[module]
    return PairGradients(hack=hack, clean=clean, held_out=torch.arange(15) >= 12, metadata={"model": "m"}), axes


def projector(v: Tensor) -> Tensor:
    return v.double().T @ v.double()


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 9), r=st.integers(1, 12), seed=st.integers(0, 2**31), data=st.data())
def test_rows_are_orthonormal_singular_and_oriented(n: int, r: int, seed: int, data: st.DataObject) -> None:
    """V V^T = 1, V D^T D V^T = S^2 with S falling and the largest there are, and each row wins the stored vote."""
    rows = noise(n, r, seed=seed)
    k = data.draw(st.integers(1, min(n, r)))
    found = extract_directions({"m": rows}, k=k)
    v, s, votes = found.vectors["m"].double(), found.singular_values["m"].double(), found.votes["m"]
    assert len(v) == len(s) == len(votes) <= k
    torch.testing.assert_close(v @ v.T, torch.eye(len(v), dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(v @ rows.double().T @ rows.double() @ v.T, torch.diag(s**2), atol=1e-4, rtol=1e-4)
    assert all(a >= b for a, b in pairwise(s.tolist()))
    largest = torch.linalg.eigvalsh(rows.double() @ rows.double().T).flip(0)[:k].clamp_min(0).sqrt()
    num_alive = int((largest > 1e-5 * largest[0]).sum())
    assert num_alive <= len(v) or n % 2 == 0, "an odd number of voters cannot tie"
    assert all(float((largest - value).abs().min()) < 1e-4 for value in s), "S is not of the top k"
    projections = rows.double() @ v.T
    unsure = (projections.abs() < 1e-5).sum(0)  # V is stored in float32
    assert ((projections.sign().sum(0) - votes).abs() <= 2 * unsure).all(), "a direction points against its majority"
    assert (votes > 0).all()


def test_planted_direction_is_recovered_with_its_sign() -> None:
    """hack = clean + axis + noise: the first direction is +axis, although the content common to both is larger."""
    pairs, axes = pairs_with_signal()
    found = extract_directions(pairs.differences(), k=2)
    for module, axis in axes.items():
        cosine = float(found.vectors[module][0] @ axis)
        assert cosine > 0.9, f"{module}: cosine {cosine:.2f} with the planted axis (below 0: oriented clean-ward)"
        assert found.votes[module][0] == 12


DIAGONAL = {"a": torch.diag(torch.tensor([4.0, 2.0, 1.0])), "b": torch.diag(torch.tensor([8.0, 1.0, 0.5]))}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"k": 3}, {"a": [4, 2, 1], "b": [8, 1, 0.5]}),
        ({"k": 2}, {"a": [4, 2], "b": [8, 1]}),
        ({"k": 3, "tau": 0.5}, {"a": [4, 2], "b": [8]}),  # S_i / S_0 = tau stays
        ({"k": 3, "tau": 1.0}, {"a": [4], "b": [8]}),
        ({"k": 3, "drop_bottom_frac": 0.5}, {"a": [4, 2], "b": [8]}),  # median of 8 4 2 1 1 .5 is 1.5
        ({"k": 2, "drop_bottom_frac": 0.6}, {"a": [4], "b": [8]}),  # 8 4 2 1: the .6 quantile is 3.6
        ({"k": 3, "tau": 0.5, "drop_bottom_frac": 0.5}, {"a": [4], "b": [8]}),  # tau first: median of 8 4 2 is 4
        ({"k": 1, "drop_bottom_frac": 0.9}, {"a": [], "b": [8]}),  # a module may keep none
    ],
)
def test_k_tau_and_noise_floor_by_hand(options: dict[str, Any], kept: dict[str, list[float]]) -> None:
    """Diagonal differences: S is the diagonal, V the unit vectors, every vote 1 to 0."""
    found = extract_directions(DIAGONAL, **options, metadata={"model": "m"})
    assert {module: s.tolist() for module, s in found.singular_values.items()} == kept
    for module, v in found.vectors.items():
        assert torch.equal(v, torch.eye(3)[: len(kept[module])])
        assert found.votes[module].tolist() == [1] * len(kept[module])
    assert found.num_directions() == sum(map(len, kept.values()))
    expected = {"model": "m", "method": "svd", "k": 3, "tau": 0.0, "drop_bottom_frac": 0.0, "num_pairs": 3, **options}
    assert {key: found.metadata[key] for key in expected} == expected
    assert found.metadata.keys() - expected.keys() == {"noise_floor"}


def test_the_mean_difference_by_hand() -> None:
    """(3, 4) and (3, -2): their sum (6, 2) is the direction, of length sqrt(40), and both pairs vote for it."""
    differences = {"a": torch.tensor([[3.0, 4.0], [3.0, -2.0]])}
    found = extract_directions(differences, method="mean", k=1)
    torch.testing.assert_close(found.vectors["a"], torch.tensor([[6.0, 2.0]]) / 40**0.5)
    torch.testing.assert_close(found.singular_values["a"], torch.tensor([20**0.5]))
    assert (found.votes["a"].tolist(), found.metadata["method"]) == ([2], "mean")


def test_differences_that_cancel_have_no_mean_direction() -> None:
    """Up to the rounding of what was summed; a vote that is tied drops the direction, as under `svd`."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 7, generator=generator)
    cancelling = torch.cat([rows, -rows * (1 + 1e-7)])
    tied = torch.tensor([[3.0, 0.0], [-1.0, 0.0]])
    found = extract_directions({"a": cancelling, "b": tied}, method="mean", k=1)
    assert [len(found.vectors[module]) for module in "ab"] == [0, 0]


def test_tied_votes_are_dropped_not_signed() -> None:
    """Rows a, -a, b with b orthogonal to a: the axis of a is tied 1 to 1 whatever rounding says of b; b's is not."""
    a, b = torch.linalg.qr(noise(50, 2, seed=4).double())[0].T
    for rows in (torch.stack([a, -a]), torch.stack([3 * a, -3 * a, b]).float(), torch.stack([3 * a, -3 * a, b])):
        found = extract_directions({"m": rows}, k=2)
        assert found.votes["m"].tolist() == [1] * (len(rows) - 2), "a pair orthogonal to an axis voted by rounding"
        torch.testing.assert_close(found.vectors["m"], rows[2:].float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6])
def test_dead_axes_are_dropped_at_any_scale(scale: float) -> None:
    """Five pairs in a plane have two directions, the same ones whatever the unit of the loss."""
    plane = torch.linalg.qr(noise(20, 2, seed=1).double())[0].T
    rows = (torch.tensor([[5.0, 1.0], [4.0, -1.0], [6.0, 2.0], [5.0, -1.0], [4.0, 0.5]]).double() @ plane).float()
    found = extract_directions({"m": scale * rows, "zero": torch.zeros(5, 8)}, k=4)
    assert len(found.vectors["m"]) == 2, "rounding was taken for a direction, or a small gradient for rounding"
    torch.testing.assert_close(projector(found.vectors["m"]), projector(plane), atol=1e-5, rtol=0)
    assert found.vectors["zero"].shape == (0, 8)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradients_are_refused(bad: float) -> None:
    rows = noise(4, 5, seed=0)
    rows[2, 3] = bad
    with pytest.raises(InputError, match=r"layers\.1\.k"):
        extract_directions({"layers.0.q": noise(4, 5, seed=1), "layers.1.k": rows}, k=2)
    for k, shape in ((0, (4, 5)), (5, (4, 5)), (4, (5, 3)), (1, (0, 5))):
        with pytest.raises(InputError, match=rf"--k.* {min(shape)} .*in m"):
            extract_directions({"m": torch.ones(shape)}, k=k)


METADATA = {"k": 4, "tau": 0.25, "none": None, "nested": {"list": [1, "é", True]}}


def test_directions_round_trip(tmp_path: Path) -> None:
    """load(save(d)) == d bit for bit: tensors, a module without directions, the order of the modules, metadata."""
    modules = {"z/é": 0, "a": 2, "layers.0.q": 1}
    vectors = {m: noise(k, 5, seed=k) for m, k in modules.items()}
    values = {m: noise(k, seed=k).abs() for m, k in modules.items()}
    votes = {m: torch.arange(k) for m, k in modules.items()}
    saved = Directions(vectors=vectors, singular_values=values, votes=votes, metadata=METADATA)
    save_directions(tmp_path / "v_hack.safetensors", saved)
    loaded = load_directions(tmp_path / "v_hack.safetensors")
    assert loaded.metadata == METADATA
    for field in ("vectors", "singular_values", "votes"):
        stored, read = getattr(saved, field), getattr(loaded, field)
        assert list(read) == [*modules], "another order: sums and seeded draws would differ"
        assert all(torch.equal(stored[m], read[m]) and stored[m].dtype == read[m].dtype for m in modules)


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
