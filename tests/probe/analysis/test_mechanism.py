"""Whether a gate did what it is, on hand-made steps; whole worlds are in test_worlds.py."""

from pathlib import Path

import pytest
from made_records import step_record

from probe.analysis.analyze import Analysis
from probe.analysis.verdict.validity import projection_acted
from probe.records.records import StepRecord
from probe.records.run import Run


def evidence(steps: list[StepRecord], **projection) -> Analysis:
    lr = 0.1 if any(step.cos_update is not None for step in steps) else 0.0
    settings = {"verb": "replay", "optimizer": {"lr": lr}, "intervention": {"projection": projection}}
    return Analysis(Run(path=Path("run"), config={"settings": settings}, manifest={}, samples=[], steps=steps))


@pytest.mark.parametrize(
    ("projection", "changes", "expected"),
    [
        ({}, {}, "HOLDS"),
        ({}, {"hackward_frac_out": 1e-3}, "BROKEN"),
        ({"side": "two_sided"}, {"cos_out": 0.01}, "BROKEN"),
        ({"side": "two_sided"}, {"cos_out": 1e-7}, "HOLDS"),
        ({}, {"cos_out": -0.2}, "HOLDS"),  # one-sided: a negative cos_out is legitimate
        ({"overshoot": 0.5}, {}, "NOT SEEN"),
        ({}, {"frac_fired": 0.0}, "BROKEN"),
        ({}, {"cos_in": None, "cos_out": None, "null_reason": "zero"}, "NOT SEEN"),
    ],
)
def test_correct(projection, changes, expected):
    says, text = projection_acted(evidence([step_record(), step_record(arm="projected", **changes)], **projection))
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
    says, text = projection_acted(evidence([step_record(arm="projected", **own)], target="update"))
    assert says == expected, text
