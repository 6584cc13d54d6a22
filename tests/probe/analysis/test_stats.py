"""Tests and intervals: hand-computed cases, slow references, and error rates by simulation."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis.estimate import Estimate, difference, mean_of
from probe.analysis.statistics.intervals import (
    auroc,
    auroc_interval,
    clopper_pearson,
    prompt_means,
    prompt_weights,
    t_interval,
    wilson_interval,
    within_prompt_differences,
)
from probe.analysis.statistics.significance import effects_by_prompt, mde, sign_flip_test

small_integers = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=8)


def test_sign_flip_by_hand():
    """Three positive differences: only + + + and - - - are as extreme, so p = 2 / 8 and no smaller p exists."""
    assert sign_flip_test([1.0, 2.0, 3.0]) == 0.25
    assert sign_flip_test([1.0, -1.0]) == 1.0
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert sign_flip_test([]) is None


@settings(deadline=None, max_examples=60)
@given(d=small_integers, factor=st.sampled_from([1e-9, -1.0, 0.1, 1e6]))
def test_sign_flip_equals_enumeration(d, factor):
    """All sign patterns by itertools, on integers where sums are exact; rounding breaks no tie of the scaled ones."""
    patterns = [abs(sum(s * x for s, x in zip(signs, d))) for signs in itertools.product((-1, 1), repeat=len(d))]
    assert sign_flip_test(d) == np.mean([value >= abs(sum(d)) for value in patterns])
    assert sign_flip_test([factor * x for x in reversed(d)]) == sign_flip_test(d)


def test_sampled_sign_flips_are_seeded_and_close_to_exact():
    """17 differences are sampled; doubling the exact case of 16 by a zero leaves its p unchanged."""
    d = np.random.default_rng(0).normal(0.4, 1, 16)
    exact, sampled = sign_flip_test(d), sign_flip_test([*d, 0.0])
    assert sampled == pytest.approx(exact, abs=5 * math.sqrt(exact / 9999))
    assert sampled == sign_flip_test([*d, 0.0])
    assert sign_flip_test(np.ones(60)) == 1 / 10_000, "p is never 0: the observed signs count as a draw"


def clustered(rng, icc):
    """No effect of the label; values and labels are both correlated inside 12 prompts of 8 samples."""
    prompts = np.repeat(np.arange(12), 8)
    labels = rng.random(96) < rng.beta(0.5, 0.5, 12)[prompts]
    values = math.sqrt(icc) * rng.normal(size=12)[prompts] + math.sqrt(1 - icc) * rng.normal(size=96)
    return values, labels, prompts


@pytest.mark.parametrize("icc", [0.0, 0.7])
def test_false_positive_rates_under_intra_prompt_correlation(icc):
    """Sign flips, the intervals over prompts and the adjusted effect keep 5%; Welch, by sample, does not."""
    rng = np.random.default_rng(7)
    num_sims = 200
    rejected = dict.fromkeys(("sign flip", "interval", "AUROC", "adjusted", "welch"), 0)
    for _ in range(num_sims):
        values, labels, prompts = clustered(rng, icc)
        rows = values.tolist(), labels.tolist(), prompts.tolist()
        differences = within_prompt_differences(*rows)
        rejected["sign flip"] += sign_flip_test([*differences.values()], num_draws=999) < 0.05
        rejected["interval"] += excludes(t_interval([*differences.values()]), 0.0)
        rejected["AUROC"] += excludes(auroc_interval(values, labels, rows[2]), 0.5)
        length = rng.normal(size=len(values)) + labels
        adjusted = effects_by_prompt(values[None], rows[1], {"length": length.tolist()}, rows[2])
        rejected["adjusted"] += adjusted is not None and excludes(t_interval(adjusted[0]), 0.0)
        rejected["welch"] += scipy.stats.ttest_ind(values[labels], values[~labels], equal_var=False).pvalue < 0.05
    limit = 0.05 + 4 * math.sqrt(0.05 * 0.95 / num_sims)
    rates = {name: count / num_sims for name, count in rejected.items()}
    assert all(rate <= limit for name, rate in rates.items() if name != "welch"), f"above 5%: {rates}"
    if icc >= 0.3:
        assert rates["welch"] > 0.12, f"Welch rejects {rates['welch']:.1%}: is the simulated correlation gone?"
    else:
        assert rates["welch"] <= limit


def excludes(interval, value):
    return interval is not None and not interval.low <= value <= interval.high


def test_within_prompt_differences_by_hand():
    """Prompt a holds both sides, b and c one only; weights give the mean of prompt means."""
    values, labels = [1.0, 3.0, 0.0, 9.0, 7.0], [True, True, False, True, False]
    assert within_prompt_differences(values, labels, ["a", "a", "a", "b", "c"]) == {"a": 2.0}
    assert prompt_means(values, ["a", "a", "a", "b", "c"]) == {"a": pytest.approx(4 / 3), "b": 9.0, "c": 7.0}
    assert values @ prompt_weights(["a", "a", "a", "b", "c"]) == pytest.approx(np.mean([4 / 3, 9.0, 7.0]))


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (wilson_interval(16, 20), (0.5840, 0.9193)),
        (clopper_pearson(16, 20), (0.5634, 0.9427)),
        (clopper_pearson(0, 10), (0.0, 1 - 0.025 ** (1 / 10))),
        (t_interval([1, 2, 3, 4, 5]), (3 - 1.9632, 3 + 1.9632)),  # 2.776 * sqrt(2.5 / 5)
    ],
)
def test_intervals_against_textbook_values(interval, expected):
    assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-4)


def test_what_shows_no_variance_has_no_interval():
    assert wilson_interval(0, 0) is t_interval([1.0]) is t_interval([0.3, 0.1 + 0.2]) is None, "rounding is no variance"


def test_an_auroc_is_of_clusters_not_rows():
    """Ten equal rows in each of two clusters say no more than one row each: the interval spans everything."""
    scores, labels, clusters = [1, 0] * 10 + [0, 1] * 10, [True, False] * 20, ["a"] * 20 + ["b"] * 20
    area = auroc_interval(scores, labels, clusters)
    assert area.low < 0.01, "rows were left out instead of clusters"
    assert area.high > 0.99
    assert auroc_interval([0.0, 1.0], [True, False], ["a", "a"]) is None
    assert auroc_interval([3, 2, 1, 0], [True, True, False, False], ["a", "a", "a", "b"]) is None, "hacks of one prompt"


def test_auroc_interval_by_leaving_out_each_cluster():
    """The slow way: the AUROC without each cluster in turn; half a win and half a loss; the t of fewer clusters."""
    rng = np.random.default_rng(4)
    clusters = rng.integers(0, 6, 40)
    scores, labels = rng.integers(0, 8, 40), rng.random(40) < 0.5
    areas = [auroc(scores[clusters != c], labels[clusters != c]) for c in range(6)]
    n = min(labels.sum(), (~labels).sum())
    area = (auroc(scores, labels) * n + 0.5) / (n + 1)
    error = math.sqrt(5 / 6 * np.sum((np.array(areas) - np.mean(areas)) ** 2)) / (area * (1 - area))
    df = min(len(set(clusters[labels])), len(set(clusters[~labels]))) - 1
    found = auroc_interval(scores, labels, clusters.tolist())
    centre, half = math.log(area / (1 - area)), scipy.stats.t.ppf(0.975, df) * error
    expected = [1 / (1 + math.exp(-end)) for end in (centre - half, centre + half)]
    assert (found.low, found.high) == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20))
def test_auroc_equals_pair_counting(rows):
    """Probability over all (labelled, unlabelled) pairs, ties one half; NaN without pairs."""
    pairs = [(a, b) for (a, hack), (b, clean) in itertools.product(rows, rows) if hack and not clean]
    found = auroc([score for score, _ in rows], [label for _, label in rows])
    if pairs:
        assert found == pytest.approx(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))
    else:
        assert math.isnan(found)


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


def test_detectable_effects_of_the_textbook():
    """Cohen (1988): d = .5 needs 64 a group and d = .8 needs 26, two-sided 5%, power 80%."""
    for effect, n in ((0.5, 64), (0.8, 26)):
        assert mde(1.0, n) < effect < mde(1.0, n - 1)
    assert mde(0.15, 1) == math.inf


def test_a_mean_has_students_interval_or_says_why_not() -> None:
    found = mean_of("x", {"a": 1.0, "b": 2.0, "c": 4.5}, "prompt")
    assert (found.value, found.n, found.interval) == (2.5, 3, t_interval([1.0, 2.0, 4.5]))
    for parts in ({"a": 1.0, "b": 1.0}, {"a": 1.0}, {}):
        without = mean_of("x", parts, "prompt")
        assert without.interval is None
        assert without.why


def test_a_difference_is_paired_by_the_units_of_both() -> None:
    a, b = mean_of("x", {"p": 1.0, "q": 3.0, "r": 9.0}, "prompt"), mean_of("x", {"q": 2.0, "p": 4.0}, "prompt")
    assert difference(a, b).parts == {"p": -3.0, "q": 1.0}
    assert (format(Estimate(name="x")), f"{difference(a, b):.1f}"[:4]) == ("-", "-1.0")
