"""The adjusted effect: against ordinary least squares with prompt dummies, and where it must say nothing."""

import numpy as np
import pytest

from probe.analysis.statistics.adjusted import adjusted_effect


def rows(rng, num_prompts=15, size=8):
    prompts = np.repeat(np.arange(num_prompts), size)
    label = rng.random(len(prompts)) < 0.5
    length = rng.normal(size=len(prompts)) + 2 * label
    value = 0.3 * label + 0.5 * length + rng.normal(size=num_prompts)[prompts] + 0.1 * rng.normal(size=len(prompts))
    return value, label, length, prompts


def test_equals_least_squares_with_a_dummy_a_prompt():
    value, label, length, prompts = rows(np.random.default_rng(0))
    design = np.column_stack([label, length, np.eye(15)[prompts]])
    expected = np.linalg.lstsq(design, value, rcond=None)[0][0]
    found = adjusted_effect(value.tolist(), label.tolist(), {"length": length.tolist()}, prompts.tolist())
    assert found.effect == pytest.approx(expected)
    assert found.interval.low < 0.3 < found.interval.high
    assert found.interval.high - found.interval.low < 0.2
    naive = adjusted_effect(value.tolist(), label.tolist(), {}, prompts.tolist())
    assert naive.effect == pytest.approx(1.3, abs=0.15), "without its length the label takes the length's effect"


def test_collinear_covariates_are_left_out_and_a_determined_label_has_no_effect():
    """A covariate equal to the label within prompts leaves nothing to estimate; one that repeats another is dropped."""
    value, label, length, prompts = (x.tolist() for x in rows(np.random.default_rng(1)))
    twice = {"length": length, "double": [2 * x for x in length], "constant": [1.0] * len(length)}
    assert adjusted_effect(value, label, twice, prompts).covariates == ("length",)
    found = adjusted_effect(value, label, {"hint": [float(x) for x in label]}, prompts)
    assert (found.effect, found.interval) == (None, None)
    assert found.reason == "the sides are determined by hint within prompts"
    same = adjusted_effect(value, [True] * len(value), {"length": length}, prompts)
    assert same.reason == "no prompt holds both sides"
    assert adjusted_effect([], [], {}, []).reason == "no samples"


def test_the_unit_is_the_prompt():
    """Every row eightfold: the same effect, and an interval that is no shorter."""
    value, label, length, prompts = (x.tolist() for x in rows(np.random.default_rng(2)))
    once = adjusted_effect(value, label, {"length": length}, prompts)
    many = adjusted_effect(value * 8, label * 8, {"length": length * 8}, prompts * 8)
    assert many.effect == pytest.approx(once.effect)
    assert (many.interval.low, many.interval.high) == pytest.approx((once.interval.low, once.interval.high))
