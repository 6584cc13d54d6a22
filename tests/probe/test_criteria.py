"""Criteria of a spec against a table of metrics: each comparison, each verdict, each null."""

from dataclasses import replace

import numpy as np
import pytest

from probe.analysis.criteria import evaluate
from probe.analysis.metrics import Estimate, Key, by_condition, difference, estimate, over_runs
from probe.analysis.nulls import NullTest
from probe.spec import Criterion

VALUES = {f"p{i}": value for i, value in enumerate(np.random.default_rng(0).normal(0.3, 0.1, 20).tolist())}
NARROW = NullTest(num_draws=99, mean=0.0, sd=0.05, q95=0.08, z=6.0, p=0.01, d=0.3)
WIDE = replace(NARROW, sd=0.4, q95=0.6, z=0.7, p=0.4)


def criterion(**changes) -> Criterion:
    fields = {
        "name": "c",
        "metric": "cos_in",
        "statistic": "lower95",
        "comparison": ">",
        "threshold": 0.2,
        "unit": "prompt",
        "role": "check",
    }
    return Criterion.model_validate(fields | changes)


def table(**rows: Estimate) -> dict[Key, Estimate]:
    return {Key(name, row.unit): row for name, row in rows.items()}


COSINE = table(cos_in=estimate(VALUES, "prompt", nulls={"N2": NARROW, "N3": WIDE}))  # .3 +- .04


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "PASS"),
        ({"threshold": 0.28}, "INCONCLUSIVE"),
        ({"threshold": 0.5}, "FAIL"),
        ({"statistic": "mean", "threshold": 0.28}, "INCONCLUSIVE"),
        ({"statistic": "mean", "comparison": "<", "threshold": 0.4}, "PASS"),
        ({"statistic": "upper95", "comparison": "<", "threshold": 0.36}, "PASS"),
        ({"statistic": "upper95", "comparison": "<", "threshold": 0.1}, "FAIL"),
        ({"statistic": "p", "comparison": "<", "threshold": 0.01}, "PASS"),
        ({"statistic": "p", "comparison": ">", "threshold": 0.5}, "INCONCLUSIVE"),
        ({"statistic": "interval90", "comparison": "inside", "threshold": (0.0, 0.5)}, "PASS"),
        ({"statistic": "interval90", "comparison": "inside", "threshold": (-0.05, 0.05)}, "FAIL"),
        ({"statistic": "interval90", "comparison": "inside", "threshold": (0.3, 0.5)}, "INCONCLUSIVE"),
        ({"statistic": "max", "comparison": "<", "threshold": 0.9}, "PASS"),
        ({"statistic": "min", "comparison": ">", "threshold": 0.9}, "FAIL"),
        ({"statistic": "n", "comparison": ">=", "threshold": 16}, "PASS"),
        ({"null": "N2"}, "PASS"),
        ({"null": "N3"}, "VACUOUS"),
        ({"null": "N4"}, "INCONCLUSIVE"),
        ({"null": "N3", "threshold": 0.5}, "FAIL"),
        ({"unit": "step"}, "INCONCLUSIVE"),
        ({"metric": "nothing"}, "INCONCLUSIVE"),
        ({"arm": "random"}, "INCONCLUSIVE"),
    ],
)
def test_each_comparison(changes, verdict):
    found = evaluate(criterion(**changes), COSINE)
    assert found.verdict == verdict, found.why
    assert found.why


def test_reasons_say_what_there_is_instead():
    assert "by step was not measured: it exists for unit prompt" in evaluate(criterion(unit="step"), COSINE).why
    arms = {key._replace(arm="vanilla"): row for key, row in COSINE.items()}
    assert "arm random was not measured: it exists for arm vanilla" in evaluate(criterion(arm="random"), arms).why
    assert "its null N4 was not measured" in evaluate(criterion(null="N4"), COSINE).why
    assert "and so does its null: N3 p 0.4" in evaluate(criterion(null="N3"), COSINE).why
    assert "says that the code ran" in evaluate(criterion(role="mechanism"), COSINE).why
    one = table(cos_in=estimate({"p": 0.3}, "prompt"))
    assert "no lower95 from 1 prompts" in evaluate(criterion(), one).why


def test_p_of_a_metric_without_sign_flips_is_that_of_its_null():
    area = table(auroc=Estimate(value=0.9, n=20, unit="prompt", nulls={"N2": NARROW, "N3": WIDE}, bar=0.95))
    asked = {"metric": "auroc", "statistic": "p", "comparison": "<", "threshold": 0.05}
    assert evaluate(criterion(**asked, null="N2"), area).verdict == "PASS"
    assert evaluate(criterion(**asked, null="N3"), area).verdict == "INCONCLUSIVE"
    assert "no p from 20 prompts" in evaluate(criterion(**asked), area).why


def test_trivial_baselines_are_a_bar():
    asked = criterion(metric="auroc", statistic="mean", threshold=0.5, null="baselines")
    for bar, verdict in ((0.7, "PASS"), (0.95, "VACUOUS"), (None, "INCONCLUSIVE")):
        area = table(auroc=Estimate(value=0.9, n=20, unit="prompt", bar=bar))
        assert evaluate(asked, area).verdict == verdict


def test_a_number_that_could_not_differ_is_vacuous():
    capped = table(adv_cap_fraction=replace(estimate({"0": 0.0}, "step"), vacuous="the cap is above its bound"))
    asked = criterion(metric="adv_cap_fraction", statistic="max", threshold=0.0, unit="step")
    found = evaluate(asked, capped)
    assert (found.verdict, found.why) == ("VACUOUS", "the cap is above its bound")


def test_differences_are_paired_by_unit():
    """Arms 0.1 apart on every prompt, whatever the prompts do: found, although the arms' intervals overlap."""
    rng = np.random.default_rng(1)
    prompts = {f"p{i}": value for i, value in enumerate(rng.normal(0, 1, 12).tolist())}
    shifted = {name: value + 0.1 + rng.normal(0, 0.01) for name, value in prompts.items()}
    metrics = {Key("cos_in", "prompt"): estimate(shifted, "prompt")}
    metrics[Key("cos_in", "prompt", "random")] = estimate(prompts, "prompt")
    asked = {"versus_arm": "random", "threshold": 0.05}
    assert evaluate(criterion(**asked), metrics).verdict == "PASS"
    unpaired = estimate({f"q{i}": 0.0 for i in range(3)}, "prompt")
    found = evaluate(criterion(**asked), metrics | {Key("cos_in", "prompt", "random"): unpaired})
    assert "share no prompt" in found.why
    assert difference(metrics[Key("cos_in", "prompt")], unpaired).n == 0


def test_identical_arms_are_vacuous_as_a_primary_and_fine_as_a_check():
    metrics = {Key("cos_in", "prompt", arm): estimate(VALUES, "prompt") for arm in (None, "projected")}
    asked = {"statistic": "interval90", "comparison": "inside", "threshold": (-0.05, 0.05), "versus_arm": "projected"}
    assert evaluate(criterion(**asked), metrics).verdict == "PASS"
    found = evaluate(criterion(**asked, role="primary"), metrics)
    assert found.verdict == "VACUOUS"
    assert "identical in every prompt: nothing was compared" in found.why


def test_conditions_and_runs_are_merged_into_one_table():
    """The first condition needs no name; over runs, the unit is the run and n their number."""
    tables = {name: table(cos_in=estimate({"p": value}, "prompt")) for name, value in (("a", 0.1), ("b", 0.2))}
    merged = by_condition(tables)
    assert merged[Key("cos_in", "prompt")].value == merged[Key("cos_in", "prompt", None, "a")].value == 0.1
    assert merged[Key("cos_in", "prompt", None, "b")].value == 0.2
    versus = criterion(statistic="mean", threshold=0.0, condition="b", versus_condition="a")
    assert evaluate(versus, merged).value.startswith("+0.1")
    seeds = over_runs({"41": tables["a"], "42": tables["b"]})
    row = seeds[Key("cos_in", "seed")]
    assert (row.n, row.unit, row.value) == (2, "seed", pytest.approx(0.15))
