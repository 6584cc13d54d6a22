"""Whether a gate did what it is, on hand-made steps; whole worlds are in test_worlds.py."""

import pytest

from probe.analysis.measures.trajectory import summarise
from probe.analysis.verdict.evidence import Evidence, GateFacts
from probe.analysis.verdict.mechanism import correct
from probe.records.records import ADVANTAGE_KEYS, StepRecord


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
        "solve": 0.5,
        "solve_teacher": None,
        "loss": 0.1,
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


def evidence(steps: list[StepRecord], gate: GateFacts) -> Evidence:
    trains = any(step.cos_update is not None for step in steps)
    summaries = {arm: summarise(steps, arm, trains=trains) for arm in dict.fromkeys(step.arm for step in steps)}
    return Evidence(
        steps=steps,
        samples=[],
        measured=summaries.get("vanilla"),
        summaries=summaries,
        buckets=[],
        contrasts=[],
        specificity=None,
        trains=trains,
        gate=gate,
    )


@pytest.mark.parametrize(
    ("gate", "changes", "verdict"),
    [
        (GateFacts(), {}, "PASS"),
        (GateFacts(), {"hackward_frac_out": 1e-3}, "FAIL"),
        (GateFacts(gate="two_sided"), {"cos_out": 0.01}, "FAIL"),
        (GateFacts(gate="two_sided"), {"cos_out": 1e-7}, "PASS"),
        (GateFacts(), {"cos_out": -0.2}, "PASS"),  # one-sided: a negative cos_out is legitimate
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
