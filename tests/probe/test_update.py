"""probe.update: the projected and the routed update as identities over a whole AdamW trajectory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.projection import sample_cosines
from probe.update import add, split_update

SIZES = {"a": (6, 2), "b": (4, 1), "c": (3, 0)}  # module: (r, k); all directions of c fell to the noise floor


def example(seed, dtype=torch.float64):
    torch.manual_seed(seed)
    values = {m: torch.randn(r, dtype=dtype) for m, (r, _) in SIZES.items()}
    directions = {m: torch.linalg.qr(torch.randn(r, max(k, 1), dtype=dtype))[0].mT[:k] for m, (r, k) in SIZES.items()}
    return values, directions


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), gate=st.sampled_from(["one_sided", "two_sided"]))
def test_the_corrected_step_has_no_hackward_part(seed, gate):
    """before - (after + removed) = u', whose part along V is not positive (one_sided) or zero (two_sided)."""
    before, directions = example(seed)
    after, _ = example(seed + 1)
    split = split_update(before, after, directions, gate=gate)
    kept = add(before, add(after, split.removed), scale=-1)
    for module, V in directions.items():
        torch.testing.assert_close(kept[module], split.projection.gradients[module], rtol=1e-12, atol=1e-12)
        c = V @ kept[module]
        assert (c.clamp_min(0) if gate == "one_sided" else c.abs()).sum() < 1e-12, "a hack-ward part was stepped"
    measured = sample_cosines(add(before, after, scale=-1), directions)
    assert float(split.projection.cos_in) == pytest.approx(float(measured.cos))


def test_an_update_that_the_gate_leaves_alone_is_untouched():
    """A step along +V (its u points away from the hack) is kept bit for bit, in float32 too: removed is exactly 0."""
    before, directions = example(0, torch.float32)
    after = add(before, {m: V.sum(0) for m, V in directions.items()})
    split = split_update(before, after, directions, gate="one_sided")
    assert all(not removed.any() for removed in split.removed.values())
    assert all(torch.equal(add(after, split.removed)[m], after[m]) for m in after)


def adamw_trajectory(seed, num_steps, gate):
    """(start, vanilla end, quarantine, sum of u') of AdamW on random gradients, split but never corrected."""
    start, directions = example(seed)
    parameters = {m: torch.nn.Parameter(v.clone()) for m, v in start.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.05)
    quarantine = {m: torch.zeros_like(v) for m, v in start.items()}
    kept = dict(quarantine)
    for _ in range(num_steps):
        before = {m: p.detach().clone() for m, p in parameters.items()}
        for parameter in parameters.values():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        split = split_update(before, {m: p.detach() for m, p in parameters.items()}, directions, gate=gate)
        quarantine = add(quarantine, split.removed, scale=-1)
        kept = add(kept, split.projection.gradients)
    return start, {m: p.detach() for m, p in parameters.items()}, quarantine, kept


@pytest.mark.parametrize("gate", ["one_sided", "two_sided"])
def test_the_routed_policy_is_the_start_and_the_kept_updates(gate):
    """coordinates - quarantine = start - sum u': what is deployed never took a hack-ward step."""
    start, end, quarantine, kept = adamw_trajectory(0, 25, gate)
    deployed, wanted = add(end, quarantine, scale=-1), add(start, kept, scale=-1)
    for module in start:
        torch.testing.assert_close(deployed[module], wanted[module], rtol=1e-10, atol=1e-12)
    assert quarantine["a"].norm() > 0.01, "nothing was routed"
    assert not quarantine["c"].any(), "a module without directions has nothing to route"


def test_different_modules_are_refused():
    values, _ = example(0)
    with pytest.raises(ValueError, match="found c on one side only"):
        add(values, {m: v for m, v in values.items() if m != "c"})
