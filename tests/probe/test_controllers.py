"""probe.runs.controllers: rules by hand, clamps, and resume in the middle through JSON as a property."""

import math

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probe.runs.controllers import BetaController, SepaSchedule, Tripwires

from probe.settings.training import Limits
from probe.step.reference import ema_update

kls = st.lists(st.floats(0, 50, allow_subnormal=False), min_size=1, max_size=25)


def beta_run(controller, numbers):
    return [(controller.value, controller.update(number)) for number in numbers]


def sepa_run(schedule, numbers):
    return [(schedule.value, schedule.update(number / 50)) for number in numbers]


def tripwire_run(wires, numbers):
    return [wires.check(kl_mean=n / 10, kl_token=n, grad_norm=2 * n, entropy=n + 0.1, logprob=-n) for n in numbers]


CONTROLLERS = {
    "beta": (lambda: BetaController(0.02, warmup_steps=3, target_kl=2.0, horizon=4), beta_run),
    "sepa": (lambda: SepaSchedule(0.9, ramp_steps=4, delay_steps=2, gate=0.3), sepa_run),
    "tripwires": (lambda: Tripwires(Limits(kl_mean_max=3.0, entropy_min_frac=0.5, logprob_drop_max=5.0)), tripwire_run),
}


@pytest.mark.parametrize("name", CONTROLLERS)
@settings(deadline=None, max_examples=60)
@given(numbers=kls, cut=st.integers(0, 25))
def test_resume_in_the_middle_continues_the_same_trajectory(name, numbers, cut):
    """State through JSON bytes into a fresh controller: every later output equals the uninterrupted run's, exactly."""
    make, run = CONTROLLERS[name]
    whole = run(make(), numbers)
    first, second = make(), make()
    head = run(first, numbers[:cut])
    second.load_state_dict(orjson.loads(orjson.dumps(first.state_dict())))
    assert head + run(second, numbers[cut:]) == whole


@pytest.mark.parametrize("name", CONTROLLERS)
def test_state_is_a_copy_and_foreign_state_is_refused(name):
    """A saved state must not change with the controller; a state of another controller names both."""
    make, run = CONTROLLERS[name]
    controller = make()
    run(controller, [1.0, 2.0])
    saved = controller.state_dict()
    before = orjson.dumps(saved)
    run(controller, [40.0, 40.0])
    assert orjson.dumps(saved) == before, "the state dict aliases the controller"
    with pytest.raises(ValueError, match=type(controller).__name__):
        controller.load_state_dict({"other": 1})


@settings(deadline=None, max_examples=100)
@given(numbers=kls, target=st.floats(0.01, 5), horizon=st.integers(1, 20))
def test_beta_stays_within_its_bounds_and_its_factor(numbers, target, horizon):
    """After every step beta_min <= beta <= beta_max, and beta changes by at most the factor 1.5."""
    controller = BetaController(0.05, target_kl=target, horizon=horizon, beta_min=0.01, beta_max=0.2)
    for number in numbers:
        before = controller.beta
        row = controller.update(number)
        assert 0.01 <= controller.beta <= 0.2
        assert before / 1.5 - 1e-12 <= controller.beta <= before * 1.5 + 1e-12
        assert row["beta_adjusted"] == (controller.beta > before) - (controller.beta < before)


def test_beta_follows_the_rule_by_hand():
    """Target 1, horizon 3 (alpha 1/2). EMA: 2, 1.5, .75, .375; above 1.5 raises, the band holds, below .5 lowers."""
    controller = BetaController(0.1, target_kl=1.0, horizon=3)
    rows = [controller.update(kl) for kl in (2.0, 1.0, 0.0, 0.0)]
    assert [row["ema"] for row in rows] == [2.0, 1.5, 0.75, 0.375]
    assert [row["beta_adjusted"] for row in rows] == [1.0, 0.0, 0.0, -1.0]
    assert [row["beta"] for row in rows] == pytest.approx([0.1, 0.15, 0.15, 0.15])
    assert controller.value == pytest.approx(0.1)


def test_warmup_is_linear_from_zero_and_beta_waits_for_it():
    """Four steps 0, 1/4, 1/2, 3/4 of beta, then all of it; a large KL during the warm-up does not raise beta."""
    controller = BetaController(0.04, warmup_steps=4, target_kl=0.1)
    rows = [controller.update(9.0) for _ in range(5)]
    assert [row["beta"] for row in rows] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert [row["warmup_progress"] for row in rows] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [row["beta_adjusted"] for row in rows] == [0, 0, 0, 0, 1]


def test_without_a_target_beta_is_fixed():
    controller = BetaController(0.3)
    assert {controller.update(kl)["beta"] for kl in (0.0, 40.0, 0.0)} == {0.3}


def test_a_kl_that_is_not_finite_is_refused():
    """One NaN would stay in the EMA for good."""
    with pytest.raises(ValueError, match="finite"):
        BetaController(0.1).update(math.nan)


def test_sepa_by_hand():
    """Gate .5 opens after the second step; then one step of delay, then quarters of the peak .8."""
    schedule = SepaSchedule(0.8, ramp_steps=4, delay_steps=1, gate=0.5)
    values = []
    for solve_rate in (0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        values.append(schedule.value)
        schedule.update(solve_rate)
    assert values == pytest.approx([0, 0, 0, 0, 0.2, 0.4, 0.6, 0.8])
    assert SepaSchedule(0.8).value == 0.8


@settings(deadline=None, max_examples=60)
@given(numbers=kls, ramp=st.integers(0, 10), delay=st.integers(0, 5), gate=st.floats(0, 1))
def test_sepa_never_falls_and_never_passes_its_peak(numbers, ramp, delay, gate):
    values = [value for value, _ in sepa_run(SepaSchedule(0.7, ramp_steps=ramp, delay_steps=delay, gate=gate), numbers)]
    assert values == sorted(values)
    assert 0 <= min(values) <= max(values) <= 0.7


STEADY = {"kl_mean": 0.1, "kl_token": 3.0, "grad_norm": 1.0, "entropy": 2.0, "logprob": -1.0}


NAMES = {"kl_mean": "kl/mean", "kl_token": "kl/max"}


@pytest.mark.parametrize(
    ("name", "bad", "reason"),
    [
        ("kl_mean", 12.0, "kl/mean 12 above 10 for 3 steps"),
        ("kl_token", 400.0, "kl/max 400 above 100 for 3 steps"),
        ("grad_norm", 80.0, "grad_norm 80 above 60 for 3 steps"),
        ("entropy", 0.1, "entropy 0.1 below 0.2 for 3 steps"),
        ("logprob", -4.5, "logprob -4.5 below -4 for 3 steps"),
    ],
)
def test_a_limit_stops_after_its_patience(name, bad, reason):
    """Two bad steps and a recovery do not stop the run, three in a row do, and the reason has the numbers."""
    wires = Tripwires(Limits(kl_token_max=100.0, grad_norm_max=60.0))
    rows = [STEADY, *[STEADY | {name: bad}] * 2, STEADY, *[STEADY | {name: bad}] * 3]
    assert [wires.check(**row) for row in rows] == [None] * 6 + [reason]


@pytest.mark.parametrize("name", ["kl_mean", "kl_token", "grad_norm", "entropy", "logprob"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stops_at_once(name, value):
    reason = Tripwires(Limits()).check(**STEADY | {name: value})
    assert reason == f"{NAMES.get(name, name)} is {value}"


def test_what_is_not_measured_or_not_watched_does_not_stop():
    """None keeps the count of bad steps; a limit of None is off."""
    wires = Tripwires(Limits(entropy_min_frac=None, logprob_drop_max=None))
    bad = {"kl_mean": 99.0, "kl_token": 1e6, "grad_norm": 1e6, "entropy": 0.0, "logprob": -99.0}
    rows = [STEADY, bad, bad, STEADY | {"kl_mean": None}, bad]
    assert [bool(wires.check(**row)) for row in rows] == [False, False, False, False, True]


def test_ema_update_by_hand_and_at_its_ends():
    """decay 0.75 of 4 towards 8 is 5; decay 1 keeps the reference and decay 0 is the policy, exactly."""
    reference, policy = {"a": torch.tensor([4.0, 0.1])}, {"a": torch.tensor([8.0, 0.3])}
    assert ema_update(reference, policy, decay=0.75)["a"][0] == 5.0
    assert torch.equal(ema_update(reference, policy, decay=1.0)["a"], reference["a"])
    assert torch.equal(ema_update(reference, policy, decay=0.0)["a"], policy["a"])
    assert reference["a"].tolist() == torch.tensor([4.0, 0.1]).tolist(), "the reference was changed in place"


@settings(deadline=None, max_examples=30)
@given(decay=st.floats(0.01, 0.99), num_steps=st.integers(1, 30))
def test_ema_update_is_the_geometric_sum(decay, num_steps):
    """After n updates: decay^n r_0 + (1 - decay) sum_k decay^(n - k) p_k."""
    torch.manual_seed(num_steps)
    policies = torch.randn(num_steps, 3, dtype=torch.float64)
    reference = {"a": torch.ones(3, dtype=torch.float64)}
    for policy in policies:
        reference = ema_update(reference, {"a": policy}, decay=decay)
    powers = decay ** torch.arange(num_steps - 1, -1, -1, dtype=torch.float64)
    wanted = decay**num_steps + (1 - decay) * (powers[:, None] * policies).sum(0)
    torch.testing.assert_close(reference["a"], wanted, rtol=1e-10, atol=1e-12)


def test_ema_of_other_modules_is_refused():
    with pytest.raises(ValueError, match="same modules"):
        ema_update({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, decay=0.5)
