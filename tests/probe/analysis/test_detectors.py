"""Every detector against numbers worked out by hand, or against a slow and obvious computation."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from probe.analysis.detectors import (
    DETECTORS,
    PANEL,
    Material,
    PairMaterial,
    Scores,
    checked_names,
    score_all,
    separation,
)
from probe.analysis.panel import against_trivial, agreements, areas_of, beaten_by, leading, left_out_kinds, worth
from probe.analysis.statistics.classifiers import RIDGE, logistic_scores, two_means
from probe.analysis.statistics.intervals import auroc
from replay_pools.base.errors import InputError
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout

FIRST = open_pool(BUILTIN / "teacher").steps[0][0]


def rollouts(num: int, each: int = 2, **changes: list[Any]) -> list[Rollout]:
    """`each` rollouts of every prompt; changes: {field: its values}."""
    made = []
    for i in range(num):
        fields = {name: values[i] for name, values in changes.items()}
        where = {"step": i // each, "sample_id": i % each, "problem_id": f"p{i // each}", "prompt_sha": f"s{i // each}"}
        made.append(replace(FIRST, **where, **fields))
    return made


def values_of(material: Material, name: str) -> np.ndarray:
    scores = score_all(material, [name])[name]
    assert scores.values is not None, scores.why
    return scores.values


HELD_OUT = np.array([False, False, True])
PAIRS = PairMaterial(
    kinds=["pass", "pass", "swallow"],
    held_out=HELD_OUT,
    # (2 sides, 3 pairs, 1 layer, 2): the used pairs differ by (3, 4) in the mean, the held-out one otherwise.
    states=np.array([[[[3.0, 3.0]], [[3.0, 5.0]], [[-9.0, 0.0]]], [[[0.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
    fingerprints=np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]]),
)
MATERIAL = Material(
    rollouts=rollouts(4, completion=["run_tests", "a", "run_tests b", "c"]),
    labels=np.array([1.0, 0.0, np.nan, 0.0]),
    columns={"judge": [True, 0.25, "no number", None], "text": ["Hack", "0.25", "no", "nan"]},
    logprobs=np.array([-1.0, -2.0, -3.0, -4.0]),
    sampled=np.array([-1.0, -1.0, -1.0, -1.0]),
    reference=np.array([-1.0, -2.0, -1.5, -3.0]),
    states=np.array([[[5.0, 0.0]], [[0.0, 0.0]], [[0.0, 5.0]], [[0.0, 10.0]]]),
    cosines={kind: np.full(4, i / 10) for i, kind in enumerate(("mean", "unit", "haar", "shuffled"))},
    similarities=np.arange(24.0).reshape(4, 2, 3),
    fingerprints=np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]),
    pairs=PAIRS,
)


FORMULAS = [
    ("similarity", [-3, -3, -3, -3]),  # the held-out pair is left out: (0 + 1) / 2 - (3 + 4) / 2
    ("influence", [-3.5, -9.5, -15.5, -21.5]),
    ("cosine", [0.0] * 4),
    ("cosine-unit", [0.1] * 4),
    ("haar", [0.2] * 4),
    ("shuffled", [0.3] * 4),
    ("logratio", [0, 1, 0.5, 2]),
    ("activation", [1.5, -1.5, -2, 2]),  # along (3, 4) / 5, minus the mean of the prompt
    ("nll", [1, 2, 3, 4]),
    ("length", [FIRST.comp_len] * 4),
    ("text:run_t.sts$", [1, 0, 0, 0]),
    ("column:judge", [1, 0.25, np.nan, np.nan]),
    ("column:text", [1, 0.25, 0, np.nan]),
    ("label", [1, 0, np.nan, 0]),
    ("label:0", [0, 1, np.nan, 1]),
    # Squared distance to the clean centroid (.05, .95) minus that to the hacks' (.95, .05).
    ("fingerprint", [1.8, -1.8, 1.44, -1.44]),
]


@pytest.mark.parametrize(("name", "expected"), FORMULAS)
def test_a_detector_is_its_formula(name: str, expected: list[float]) -> None:
    np.testing.assert_allclose(values_of(MATERIAL, name), expected, atol=1e-12)


def test_what_was_not_measured_says_why() -> None:
    bare = Material(rollouts=rollouts(4), missing={"pairs": "no pairs", "reference": "no reference"})
    found = score_all(bare, [*PANEL, "column:judge"])
    measured = [name for name, scores in found.items() if scores.values is not None]
    assert measured == ["length"]
    assert (found["similarity"].why, found["logratio"].why) == ("no pairs", "no reference")
    assert "label" in found["words"].why
    assert "columns: " in found["column:judge"].why
    alone = replace(MATERIAL, rollouts=rollouts(4, each=1))
    assert score_all(alone, ["activation"])["activation"].why.startswith("4 without")
    assert leading(found, [*found]) == "length"
    assert leading(score_all(MATERIAL, ["label", "haar", "nll"]), ["label", "haar", "nll"]) == "nll"


def test_all_wrong_names_are_refused_at_once() -> None:
    with pytest.raises(InputError) as caught:
        checked_names(["simlarity", "text", "text:(", "label:2", "haar:3", "probe:words", "nll"])
    assert len(caught.value.errors) == 6
    assert "similarity" in caught.value.errors[0].fix
    assert checked_names(["nll", "text:a", "nll"]) == ["nll", "text:a"]


def test_two_means_have_the_least_squares_of_all_splits() -> None:
    """Of ten points in two clouds, against every split."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 1, (5, 3)), rng.normal(2.5, 1, (5, 3))])
    found = two_means(x, seed=0)
    assert found is not None
    squares = []
    for size in range(1, 6):
        for part in itertools.combinations(range(10), size):
            side = np.isin(np.arange(10), part)
            squares.append(sum(np.square(x[s] - x[s].mean(0)).sum() for s in (side, ~side)))
    nearest = np.minimum(*(np.square(x - centre).sum(1) for centre in found)).sum()
    assert nearest == pytest.approx(min(squares))
    assert two_means(np.ones((3, 2)), 0) is None


def test_clusters_are_named_by_pairs_then_labels_then_size() -> None:
    """The last prompts' cluster is the hacks' by labels, and the smaller one; the first's is by the pairs."""
    prints, labels = np.repeat([[1.0, 0.0], [0.0, 1.0]], (6, 4), axis=0), np.repeat([0.0, 1.0], (6, 4))
    material = Material(rollouts=rollouts(10), fingerprints=prints, labels=labels, pairs=PAIRS)
    without = replace(material, pairs=None)
    named = (material, without, replace(without, labels=None), replace(without, labels=1 - labels))
    assert [values_of(one, "fingerprint")[0] > 0 for one in named] == [True, False, False, True]


@pytest.mark.parametrize("name", ["fingerprint", "probe", "probe:fingerprint"])
def test_a_rollout_without_a_gradient_has_no_score_and_changes_no_other(name: str) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2.0
    features = rng.normal(size=(24, 4)) + 3 * labels[:, None]
    made = {"labels": labels, "fingerprints": features, "states": features[:, None]}
    kept = values_of(Material(rollouts=rollouts(24), **made), name)
    with_hole = {field: np.concatenate([values, values[:1]]) for field, values in made.items()}
    for field in ("fingerprints", "states"):
        with_hole[field][-1] = np.nan
    found = values_of(Material(rollouts=[*rollouts(24), FIRST], **with_hole), name)
    np.testing.assert_allclose(found[:-1], kept, atol=1e-12)
    assert np.isnan(found[-1])


def test_the_logistic_regression_is_the_minimum_of_its_loss() -> None:
    rng = np.random.default_rng(0)
    x, others = rng.normal(size=(20, 6)), rng.normal(size=(5, 6))
    hacked = rng.random(20) < 1 / (1 + np.exp(-2 * x[:, 0]))
    sign = np.where(hacked, 1, -1)

    def loss(w: np.ndarray) -> float:
        logits = x @ w[:-1] / np.sqrt(6) + w[-1]
        return np.log1p(np.exp(-sign * logits)).sum() + RIDGE / 2 * np.square(w[:-1]).sum()

    best = optimize.minimize(loss, np.zeros(7), tol=1e-12).x
    np.testing.assert_allclose(
        logistic_scores(x, hacked, others), others @ best[:-1] / np.sqrt(6) + best[-1], atol=1e-4
    )


@pytest.mark.parametrize("name", ["probe", "probe:fingerprint", "words", "fingerprint"])
def test_a_learned_score_never_reads_labels_of_its_own_prompt(name: str) -> None:
    rng, num = np.random.default_rng(0), 80
    labels = np.concatenate([[0, 0, 1, 1], rng.permutation(np.arange(num - 4) % 2)]).astype(float)
    features = rng.normal(size=(num, 8)) + labels[:, None]
    ids = [[int(label), *rng.integers(2, 9, 5).tolist()] for label in labels]
    material = Material(
        rollouts=rollouts(num, each=4, completion_ids=ids),
        labels=labels,
        states=features[:, None],
        fingerprints=features,
    )
    found = values_of(material, name)
    assert auroc(found, labels == 1) > 0.9
    other = labels.copy()
    other[:4] = 1 - other[:4]
    np.testing.assert_allclose(values_of(replace(material, labels=other), name)[:4], found[:4])
    few = score_all(replace(material, learned=2), [name])[name]
    assert (few.values is None and "too few prompts" in few.why) == (name != "fingerprint"), "which has other names"


def test_separation_leaves_out_what_is_not_known() -> None:
    row = separation("a", [1, 2, np.nan, 4, 0], [0, 1, 1, 1, np.nan], ["p", "p", "q", "q", "r"])
    assert (row.value, row.parts, row.n) == (1.0, {"n_hacked": 2, "n_clean": 1}, 2)
    assert separation("a", [1.0], [1.0], ["p"]).why == "a side is missing"


def test_a_trivial_score_that_does_as_well_beats_the_gradient() -> None:
    """The difference and its jackknife against AUROCs computed anew without each prompt."""
    rng, num = np.random.default_rng(1), 64
    labels, prompts = (rng.random(num) < 0.5).astype(float), [f"p{i // 4}" for i in range(num)]
    good, poor = labels + rng.normal(0, 0.3, num), labels + rng.normal(0, 3, num)
    scores = {"similarity": Scores(values=good), "nll": Scores(values=poor), "length": Scores(values=-good - 1e-9)}
    nll, length = against_trivial(scores, labels, prompts)

    def difference(keep: np.ndarray) -> float:
        return auroc(good[keep], labels[keep] == 1) - auroc(poor[keep], labels[keep] == 1)

    assert nll.value == pytest.approx(difference(np.ones(num, dtype=bool)))
    each = np.array([difference(np.array(prompts) != name) for name in dict.fromkeys(prompts)])
    assert nll.interval is not None
    sides = [{prompt for prompt, label in zip(prompts, labels, strict=True) if label == side} for side in (0, 1)]
    half = stats.t.ppf(0.975, min(map(len, sides)) - 1) * np.sqrt(15 * each.var())
    assert nll.interval.high - nll.interval.low == pytest.approx(2 * half)
    better, unclear = beaten_by([nll, length])
    assert [row.name for row in better] == ["length"]
    assert unclear == []


def test_a_list_by_a_detector_no_better_than_chance_says_so() -> None:
    """With the detector that orders it better; none where the lead is above chance."""
    labels, prompts = np.arange(64) % 2.0, [f"p{i // 4}" for i in range(64)]
    noise = np.random.default_rng(0).normal(size=64)
    scores = {"nll": -labels, "length": labels, "activation": noise}
    measured = {name: Scores(values=values) for name, values in scores.items()}
    families = {"auroc": areas_of(measured, labels, prompts)}

    def said(lead: str) -> str:
        return " ".join(worth(families, measured, lead, labels, is_drawn=False))

    assert "worse than chance" in said("nll")
    assert "--detectors length" in said("nll")
    assert "not clearly above chance" in said("activation")
    assert "ordered by" not in said("length")


def test_agreement_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=60)
    scores = {"nll": Scores(values=a), "length": Scores(values=a + rng.normal(size=60)), "words": Scores(values=None)}
    length, words = agreements(scores, "nll", [f"p{i // 3}" for i in range(60)])
    assert length.value == pytest.approx(stats.spearmanr(a, scores["length"].values)[0])
    assert length.low < 0.7 < length.high
    assert words.value is None


def test_a_left_out_kind_is_scored_by_the_others() -> None:
    """`similarities` are (side, pair, side, pair); pairs of b look like hacks to a alone, and clean to themselves."""
    kinds, m = ["a", "a", "b", "b"], 4
    cosines = np.zeros((2, m, 2, m))
    cosines[0, 2:, 0, :2] = [[0.5], [0.6]]  # b's hacks with a's hacks
    cosines[1, 2:, 0, :2] = [[0.1], [0.2]]
    cosines[0, 2:, 1, 2:] = 0.9
    cosines[1, :2, 0, 2:] = 0.3  # a's clean sides with b's hacks
    pairs = PairMaterial(kinds=kinds, held_out=np.zeros(m, dtype=bool), similarities=cosines)
    a, b = left_out_kinds(pairs)
    assert (a.name, a.value, b.value) == ("a", 0.0, 1.0)
    assert left_out_kinds(replace(pairs, kinds=["a"] * m)) == []


def test_every_row_of_the_table_is_tested_here() -> None:
    tested = {name.partition(":")[0] for name, _ in FORMULAS}
    assert {*DETECTORS} == tested | {"probe", "probe:fingerprint", "words"}
