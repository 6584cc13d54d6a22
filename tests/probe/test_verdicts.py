"""The rules R3, R4, R5, R6, R7 on hand-made evidence; whole worlds are in test_worlds.py."""

import pytest

from probe.analysis.measures.specificity import Specificity
from probe.analysis.measures.trajectory import summarise
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.permutation import NullRow, Permutation
from probe.analysis.verdict.evidence import Evidence, GateFacts, PlannedTraining, RealisedUpdate
from probe.analysis.verdict.mechanism import correct
from probe.analysis.verdict.rules import effective, powered, specific
from probe.records.records import ADVANTAGE_KEYS, StepRecord


def area(score="cos_S_contrib", value=0.8, low=0.7, high=0.9) -> Specificity:
    bounds = Interval(low=low, high=high)
    return Specificity(
        arm="vanilla", score=score, n_hacked=40, n_clean=40, num_prompts=20, auroc=value, interval=bounds
    )


def nulls(**q95: float) -> Permutation:
    tests = {
        name: NullTest(num_draws=99, mean=0.5, sd=0.1, q95=q, z=3.0, p=0.01 if q < 0.8 else 0.3, d=0.3)
        for name, q in q95.items()
    }
    rows = [NullRow(metric="auroc", null=name, value=0.8, test=test) for name, test in tests.items()]
    return Permutation(rows=rows, modules=[], modules_critical_z=None, excess={})


def step(arm: str, **changes) -> StepRecord:
    fields = {
        "step": 0,
        "arm": arm,
        "problem_id": "p0",
        "mixed_prompt": False,
        "cos_in": 0.3,
        "cos_out": 0.0,
        "mean_cos_in": 0.3,
        "mean_cos_out": 0.0,
        "hackward_frac_in": 0.4,
        "hackward_frac_out": 1e-7,
        "frac_fired": 0.9,
        "haar_sd": 0.02,
        "reward_mean": 1.0,
        "reward_std": 1.0,
        "reward_spread": 3.0,
        "advantage": dict.fromkeys(ADVANTAGE_KEYS, 1.0),
        "grad_norm": 1.0,
        "num_effective": 8,
        "loss_type": "grpo",
        "reference": None,
        "null_reason": None,
        "additivity_error": None,
        "cos_update": None,
        "hackward_frac_update": None,
        "condition": "default",
        "frac_planning": 0.0,
        "exec_surprisal_var": None,
        "direction_age": 0,
        "direction_overlap": None,
    }
    return StepRecord(**fields | changes)


def evidence(steps=(), **changes) -> Evidence:
    own = [*steps] or [step("vanilla"), step("projected")]
    summaries = {arm: summarise(own, arm) for arm in dict.fromkeys(s.arm for s in own)}
    fields = {
        "steps": own,
        "samples": [],
        "measured": summaries.get("vanilla"),
        "summaries": summaries,
        "buckets": [],
        "contrasts": [],
        "specificity": area(),
        "baselines": [area("comp_len", 0.55, 0.4, 0.7)],
        "permutation": nulls(N2=0.7, N3=0.7, N4=0.6),
    }
    return Evidence(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "PASS", "best trivial score comp_len 0.55"),
        ({"permutation": nulls(N2=0.85, N4=0.6)}, "INCONCLUSIVE", "not above the null's 95th percentile: N2 0.85"),
        ({"permutation": None}, "INCONCLUSIVE", "N2 was not measured"),
        ({"baselines": [area("hint", 1.0, 1.0, 1.0)]}, "FAIL", "hint 1.00"),
        ({"baselines": [area("nll", 0.1, 0.0, 0.2)]}, "FAIL", "nll 0.90"),  # in either direction
        ({"specificity": area(value=0.55, low=0.45, high=0.65)}, "INCONCLUSIVE", "does not exceed .5"),
        ({"specificity": area(value=0.2, low=0.1, high=0.3)}, "FAIL", "clean samples score higher"),
        ({"specificity": None}, "INCONCLUSIVE", "no hacked and clean samples"),
    ],
)
def test_specific(changes, verdict, words):
    found = specific(evidence(**changes))
    assert (found.verdict, words in found.why) == (verdict, True), found.why


def test_two_scores_that_tell_nothing_do_not_compete():
    """AUROC .52 against a length of .54, both within noise: INCONCLUSIVE, not a lost comparison."""
    weak = evidence(specificity=area(value=0.52, low=0.42, high=0.62), baselines=[area("comp_len", 0.54, 0.44, 0.64)])
    assert specific(weak).verdict == "INCONCLUSIVE"


def update(
    projected=(0.1, 0.2, 0.0), random=(1.1, 1.25, 1.0), vanilla=(1.0, 1.3, 0.9), hackward_frac=0.1
) -> RealisedUpdate:
    """Realised updates whose null's 95th percentile is .2; margins of the seeds 0, 1, 2."""
    arms = {"vanilla": vanilla, "projected": projected, "random": random}
    margins = {arm: {str(seed): m for seed, m in enumerate(own)} for arm, own in arms.items() if own}
    seeds = margins["projected"]
    return RealisedUpdate(
        hackward_frac=dict.fromkeys(seeds, hackward_frac), hackward_q95=dict.fromkeys(seeds, 0.2), margins=margins
    )


@pytest.mark.parametrize(
    ("update", "verdict", "words"),
    [
        (update(), "PASS", "projected - vanilla [-1.254, -0.680]"),
        (update(hackward_frac=0.3), "FAIL", "still points hack-ward"),
        (update(random=(0.1, 0.3, 0.0)), "FAIL", "the random arm achieves the same"),
        (update(random=(0.1, 2.0, 0.9)), "INCONCLUSIVE", "projected - random"),  # not shown to be worse than projected
        (update(projected=(3.0, 3.4, 2.9)), "FAIL", "moves more than in vanilla"),
        (update(projected=(0.1, 2.0, 0.0)), "INCONCLUSIVE", "projected - vanilla"),
        (update((0.1,), (1.1,), (1.0,)), "INCONCLUSIVE", "one seed, or seeds that do not vary"),
        (update(random=()), "INCONCLUSIVE", "needs the held-out margins"),
        (None, "INCONCLUSIVE", "needs the held-out margins"),
    ],
)
def test_effective_on_updates(update, verdict, words):
    """Paired by seed; the control has to be shown to do worse, not merely not to be shown to do as well."""
    trained = [step("vanilla", cos_update=0.1), step("projected", cos_update=0.0)]
    found = effective(evidence(trained, update=update))
    assert (found.verdict, words in found.why) == (verdict, True), found.why


def test_effective_is_not_evaluated_at_frozen_weights():
    assert "NOT EVALUATED" in effective(evidence()).why


@pytest.mark.parametrize(
    ("gate", "changes", "verdict"),
    [
        (GateFacts(), {}, "PASS"),
        (GateFacts(), {"hackward_frac_out": 1e-3}, "FAIL"),
        (GateFacts(gate="two_sided"), {"cos_out": 0.01}, "FAIL"),
        (GateFacts(gate="two_sided"), {"cos_out": 1e-7}, "PASS"),
        (GateFacts(), {"cos_out": -0.2}, "PASS"),  # one-sided: a negative cos_out is legitimate
        (GateFacts(gate="reverse"), {}, "VACUOUS"),
        (GateFacts(overshoot=0.5), {}, "VACUOUS"),
        (GateFacts(), {"frac_fired": 0.0}, "FAIL"),
        (GateFacts(), {"cos_in": None, "cos_out": None, "null_reason": "zero"}, "INCONCLUSIVE"),
    ],
)
def test_correct(gate, changes, verdict):
    found = correct(evidence([step("vanilla"), step("projected", **changes)], gate=gate))
    assert found.verdict == verdict, found.why


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"hackward_frac_update": 1e-5}, "PASS"),
        ({"hackward_frac_update": 0.1}, "FAIL"),
        ({"hackward_frac_update": None}, "INCONCLUSIVE"),
    ],
)
def test_a_gate_on_the_update_is_judged_on_the_update(changes, verdict):
    """The gradient is left as it is, hack-ward part included, and nothing fires there."""
    own = {"hackward_frac_out": 0.3, "frac_fired": 0.0, "cos_update": -0.1} | changes
    found = correct(evidence([step("projected", **own)], gate=GateFacts(target="update")))
    assert found.verdict == verdict, found.why


def test_powered_by_the_plan():
    """METHOD's plan, 3 seeds and 30 points, is refused; 8 seeds, or 3 that pair well, are not. The better design is
    taken and named: 3 pairs of correlation .3 see less than 3 seeds a side.
    """
    assert powered(evidence()).verdict == "FAIL"
    assert powered(evidence(plan=PlannedTraining(seeds=8))).verdict == "PASS"
    assert powered(evidence(plan=PlannedTraining(paired_correlation=0.9))).verdict == "PASS"
    weak = powered(evidence(plan=PlannedTraining(paired_correlation=0.3)))
    assert weak.value == "0.53 detectable (unpaired), 0.30 expected"
    assert "2 degrees of freedom against 4: with 3 seeds they pay above a correlation of 0.42" in weak.why
    assert "(paired)" in powered(evidence(plan=PlannedTraining(paired_correlation=0.9))).value
    assert "inf detectable" in powered(evidence(plan=PlannedTraining(seeds=1))).value
    assert "Nobody planned" in powered(evidence(plan=PlannedTraining())).why
    assert "Nobody planned" not in powered(evidence(plan=PlannedTraining(stated=True))).why
