"""Ceilings by kind of hack: by hand."""

from dataclasses import replace

import numpy as np
import pytest
from planted import pair_gram

from probe.analysis.pull import ceilings
from probe.analysis.statistics.geometry import PairGram


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
