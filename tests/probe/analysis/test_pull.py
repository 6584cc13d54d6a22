"""Pull, its relatives and ceilings by kind of hack: against gradients themselves, by hand, and by simulation."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planted import Planted, link_vectors, pair_gram
from scipy import stats

from probe.analysis.estimate import Estimate
from probe.analysis.pull import ceilings, shares
from probe.analysis.statistics.geometry import PairGram
from probe.analysis.statistics.intervals import fieller_interval, mean_covariance
from probe.analysis.statistics.nulls import half_samples


def by_name(rows: list[Estimate]) -> dict[str, Estimate]:
    return {row.name: row for row in rows}


def mean_axis(differences: np.ndarray, k: int) -> np.ndarray:
    """(M, r) the mean of the first k right singular vectors of every module, oriented by the vote of the pairs."""
    axes = []
    for module in np.moveaxis(differences, 1, 0):
        rows = np.linalg.svd(module, full_matrices=False)[2][:k]
        votes = np.sign(np.sign(module @ rows.T).sum(0))
        axes.append((votes[:, None] * rows).sum(0) / np.sqrt(k))
    return np.stack(axes)


def cosine(axis: np.ndarray, gradient: np.ndarray) -> float:
    return float((axis * gradient).sum() / np.sqrt(len(axis)) / np.linalg.norm(gradient))


def test_shares_are_what_the_gradients_say():
    """pull, benign and contrast, computed again from the vectors with numpy's SVD."""
    world = Planted(prompts=6)
    hack, clean, samples = world.vectors(np.random.default_rng(3))
    rows = by_name(shares(link_vectors(hack, clean, samples, held_out=16), "vanilla", num_halves=20))
    axis = mean_axis((hack - clean)[:32], 2)
    rewards = np.array([3.5] * 6 + [0.5] * 2)
    ceiling = np.mean([cosine(axis, d) for d in (hack - clean)[32:]])
    steps = [cosine(axis, np.tensordot(rewards - rewards.mean(), group, 1)) for group in samples]
    honest = rewards[4:] - rewards[4:].mean()
    benign = [cosine(axis, np.tensordot(honest, group[4:], 1)) for group in samples]
    assert rows["pull"].parts["measured"] == pytest.approx(np.mean(steps), rel=1e-9)
    assert rows["pull"].parts["ceiling"] == pytest.approx(ceiling, rel=1e-9)
    assert rows["pull"].value == pytest.approx(np.mean(steps) / ceiling, rel=1e-9)
    assert rows["benign"].parts["measured"] == pytest.approx(np.mean(benign), rel=1e-9)
    assert rows["pull - benign"].parts["measured"] == pytest.approx(np.mean(steps) - np.mean(benign), rel=1e-9)
    sides = [cosine(axis, h) - cosine(axis, c) for h, c in zip(hack[32:], clean[32:], strict=True)]
    assert rows["contrast"].parts["ceiling"] == pytest.approx(np.mean(sides), rel=1e-9)
    assert rows["pull"].n == 6
    assert rows["pull"].parts["num_held_out"] == 16


def test_half_samples_have_the_variance_of_the_mean():
    """For a linear statistic the variance over half-samples is s^2 / n, and no held-out pair is drawn."""
    rng = np.random.default_rng(0)
    held_out = np.arange(40) % 5 == 0
    first, second = half_samples(pair_gram([np.zeros((80, 1))], held_out), 20_000, rng)
    assert first.shape == (20_000, 16)
    assert not held_out[first].any()
    assert (second == first + 40).all()
    values = rng.normal(size=40)
    assert values[first].mean(1).var() == pytest.approx(values[~held_out].var(ddof=1) / 32, rel=0.05)


def test_fieller_by_hand_and_by_its_definition():
    """Independent parts and df: the ends are the ratios that the t test just does not refuse; no interval through 0."""
    covariance = np.diag([0.04, 0.01])
    interval = fieller_interval(1.0, 2.0, [covariance], df=9)
    assert interval is not None
    t = stats.t.ppf(0.975, 9)
    for end in (interval.low, interval.high):
        assert abs(1.0 - end * 2.0) / np.sqrt(0.04 + end**2 * 0.01) == pytest.approx(t, rel=1e-9)
    assert interval.low < 0.5 < interval.high
    halves = fieller_interval(1.0, 2.0, [covariance / 2, covariance / 2], df=9)
    assert halves is not None
    assert (halves.low, halves.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert fieller_interval(1.0, 0.2, [covariance], df=9) is None
    assert fieller_interval(1.0, 2.0, [mean_covariance([[1.0, 2.0]])], df=9) is None


COMMON_PART = Planted(step_signal=0.0, common=1.0)


@cache
def ratios(world: Planted) -> dict[str, float]:
    """{row: ratio of the two expectations}, by 100 draws."""
    many = [by_name(shares(world.link(np.random.default_rng(1000 + i)), "vanilla", num_halves=2)) for i in range(100)]
    return {
        name: np.mean([rows[name].parts["measured"] for rows in many])
        / np.mean([rows[name].parts["ceiling"] for rows in many])
        for name in ("pull", "pull - benign")
    }


SPARSE = Planted(modules=12, live=2, pair_signal=3.0, step_signal=3.0)


@pytest.mark.parametrize(
    "world",
    [
        Planted(prompts=8, pairs=16, held_out=8, pair_signal=2.0),
        *(pytest.param(world, marks=pytest.mark.slow) for world in (COMMON_PART, SPARSE, Planted(skewed=True))),
    ],
    ids=str,
)
def test_the_intervals_of_shares_cover(world: Planted):
    """Of 80 draws of pairs and prompts, at least 90% of the 95% intervals hold the ratio of the two expectations."""
    draws = [by_name(shares(world.link(np.random.default_rng(i)), "vanilla", num_halves=30)) for i in range(80)]
    for name in ("pull", "pull - benign"):
        truth = ratios(world)[name]
        intervals = [rows[name].interval for rows in draws]
        held = [interval is None or interval.low <= truth <= interval.high for interval in intervals]
        print(f"{name}: truth {truth:.2f}, covered {np.mean(held):.3f}, none {sum(i is None for i in intervals)}")
        assert np.mean(held) >= 0.90


def gram_of(hack: np.ndarray, clean: np.ndarray, held_out: list[bool], flavours: list[str]) -> PairGram:
    """Of pair gradients (n, M, r), with one direction a module."""
    return pair_gram([*np.concatenate([hack, clean]).swapaxes(0, 1)], held_out, k=1, flavours=flavours)


def test_a_kind_with_an_axis_of_its_own_is_not_reached():
    """Kinds a and b hack along e1, c along e2: of c, v_hack of the others reads 0; of a and b it reads 1."""
    rng = np.random.default_rng(0)
    kinds = ["a", "b", "a", "b", "c"] * 5
    hack = rng.normal(size=(25, 2, 6)) * 0.05
    for i, kind in enumerate(kinds):
        hack[i, :, 1 if kind == "c" else 0] += 1.0 if kind != "c" else 0.5
    pairs = gram_of(hack, np.zeros_like(hack), [i >= 20 for i in range(25)], [f"{kind}/right" for kind in kinds])
    rows = {row.name: row for row in ceilings(pairs)}
    assert set(rows) == {"a", "b", "c"}
    for kind in ("a", "b"):
        assert rows[kind].value == pytest.approx(1, abs=0.05)
        assert rows[kind].interval.low > 0.8
        assert rows[kind].low > 0
    assert rows["c"].low <= 0
    assert abs(rows["c"].value) < 0.15
    assert (rows["c"].n, rows["c"].parts["num_extraction"]) == (5, 16)


def test_the_cosine_of_a_ceiling_by_hand_and_no_interval_of_width_zero():
    """Kind b at 60 degrees from the only direction of kind a: cos .5; equal pairs have no interval."""
    hack = np.array([[1.0, 0.0]] * 3 + [[0.5, np.sqrt(3) / 2]] * 2)[:, None, :]
    flavours = ["pass/right", "pass/wrong", "pass/right", "init/right", "init/wrong"]
    rows = {row.name: row for row in ceilings(gram_of(hack, hack * 0, [False] * 5, flavours))}
    assert (rows["init"].value, rows["init"].interval) == (pytest.approx(0.5), None)


def test_pairs_of_one_kind_or_of_none_have_no_ceilings():
    hack = np.random.default_rng(0).normal(size=(4, 1, 3))
    one = gram_of(hack, np.zeros_like(hack), [False] * 4, ["a/right", "a/wrong"] * 2)
    assert ceilings(one) == ceilings(replace(one, flavours=())) == ()
    a, b = ceilings(gram_of(hack, np.zeros_like(hack), [False, False, True, True], ["a", "a", "b", "b"]))
    assert (a.value, a.parts["num_extraction"]) == (None, 0), "b has no pair to extract from"
    assert b.value is not None
