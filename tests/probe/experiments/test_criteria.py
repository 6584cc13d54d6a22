"""Criteria of a spec against a table of metrics: each comparison, each verdict, each null."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind
from worlds import World, make_run

from probe.analysis.analyze import analyze
from probe.analysis.estimate import Estimate as Measured
from probe.analysis.metrics import (
    Estimate,
    MetricKey,
    by_condition,
    difference,
    estimate,
    over_runs,
    replay_metrics,
    unpaired_difference,
)
from probe.analysis.statistics.intervals import Interval
from probe.experiments.criteria import evaluate
from probe.experiments.spec import Criterion
from probe.records.run import Run, read_run

VALUES = {f"p{i}": value for i, value in enumerate(np.random.default_rng(0).normal(0.3, 0.1, 20).tolist())}
NARROW = Measured(name="N2", n=99, null=0.0, p=0.01, parts={"q95": 0.08})
WIDE = replace(NARROW, p=0.4, parts={"q95": 0.6})


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


def table(**rows: Estimate) -> dict[MetricKey, Estimate]:
    return {MetricKey(name, row.unit): row for name, row in rows.items()}


COSINE = table(cos_in=estimate(VALUES, "prompt", nulls={"N2": NARROW, "N1": WIDE}))  # .3 +- .04


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
        ({"statistic": "value", "threshold": 0.28}, "PASS"),
        ({"statistic": "value", "threshold": 0.5}, "FAIL"),
        ({"statistic": "max", "comparison": "<", "threshold": 0.9}, "PASS"),
        ({"statistic": "min", "comparison": ">", "threshold": 0.9}, "FAIL"),
        ({"statistic": "n", "comparison": ">=", "threshold": 16}, "PASS"),
        ({"null": "N2"}, "PASS"),
        ({"null": "N1"}, "VACUOUS"),
        ({"null": "N4"}, "INCONCLUSIVE"),
        ({"null": "N1", "threshold": 0.5}, "FAIL"),
        ({"unit": "step"}, "INCONCLUSIVE"),
        ({"metric": "nothing"}, "INCONCLUSIVE"),
        ({"arm": "random"}, "INCONCLUSIVE"),
    ],
)
def test_each_comparison(changes, verdict):
    found = evaluate(criterion(**changes), COSINE)
    assert found.says == verdict, found.text
    assert found.text


def test_p_of_a_metric_without_sign_flips_is_that_of_its_null():
    area = table(auroc=Estimate(value=0.9, n=20, unit="prompt", nulls={"N2": NARROW, "N1": WIDE}))
    asked = {"metric": "auroc", "statistic": "p", "comparison": "<", "threshold": 0.05}
    assert evaluate(criterion(**asked, null="N2"), area).says == "PASS"
    assert evaluate(criterion(**asked, null="N1"), area).says == "INCONCLUSIVE"
    assert "no p from 20 prompts" in evaluate(criterion(**asked), area).text


def test_a_mean_without_an_interval_decides_nothing():
    """Such as a rank correlation of two treatments, which is 1 or -1 whatever they are; `value` asks of these alone."""
    alone = table(auroc=Estimate(value=0.9, n=2, unit="prompt"))
    for statistic, verdict in (("mean", "INCONCLUSIVE"), ("lower95", "INCONCLUSIVE"), ("value", "PASS")):
        assert evaluate(criterion(metric="auroc", statistic=statistic, threshold=0.5), alone).says == verdict


@pytest.mark.parametrize("threshold", [0.5, 0.95])
def test_trivial_baselines_are_judged_as_in_rule_r3(threshold):
    """A trivial score that does as well is a FAIL, whatever the size."""
    asked = criterion(metric="auroc", statistic="mean", threshold=threshold, null="baselines")
    own = "PASS" if threshold == 0.5 else "FAIL"
    unknown = "INCONCLUSIVE" if threshold == 0.5 else "FAIL"
    narrow = Interval(low=0.88, high=0.92)
    for beaten_by, verdict in (((), own), (("nll 0.95",), "FAIL"), (None, unknown)):
        area = table(auroc=Estimate(value=0.9, n=20, unit="prompt", interval=narrow, beaten_by=beaten_by))
        assert evaluate(asked, area).says == verdict
    assert (
        "a trivial score does as well or better: nll 0.95"
        in evaluate(asked, table(auroc=Estimate(value=0.9, n=20, unit="prompt", beaten_by=("nll 0.95",)))).text
    )


def test_a_number_that_could_not_differ_is_vacuous():
    capped = table(adv_cap_fraction=replace(estimate({"0": 0.0}, "step"), vacuous="the cap is above its bound"))
    asked = criterion(metric="adv_cap_fraction", statistic="max", threshold=0.0, unit="step")
    found = evaluate(asked, capped)
    assert (found.says, "the cap is above its bound" in found.text) == ("VACUOUS", True)


def test_differences_are_paired_by_unit():
    """Arms 0.1 apart on every prompt, whatever the prompts do: found, although the arms' intervals overlap."""
    rng = np.random.default_rng(1)
    prompts = {f"p{i}": value for i, value in enumerate(rng.normal(0, 1, 12).tolist())}
    shifted = {name: value + 0.1 + rng.normal(0, 0.01) for name, value in prompts.items()}
    metrics = {MetricKey("cos_in", "prompt"): estimate(shifted, "prompt")}
    metrics[MetricKey("cos_in", "prompt", "random")] = estimate(prompts, "prompt")
    asked = {"versus_arm": "random", "threshold": 0.05}
    assert evaluate(criterion(**asked), metrics).says == "PASS"
    unpaired = estimate({f"q{i}": 0.0 for i in range(3)}, "prompt")
    found = evaluate(criterion(**asked), metrics | {MetricKey("cos_in", "prompt", "random"): unpaired})
    assert "share no prompt" in found.text
    assert difference(metrics[MetricKey("cos_in", "prompt")], unpaired).n == 0


def test_identical_arms_are_vacuous_unless_an_identity_is_asked_for():
    metrics = {MetricKey("cos_in", "prompt", arm): estimate(VALUES, "prompt") for arm in (None, "projected")}
    asked = {"statistic": "interval90", "comparison": "inside", "threshold": (-0.05, 0.05), "versus_arm": "projected"}
    found = evaluate(criterion(**asked, role="mechanism"), metrics)
    assert (found.says, "all read 0 and show no variance" in found.text) == ("INCONCLUSIVE", True), found.text
    for role in ("primary", "check"):
        found = evaluate(criterion(**asked, role=role), metrics)
        assert found.says == "VACUOUS"
        assert "identical in every prompt: nothing was compared" in found.text


@pytest.mark.parametrize("statistic", ["mean", "upper95"])
def test_seeds_that_read_the_same_are_no_evidence_of_other_seeds(statistic):
    """An interval of width 0 was PASS on the one side of a threshold and FAIL, "beyond it", on the other."""
    same = table(cos_moved=estimate({"0": 0.2, "1": 0.2, "2": 0.2}, "seed"))
    for threshold in (0.1, 0.3):
        asked = criterion(metric="cos_moved", statistic=statistic, comparison="<", threshold=threshold, unit="seed")
        found = evaluate(asked, same)
        assert (found.says, "from 3 seeds: all read 0.2" in found.text) == ("INCONCLUSIVE", True), found.text
    one = evaluate(criterion(statistic="mean", threshold=0.1), table(cos_in=estimate({"p": 0.3}, "prompt")))
    assert (one.says, "no 95% interval from 1 prompts" in one.text) == ("INCONCLUSIVE", True)


def rates(shares: tuple[float, ...], unit: str = "seed", trials: int = 64) -> Estimate:
    by_unit = {str(number): share for number, share in enumerate(shares)}
    return estimate(by_unit, unit, trials=dict.fromkeys(by_unit, trials))


def test_equal_rates_have_the_interval_of_their_outcomes():
    """0 of 64 in two and three seeds, and arms that are 0 in every seed: never a width of 0, and no PASS by it."""
    two, three = rates((0.0, 0.0)), rates((0.0, 0.0, 0.0))
    assert two.interval is not None
    assert two.interval.high == pytest.approx(0.70, abs=0.01), "two seeds say next to nothing about seeds"
    assert three.interval is not None
    assert (three.interval.low, three.interval.high) == (0.0, pytest.approx(0.088, abs=0.001))
    for compared in (difference(three, three), unpaired_difference(three, three)):
        assert (compared.interval.low, compared.interval.high) == pytest.approx((-0.0196, 0.0196), abs=1e-4)
    asked = {"metric": "hack_final", "unit": "seed", "arm": "a", "versus_arm": "b"}
    metrics = {MetricKey("hack_final", "seed", arm): three for arm in "ab"}
    inside = {"statistic": "interval90", "comparison": "inside", "threshold": (-0.01, 0.01)}
    assert evaluate(criterion(**asked, **inside), metrics).says == "INCONCLUSIVE"
    metrics[MetricKey("hack_final", "seed", "b")] = rates((0.75, 0.75, 0.75))
    below = {"statistic": "upper95", "comparison": "<", "threshold": 0.0, "paired": False}
    assert evaluate(criterion(**asked, **below), metrics).says == "PASS", "64 outcomes a seed are evidence"


def test_problems_that_never_differ_span_what_their_outcomes_leave_open():
    """Four held-out problems, solved alike: +-1 at most, and nothing near 0 of width."""
    alike = difference(rates((1.0, 0.0, 1.0, 1.0), "problem", 1), rates((1.0, 0.0, 1.0, 1.0), "problem", 1))
    assert alike.interval is not None
    assert alike.interval.high - alike.interval.low > 0.9
    differ = difference(rates((1.0, 0.0, 1.0), "problem", 8), rates((0.5, 0.0, 0.75), "problem", 8))
    assert differ.interval == estimate({"0": 0.5, "1": 0.0, "2": 0.25}, "problem").interval


def test_unpaired_differences_are_welchs():
    """Independent samples of two sizes: the mean difference, Welch's p and interval; pairing is not used."""
    a = estimate({"0": 0.8, "1": 0.9, "2": 0.7}, "seed")
    b = estimate({"0": 0.3, "1": 0.1}, "seed")
    found = unpaired_difference(a, b)
    assert found.p == ttest_ind([0.8, 0.9, 0.7], [0.3, 0.1], equal_var=False).pvalue
    assert (found.value, found.n) == (pytest.approx(0.6), 2)
    assert found.interval is not None
    assert found.interval.low < 0.6 < found.interval.high
    metrics = {MetricKey("hack_final", "seed", "vanilla"): a, MetricKey("hack_final", "seed", "random"): b}
    asked = {"metric": "hack_final", "unit": "seed", "arm": "vanilla", "versus_arm": "random", "threshold": 0.0}
    assert evaluate(criterion(**asked, paired=False), metrics).n == 2
    same = dict.fromkeys(metrics, a)
    assert evaluate(criterion(**asked, paired=False, role="primary"), same).says == "INCONCLUSIVE"


def test_conditions_and_runs_are_merged_into_one_table():
    """The first condition needs no name. Of training runs the seed is the unit; problems have their mean over seeds,
    steps keep their extremes alone.
    """
    tables = {name: table(cos_in=estimate({"p": value}, "prompt")) for name, value in (("a", 0.1), ("b", 0.2))}
    merged = by_condition(tables)
    assert merged[MetricKey("cos_in", "prompt")].value == merged[MetricKey("cos_in", "prompt", None, "a")].value == 0.1
    assert merged[MetricKey("cos_in", "prompt", None, "b")].value == 0.2
    versus = criterion(statistic="mean", threshold=0.0, condition="b", versus_condition="a")
    assert evaluate(versus, merged).text.startswith("+0.1")
    seeds = over_runs(
        {
            str(seed): {
                MetricKey("hack_final", "run"): Estimate(value=value, n=1, unit="run"),
                MetricKey("hack_final", "problem"): estimate({"p": value, f"q{seed}": 1.0}, "problem"),
                MetricKey("cos_in", "step"): estimate({"0": value, "1": 0.3}, "step"),
            }
            for seed, value in ((41, 0.1), (42, 0.2))
        }
    )
    row = seeds[MetricKey("hack_final", "seed")]
    assert (row.n, row.unit, row.value) == (2, "seed", pytest.approx(0.15))
    assert row.by_unit == {"41": 0.1, "42": 0.2}
    assert seeds[MetricKey("hack_final", "problem")].by_unit == {"p": pytest.approx(0.15), "q41": 1.0, "q42": 1.0}
    steps = seeds[MetricKey("cos_in", "step")]
    assert (steps.n, steps.minimum, steps.maximum) == (4, 0.1, 0.3)
    assert (steps.value, steps.interval, steps.p) == (None, None, None), "steps of training are not independent"


@pytest.fixture(scope="module")
def catalogued(replay: Callable[..., Path], quick: list[str]) -> Run:
    """Without a penalty, with one beside a ratio and a clip, and with one alone."""
    more = "kl:beta=0.1,reference=recorded,old_logprobs=recorded,epsilon=0.2,advantage_clip=0.1"
    names = ("default", more, "penalised:beta=1,reference=recorded,min_group_std=1.4")
    conditions = [word for name in names for word in ("--condition", name)]
    return read_run(replay("catalogued", *quick[:2], "--arm", "vanilla", "--steps", "12", *conditions))


def test_the_catalogue_knows_the_metrics_of_a_replay(catalogued: Run) -> None:
    """Every metric, unit and null of a run that measures them all is there, and nothing that it does not measure."""
    rows = [row for name in ("default", "kl") for row in analyze(catalogued, name, num_draws=99).metrics.items()]
    there: dict[str, set[str]] = {}
    nulls: dict[str, set[str]] = {}
    for key, row in rows:
        there.setdefault(key.metric, set()).add(key.unit)
        beaten = {"baselines"} if row.beaten_by is not None else set()
        nulls.setdefault(key.metric, set()).update({*row.nulls} | beaten)
    known = dict(replay_metrics())
    # Shares need hacks that nothing trivial tells apart, and progress to take a share of: the worlds below have both.
    for name in ("contrast", *(name for name in known if name.startswith("removed/"))):
        if name not in there:
            del known[name]
    for metric, entry in known.items():
        assert there.get(metric) == {*entry.units}, metric
        assert nulls[metric] == {*entry.nulls}, metric
    assert there.keys() == known.keys()


def test_a_criterion_on_a_share_of_the_ceiling(tmp_path: Path) -> None:
    """Pull, contrast and what the gate removes are those of the analysis; where they are undefined, not measured."""
    world = World(num_steps=12)
    found = analyze(read_run(make_run(tmp_path / "a" / "runs" / "run", world)), num_draws=9)
    pull = found.get("shares", "pull")
    honest = found.get("removed", "removed/honest")
    assert {"contrast", "removed/margin", "removed/hacks"} <= {key.metric for key in found.metrics}
    for asked, expected in (
        (criterion(metric="pull", threshold=pull.low - 0.01), "PASS"),
        (criterion(metric="pull", threshold=pull.low + 0.01), "INCONCLUSIVE"),
        (criterion(metric="pull", threshold=pull.high + 0.01), "FAIL"),
        (criterion(metric="contrast", threshold=0.0), "PASS"),
        (criterion(metric="pull - benign", threshold=0.0), "PASS"),
        (criterion(metric="removed/margin", threshold=0.0), "PASS"),
        (
            criterion(metric="removed/honest", statistic="upper95", comparison="<", threshold=honest.high + 0.01),
            "PASS",
        ),
    ):
        judged = evaluate(asked, found.metrics)
        assert judged.says == expected, (asked, judged)
        assert judged.n == 12
    nothing = analyze(read_run(make_run(tmp_path / "b" / "runs" / "run", replace(world, num_held_out=0))), num_draws=9)
    judged = evaluate(criterion(metric="pull"), nothing.metrics)
    assert (judged.says, judged.text) == ("INCONCLUSIVE", "pull by prompt was not measured")


def test_a_gradient_of_a_penalty_alone_has_no_nulls(catalogued: Run) -> None:
    """Where all advantages are 0 the KL term still moves the policy: inner products miss it, and a part says so."""
    steps = [step for step in catalogued.steps if step.condition == "penalised" and step.cos_in is not None]
    assert [step for step in steps if step.advantage["advantage/abs_max"] == 0], "no step without advantages"
    found = analyze(catalogued, "penalised", num_draws=99)
    assert found.of("shares") == found.of("modules") == []
    assert any("a KL penalty" in part.text for part in found.validity)
