"""Overlap: against counting by hand, against shuffled labels, and by simulation: the rule is seldom wrong."""

from itertools import permutations

import numpy as np
import pytest
from overlapping import simulated

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.overlap import CALIPER, TOGETHER, _combined, is_lacking, may_lack, overlaps


def rows(scores: dict[str, list[float]], label: list[int], prompts: list[int]) -> dict[str, Estimate]:
    return {row.name: row for row in overlaps(scores, [bool(one) for one in label], prompts)}


def by_hand(values: np.ndarray, label: np.ndarray, prompts: np.ndarray) -> float:
    """Share of the hacks with a clean value on either side, or within the caliper."""
    centred = values - np.array([values[prompts == prompt].mean() for prompt in prompts])
    caliper = CALIPER * np.sqrt((centred**2).sum() / (len(values) - len(set(prompts))))
    alike = []
    for value, prompt in zip(values[label], prompts[label], strict=True):
        clean = values[(prompts == prompt) & ~label]
        between = clean.min() <= value <= clean.max()
        alike.append(between or np.abs(clean - value).min() <= caliper)
    return float(np.mean(alike))


def test_share_and_chance_are_those_of_every_order_of_the_labels() -> None:
    """Of two prompts of four rollouts; chance is the mean over all ways to hand out the labels of a prompt."""
    rng = np.random.default_rng(0)
    prompts, label = np.repeat([0, 1], 4), np.array([1, 1, 0, 0, 1, 0, 0, 0], dtype=bool)
    values = np.round(rng.normal(size=8), 1)
    row = rows({"length": values.tolist()}, label.tolist(), prompts.tolist())["length"]
    assert row.parts["share"] == pytest.approx(by_hand(values, label, prompts))
    orders = [
        by_hand(values, np.array([*first, *second]), prompts)
        for first in set(permutations(label[:4].tolist()))
        for second in set(permutations(label[4:].tolist()))
    ]
    assert row.parts["by_chance"] == pytest.approx(np.mean(orders))
    assert row.parts["num_hacks"] == 3


def test_a_prompt_with_one_side_and_equal_scores() -> None:
    """The first has no overlap to measure; hints that are all the same support every hack."""
    assert rows({"hint": [1.0, 1.0]}, [1, 0], [0, 1]) == {}
    found = rows({"hint": [1.0] * 4}, [1, 0, 1, 1], [0, 0, 1, 1])["hint"]
    assert (found.parts["share"], found.parts["by_chance"], found.parts["num_hacks"], found.n) == (1.0, 1.0, 1, 1)
    assert not is_lacking(found)
    assert not may_lack(found)


def test_a_few_prompts_that_all_separate_decide_nothing() -> None:
    """Two hacks and two clean answers to a prompt may be apart by chance, 20 times they are not."""
    for num_prompts, is_shown in ((1, False), (3, False), (20, True)):
        prompts = np.repeat(np.arange(num_prompts), 4).tolist()
        apart = rows({"hint": [1.0, 1.0, 0.0, 0.0] * num_prompts}, [1, 1, 0, 0] * num_prompts, prompts)["hint"]
        assert apart.parts["share"] == 0.0
        assert (is_lacking(apart), may_lack(apart)) == (is_shown, not is_shown)
        assert (apart.interval is None) == (num_prompts == 1)
        assert apart.parts["prompts_needed"] is not None
        assert (apart.parts["prompts_needed"] > num_prompts) == (not is_shown)


@pytest.mark.parametrize("size", [(4, 2), (2, 6), (7, 4)])
def test_the_ratio_tells_the_distance_whatever_the_size_of_a_group(size: tuple[int, int]) -> None:
    """1, .8, .4 and .1 at a distance of 0, 1, 2 and 3 standard deviations: what the module promises."""
    num_hacks, num_clean = size
    rng = np.random.default_rng(1)
    label = np.tile(np.repeat([True, False], size), 400)
    prompts = np.arange(len(label)) // (num_hacks + num_clean)
    noise = rng.normal(size=len(label)) + rng.normal(size=400)[prompts]
    for distance, expected in ((0, 1.0), (1, 0.8), (2, 0.4), (3, 0.1)):
        row = rows({"nll": (noise + distance * label).tolist()}, label.tolist(), prompts.tolist())["nll"]
        assert row.parts["share"] / row.parts["by_chance"] == pytest.approx(expected, abs=0.07), distance


def test_scores_that_separate_hacks_only_together() -> None:
    """Two scores with the same noise: each overlaps, their difference does not."""
    rng = np.random.default_rng(2)
    label, prompts = np.tile([True, True, False, False], 100), np.arange(400) // 4
    noise = rng.normal(size=400)
    scores = {"a": (noise + 0.5 * label).tolist(), "b": (noise - 0.5 * label + 0.1 * rng.normal(size=400)).tolist()}
    found = rows(scores, label.tolist(), prompts.tolist())
    assert [is_lacking(row) for row in found.values()] == [False, False, True]
    assert found[TOGETHER].parts["share"] == 0.0


def test_weights_of_a_prompt_are_fitted_on_the_others() -> None:
    """Against a regression for every prompt; equal weights up to scale give equal ranks within the prompt."""
    rng = np.random.default_rng(3)
    prompts, label = np.repeat(np.arange(6), 8), rng.random(48) < 0.5
    scores = rng.normal(size=(3, 48)) + 0.7 * label

    def within(values: np.ndarray) -> np.ndarray:
        return values - np.array([values[prompts == prompt].mean() for prompt in prompts])

    columns = np.stack([within(score) for score in scores], axis=1)
    combined = _combined([*scores], label, prompts)
    for prompt in range(6):
        fitted, here = prompts != prompt, prompts == prompt
        weights = np.linalg.lstsq(columns[fitted], within(label.astype(float))[fitted], rcond=None)[0]
        expected = columns @ weights
        np.testing.assert_allclose(combined[here], expected[here] / np.sqrt((expected[fitted] ** 2).sum()), rtol=1e-8)


@pytest.mark.parametrize(
    ("num_prompts", "hack_rate", "distance", "least", "most"),
    [
        (8, 0.3, 0.0, 0.0, 0.05),
        pytest.param(8, 0.6, 0.0, 0.0, 0.05, marks=pytest.mark.slow),
        (20, 0.3, 0.0, 0.0, 0.05),
        (20, 0.3, 3.0, 0.9, 1.0),
        pytest.param(20, 0.6, 3.0, 0.9, 1.0, marks=pytest.mark.slow),
    ],
)
def test_how_often_overlap_is_called_lacking(num_prompts, hack_rate, distance, least, most) -> None:
    """40 logs each, a small version of the table in spec/guide/numbers.md: 95% found there allows 90% here."""
    rng = np.random.default_rng(4)
    lacking = [
        any(is_lacking(row) for row in simulated(num_prompts, hack_rate, (distance, 0, 0), rng)) for _ in range(40)
    ]
    assert least <= np.mean(lacking) <= most
