"""The adjusted effect: against ordinary least squares with prompt dummies, and where it must say nothing."""

import numpy as np
import pytest

from probe.analysis.statistics.intervals import t_interval
from probe.analysis.statistics.significance import effects_by_prompt


def rows(rng, num_prompts=15, size=8):
    prompts = np.repeat(np.arange(num_prompts), size)
    label = rng.random(len(prompts)) < 0.5
    length = rng.normal(size=len(prompts)) + 2 * label
    value = 0.3 * label + 0.5 * length + rng.normal(size=num_prompts)[prompts] + 0.1 * rng.normal(size=len(prompts))
    return value, label, length, prompts


def fit(value, label, covariates, prompts) -> np.ndarray | None:
    columns = {name: list(column) for name, column in covariates.items()}
    return effects_by_prompt(np.array([value]), list(label), columns, list(prompts))


def test_equals_least_squares_with_a_dummy_a_prompt():
    """Of several responses at once; the spread over prompts is that of the cluster-robust sandwich."""
    value, label, length, prompts = rows(np.random.default_rng(0))
    design = np.column_stack([label, length, np.eye(15)[prompts]])
    expected = np.linalg.lstsq(design, np.column_stack([value, 2 * value]), rcond=None)[0][0]
    found = effects_by_prompt(np.array([value, 2 * value]), label.tolist(), {"length": length.tolist()}, list(prompts))
    assert found.mean(1) == pytest.approx(expected)
    inverse = np.linalg.pinv(design.T @ design)
    residuals = value - design @ np.linalg.lstsq(design, value, rcond=None)[0]
    scores = np.stack([design[prompts == c].T @ residuals[prompts == c] for c in range(15)])
    sandwich = (inverse @ scores.T @ scores @ inverse)[0, 0] * 15 / 14
    assert found[0].var(ddof=1) / 15 == pytest.approx(sandwich)
    interval = t_interval(found[0])
    assert interval.low < 0.3 < interval.high
    naive = fit(value, label, {}, prompts)
    assert naive.mean() == pytest.approx(1.3, abs=0.15), "without its length the label takes the length's effect"


def test_collinear_covariates_are_left_out_and_a_determined_label_has_no_effect():
    """A covariate equal to the label within prompts leaves nothing to estimate; one that repeats another is dropped."""
    value, label, length, prompts = rows(np.random.default_rng(1))
    twice = {"length": length, "double": 2 * length, "constant": np.ones(len(length))}
    assert fit(value, label, twice, prompts) == pytest.approx(fit(value, label, {"length": length}, prompts))
    assert fit(value, label, {"hint": label.astype(float)}, prompts) is None
    assert fit(value, np.ones(len(value), dtype=bool), {"length": length}, prompts) is None
    assert fit([], [], {}, []) is None
