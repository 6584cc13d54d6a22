"""probe.settings.arms: the table says what the method needs."""

from dataclasses import replace

import pytest

from probe.settings.arms import ARMS, GATES, get_arm
from replay_pools.errors import InputError

DOSED = ("random-dosed", "permuted-dosed")


def test_every_arm_is_a_row_under_its_own_name():
    assert all(get_arm(name).name == name for name in ARMS)
    assert [*ARMS] == ["vanilla", "projected", "projected-lora", "route", "random", "permuted", *DOSED, "placebo"]


def test_gates_exist():
    """Arms import no torch, so the gate is a name there: it must be one of the projection's."""
    assert {arm.gate for arm in ARMS.values()} <= GATES.keys()


def test_vanilla_and_projected_differ_in_the_projection_only():
    """Otherwise their comparison would not be the effect of the projection."""
    vanilla, projected = get_arm("vanilla"), get_arm("projected")
    assert (vanilla.projects, projected.projects) == (False, True)
    assert (vanilla.basis, vanilla.directions, vanilla.gate) == (projected.basis, projected.directions, projected.gate)


def test_route_is_vanilla_but_for_the_quarantine():
    """What trains is vanilla, so the comparison is the effect of leaving out what the gate takes."""
    vanilla, route = get_arm("vanilla"), get_arm("route")
    assert replace(route, name="vanilla", routes=False) == vanilla
    assert [arm.name for arm in ARMS.values() if arm.routes] == ["route"]


def test_controls_differ_from_projected_in_their_directions_only():
    for name in ("random", "permuted", "placebo", *DOSED):
        control, projected = get_arm(name), get_arm("projected")
        assert control.directions != projected.directions
        assert (control.basis, control.gate, control.projects) == (projected.basis, projected.gate, projected.projects)


def test_unknown_arm_lists_the_arms():
    with pytest.raises(InputError, match="vanilla, projected, projected-lora, route, random, permuted, random-dosed, "):
        get_arm("vanila")
