"""Whether a gate did what it is, on hand-made steps; whole worlds are in test_worlds.py."""

from pathlib import Path

import pytest
from made_records import step_record

from probe.analysis.analyze import Analysis
from probe.analysis.verdict.validity import projection_acted
from probe.records.run import Run

UPDATE = {"hackward_frac_out": 0.3, "frac_fired": 0.0, "cos_update": -0.1}  # the gradient is left as it is


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
        ({"target": "update"}, UPDATE | {"hackward_frac_update": 1e-5}, "HOLDS"),
        ({"target": "update"}, UPDATE | {"hackward_frac_update": 0.1}, "BROKEN"),
        ({"target": "update"}, UPDATE, "NOT SEEN"),
    ],
)
def test_a_gate_is_judged_on_what_it_acts_on(projection, changes, expected):
    steps = [step_record(), step_record(arm="projected", **changes)]
    lr = 0.1 if "cos_update" in changes else 0.0
    settings = {"verb": "replay", "optimizer": {"lr": lr}, "intervention": {"projection": projection}}
    run = Run(path=Path("run"), config={"settings": settings}, manifest={}, samples=[], steps=steps)
    says, text = projection_acted(Analysis(run))
    assert says == expected, text
