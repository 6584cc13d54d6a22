"""hackward_frac with its null, and ceilings by kind: by hand, and against directions made from the gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import Planted, link_vectors

from probe.analysis.evidence import Evidence
from probe.analysis.pull import HackwardFrac, ceilings, hackward_frac
from probe.analysis.statistics.geometry import Extraction, PairGram
from probe.analysis.statistics.intervals import Interval
from probe.analysis.verdict.seed_tables import seed_tables
from probe.records.run import Run


def gram_of(hack: np.ndarray, clean: np.ndarray, held_out: list[bool], flavours: list[str]) -> PairGram:
    """The inner products of pair gradients (n, M, r), with one direction a module."""
    rows = np.concatenate([hack, clean])
    return PairGram(
        modules=tuple(f"m{i}" for i in range(rows.shape[1])),
        sizes=np.full(rows.shape[1], rows.shape[2]),
        pairs=np.einsum("imr,jmr->mij", rows, rows),
        held_out=np.array(held_out),
        extraction=Extraction(method="svd", k=1, tau=0.0, drop_bottom_frac=0.0, eps=1e-12),
        flavours=tuple(flavours),
    )


def test_the_shares_by_hand():
    """Two modules, one direction e1 in each: g = (3, 4) and (-5, 12) point along it by 3/5 and not at all."""
    hack = np.zeros((3, 2, 2))
    hack[:, :, 0] = [[1.0], [1.1], [0.9]]
    samples = np.zeros((1, 8, 2, 2))
    samples[:, :6] = [[3.0, 4.0], [-5.0, 12.0]]
    samples[:, 6:] = [[-9.0, -12.0], [15.0, -36.0]]  # the total stays along the gradient of the paid
    row = hackward_frac(link_vectors(hack, np.zeros((3, 2, 2)), samples, held_out=1, k=1), num_draws=5)
    assert row.value == pytest.approx((3 / 5 + 0) / 2)
    assert row.interval is None, "one prompt shows no variance"


def test_the_share_is_that_of_the_vectors_and_its_null_that_of_permuted_pairs():
    """V from numpy's SVD, the mean share of every module; with a signal it leaves the permuted pairs."""
    hack, clean, samples = Planted(prompts=9, pair_signal=3.0, step_signal=3.0).vectors(np.random.default_rng(4))
    linked = link_vectors(hack, clean, samples, held_out=16)
    row = hackward_frac(linked, num_draws=99)
    rewards = np.array([3.5] * 6 + [0.5] * 2)
    in_modules = []
    for group in samples:
        total = np.tensordot(rewards - rewards.mean(), group, 1)
        along = []
        for m, gradient in enumerate(total):
            D = (hack - clean)[:32, m]
            V = np.linalg.svd(D, full_matrices=False)[2][:2]
            V = V * np.sign(np.sign(D @ V.T).sum(0))[:, None]
            along.append(np.linalg.norm(np.maximum(V @ gradient, 0)))
        in_modules.append(np.mean(np.array(along) / np.linalg.norm(total, axis=1)))
    assert row.value == pytest.approx(np.mean(in_modules), rel=1e-9)
    assert row.permuted_p < 0.15, "a strong signal stays an axis of permuted pairs, at times the right way round"
    assert row.permuted_mean < 0.7 * row.value
    assert row.interval.low < row.value < row.interval.high


def test_without_a_signal_the_share_is_positive_and_its_p_is_not_small():
    """A norm is never 0: without a hack anywhere it reads as much as permuted pairs do."""
    small, values = 0, []
    for seed in range(24):
        linked = Planted(pair_signal=0.0, step_signal=0.0).link(np.random.default_rng(seed))
        row = hackward_frac(linked, num_draws=39)
        values.append(row.value)
        small += row.permuted_p < 0.05
    assert min(values) > 0.1
    assert small <= 4


def test_a_kind_with_an_axis_of_its_own_is_not_reached():
    """Kinds a and b hack along e1, c along e2: of c, v_hack of the others reads 0; of a and b it reads 1."""
    rng = np.random.default_rng(0)
    kinds = ["a", "b", "a", "b", "c"] * 5
    hack = rng.normal(size=(25, 2, 6)) * 0.05
    for i, kind in enumerate(kinds):
        hack[i, :, 1 if kind == "c" else 0] += 1.0 if kind != "c" else 0.5
    pairs = gram_of(hack, np.zeros_like(hack), [i >= 20 for i in range(25)], [f"{kind}/right" for kind in kinds])
    rows = {row.left_out: row for row in ceilings(pairs)}
    assert set(rows) == {"a", "b", "c"}
    for kind in ("a", "b"):
        assert rows[kind].cos == pytest.approx(1, abs=0.05)
        assert rows[kind].interval.low > 0.8
        assert not rows[kind].not_reached
    assert rows["c"].not_reached
    assert abs(rows["c"].cos) < 0.15
    assert (rows["c"].num_pairs, rows["c"].num_extraction) == (5, 16)


def test_the_cosine_of_a_ceiling_by_hand_and_no_interval_of_width_zero():
    """Kind b at 60 degrees from the only direction of kind a: cos .5; equal pairs have no interval."""
    hack = np.array([[1.0, 0.0]] * 3 + [[0.5, np.sqrt(3) / 2]] * 2)[:, None, :]
    flavours = ["pass/right", "pass/wrong", "pass/right", "init/right", "init/wrong"]
    rows = {row.left_out: row for row in ceilings(gram_of(hack, hack * 0, [False] * 5, flavours))}
    assert (rows["init"].cos, rows["init"].interval) == (pytest.approx(0.5), None)


def test_pairs_of_one_kind_or_of_none_have_no_ceilings():
    hack = np.random.default_rng(0).normal(size=(4, 1, 3))
    one = gram_of(hack, np.zeros_like(hack), [False] * 4, ["a/right", "a/wrong"] * 2)
    assert ceilings(one) == ()
    assert ceilings(replace(one, flavours=())) == ()
    only_held_out = gram_of(hack, np.zeros_like(hack), [False, False, True, True], ["a", "a", "b", "b"])
    rows = {row.left_out: row for row in ceilings(only_held_out)}
    assert (rows["a"].cos, rows["a"].num_extraction) == (None, 0), "b has no pair to extract from"
    assert rows["b"].cos is not None


def seed_row(value: float, permuted: float, half: float = 0.01) -> HackwardFrac:
    """The share by module of 9 prompts, and what permuted pairs read at most."""
    interval = Interval(low=value - half, high=value + half)
    return HackwardFrac(
        value=value,
        interval=interval,
        interval_90=interval,
        num_prompts=9,
        permuted_mean=permuted,
        permuted_q95=permuted,
        permuted_p=0.5,
    )


@pytest.mark.parametrize(
    ("row", "about_zero", "strong"),
    [
        (seed_row(0.02, 0.01), "PASS", "FAIL"),
        (seed_row(0.30, 0.01), "FAIL", "PASS"),
        (seed_row(0.20, 0.01), "FAIL", "INCONCLUSIVE"),
        (seed_row(0.30, 0.25), "VACUOUS", "VACUOUS"),
        (seed_row(0.30, 0.10), "VACUOUS", "PASS"),
    ],
)
def test_the_rules_of_the_seed_are_about_its_own_cos_in(row: HackwardFrac, about_zero: str, strong: str):
    """D1 and D2 can hold, fail, or be out of reach where permuted pairs read as much; V2 holds whatever V is."""
    evidence = Evidence(Run(path=Path("run"), config={}, manifest={}, samples=[], steps=[]))
    vars(evidence)["hackward"] = row  # in the place of what would be measured
    verdicts = {check.name: check.says for check in seed_tables(evidence)}
    assert (verdicts["D1"], verdicts["D2"], verdicts["V2"]) == (about_zero, strong, "VACUOUS")
