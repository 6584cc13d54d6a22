"""Whether a gate did what it is, on hand-made steps; whole worlds are in test_worlds.py."""

from pathlib import Path

import pytest

from probe.analysis.evidence import Evidence
from probe.analysis.verdict.validity import gate_acted
from probe.records.records import ADVANTAGE_KEYS, StepRecord
from probe.records.run import Run


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


def evidence(steps: list[StepRecord], **gate) -> Evidence:
    lr = 0.1 if any(step.cos_update is not None for step in steps) else 0.0
    settings = {"verb": "replay", "optimizer": {"lr": lr}, "intervention": {"gate": gate}}
    return Evidence(Run(path=Path("run"), config={"settings": settings}, manifest={}, samples=[], steps=steps))


@pytest.mark.parametrize(
    ("gate", "changes", "expected"),
    [
        ({}, {}, "HOLDS"),
        ({}, {"hackward_frac_out": 1e-3}, "BROKEN"),
        ({"gate": "two_sided"}, {"cos_out": 0.01}, "BROKEN"),
        ({"gate": "two_sided"}, {"cos_out": 1e-7}, "HOLDS"),
        ({}, {"cos_out": -0.2}, "HOLDS"),  # one-sided: a negative cos_out is legitimate
        ({"overshoot": 0.5}, {}, "NOT SEEN"),
        ({}, {"frac_fired": 0.0}, "BROKEN"),
        ({}, {"cos_in": None, "cos_out": None, "null_reason": "zero"}, "NOT SEEN"),
    ],
)
def test_correct(gate, changes, expected):
    says, text = gate_acted(evidence([step("vanilla"), step("projected", **changes)], **gate))
    assert says == expected, text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hackward_frac_update": 1e-5}, "HOLDS"),
        ({"hackward_frac_update": 0.1}, "BROKEN"),
        ({"hackward_frac_update": None}, "NOT SEEN"),
    ],
)
def test_a_gate_on_the_update_is_judged_on_the_update(changes, expected):
    """The gradient is left as it is, hack-ward part included, and nothing fires there."""
    own = {"hackward_frac_out": 0.3, "frac_fired": 0.0, "cos_update": -0.1} | changes
    says, text = gate_acted(evidence([step("projected", **own)], target="update"))
    assert says == expected, text
