"""Common support: against counting by hand, against shuffled labels, and by simulation: no line is extended to a GO."""

from itertools import permutations

import numpy as np
import pytest

from probe.analysis.statistics.support import CALIPER, TOGETHER, Support, common_support


def rows(scores: dict[str, list[float]], label: list[int], prompts: list[int]) -> dict[str, Support]:
    return {row.score: row for row in common_support(scores, [bool(one) for one in label], prompts)}


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
    assert row.share == pytest.approx(by_hand(values, label, prompts))
    orders = [
        by_hand(values, np.array([*first, *second]), prompts)
        for first in set(permutations(label[:4].tolist()))
        for second in set(permutations(label[4:].tolist()))
    ]
    assert row.by_chance == pytest.approx(np.mean(orders))
    assert row.num_hacks == 3


def test_a_prompt_with_one_side_and_equal_scores() -> None:
    """The first says nothing of support; hints that are all the same support every hack."""
    assert rows({"hint": [1.0, 1.0]}, [1, 0], [0, 1]) == {}
    found = rows({"hint": [1.0] * 4}, [1, 0, 1, 1], [0, 0, 1, 1])["hint"]
    assert (found.share, found.by_chance, found.num_hacks, found.lacking) == (1.0, 1.0, 1, False)
    apart = rows({"hint": [1.0, 0.0] * 4}, [1, 0] * 4, [0, 0, 1, 1, 2, 2, 3, 3])["hint"]
    assert (apart.share, apart.lacking) == (0.0, True)


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
        assert row.share / row.by_chance == pytest.approx(expected, abs=0.07), distance


def test_scores_that_tell_hacks_apart_only_together() -> None:
    """Two scores with the same noise: each overlaps, their difference does not."""
    rng = np.random.default_rng(2)
    label, prompts = np.tile([True, True, False, False], 100), np.arange(400) // 4
    noise = rng.normal(size=400)
    scores = {"a": (noise + 0.5 * label).tolist(), "b": (noise - 0.5 * label + 0.1 * rng.normal(size=400)).tolist()}
    found = rows(scores, label.tolist(), prompts.tolist())
    assert [row.lacking for row in found.values()] == [False, False, True]
    assert found[TOGETHER].share == 0.0
