"""probe.runs.control: rules by hand, clamps, resume through JSON, and what a step tells the controllers."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.runs.control import TrainingState
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig

kls = st.lists(st.floats(0, 10, allow_subnormal=False), min_size=1, max_size=25)
STEADY = {"kl/mean": 0.1, "kl/max": 3.0, "grad_norm": 1.0, "entropy": 2.0, "logprob": -1.0}


OBJECTIVE = LossSettings(reference="base", beta=0.2, gtpo_beta=1.0, sepa_lambda=0.8)
CONFIG = ControlConfig(beta_warmup_steps=2, target_kl=1.0, kl_horizon=1, sepa_ramp_steps=2)


class Part:
    """An updater, or references, without a state; counts its updates."""

    def __init__(self) -> None:
        self.updates = 0

    def update(self) -> None:
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert state == {}


def training(config: ControlConfig = CONFIG, **objective: Any) -> TrainingState:
    return TrainingState(Part(), Part(), replace(OBJECTIVE, **objective), config)  # pyright: ignore


def reloaded(state: TrainingState, config: ControlConfig) -> TrainingState:
    """Another one with the state, through JSON."""
    fresh = training(config)
    fresh.load_state_dict(orjson.loads(orjson.dumps(state.state_dict())))
    return fresh


def rows(beta: float, kls: Iterable[float], **config: Any) -> tuple[TrainingState, list[dict[str, float]]]:
    """The controller after steps with these KLs, and what the record gets of each."""
    state = training(ControlConfig(**config), beta=beta)
    return state, [finish(state, kl) for kl in kls]


def finish(state: TrainingState, kl: float, entropy: float | None = 4.0):
    """A step with this KL and entropy."""
    projection = SimpleNamespace(before=SimpleNamespace(norm=torch.tensor(3.0)))
    result = SimpleNamespace(
        arms=[SimpleNamespace(measure=SimpleNamespace(condition="x"), projection=projection)],
        weightings={"x": SimpleNamespace(kl={"mean": kl, "max": kl})},
    )
    return state.finish_step(result, entropy)  # pyright: ignore


@settings(deadline=None, max_examples=100)
@given(numbers=kls, target=st.floats(0.01, 5), horizon=st.integers(1, 20))
def test_beta_stays_within_its_bounds_and_its_factor(numbers, target, horizon):
    """After every step beta_min <= beta <= beta_max, and beta changes by at most the factor 1.5."""
    state, found = rows(0.05, numbers, target_kl=target, kl_horizon=horizon, beta_min=0.01, beta_max=0.2)
    betas = [*(row["beta"] for row in found), state.beta]
    for row, (before, after) in zip(found, pairwise(betas), strict=True):
        assert 0.01 <= after <= 0.2
        assert before / 1.5 - 1e-12 <= after <= before * 1.5 + 1e-12
        assert row["beta_adjusted"] == (after > before) - (after < before)


def test_beta_follows_the_rule_by_hand():
    """Target 1, horizon 3 (alpha 1/2). EMA: 2, 1.5, .75, .375; above 1.5 raises, the band holds, below .5 lowers."""
    state, found = rows(0.1, (2.0, 1.0, 0.0, 0.0), target_kl=1.0, kl_horizon=3)
    assert [row["ema"] for row in found] == [2.0, 1.5, 0.75, 0.375]
    assert [row["beta_adjusted"] for row in found] == [1.0, 0.0, 0.0, -1.0]
    assert [row["beta"] for row in found] == pytest.approx([0.1, 0.15, 0.15, 0.15])
    assert state.objective().beta == pytest.approx(0.1)
    assert {row["beta"] for row in rows(0.3, (0.0, 40.0, 0.0))[1]} == {0.3}, "without a target"


def test_warmup_is_linear_from_zero_and_beta_waits_for_it():
    """Four steps 0, 1/4, 1/2, 3/4 of beta, then all of it; a large KL during the warm-up does not raise beta."""
    found = rows(0.04, [9.0] * 5, beta_warmup_steps=4, target_kl=0.1)[1]
    assert [row["beta"] for row in found] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert [row["warmup_progress"] for row in found] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [row["beta_adjusted"] for row in found] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "bad", "reason"),
    [
        ("kl/mean", 12.0, "kl/mean 12 above 10 for 3 steps"),
        ("entropy", 0.1, "entropy 0.1 below 0.2 for 3 steps"),
        ("logprob", -4.5, "logprob -4.5 below -4 for 3 steps"),
    ],
)
def test_a_limit_stops_after_its_patience_and_what_is_not_finite_at_once(name, bad, reason):
    """Two bad steps and a recovery do not stop the run, three in a row do, and the reason has the numbers; so does a
    run that is resumed after every step.
    """
    plain, found = ControlConfig(), []
    state = training(plain)
    for row in [STEADY, *[STEADY | {name: bad}] * 2, STEADY, *[STEADY | {name: bad}] * 3]:
        found.append(state.check(row))
        state = reloaded(state, plain)
    assert found == [None] * 6 + [reason]
    for value in (math.nan, math.inf):
        assert training(plain).check(STEADY | {name: value}) == f"{name} is {value}"


def test_what_is_not_measured_or_not_watched_does_not_stop():
    """None keeps the count of bad steps; a limit of None is off."""
    state = training(ControlConfig(entropy_min_frac=None))
    bad = {"kl/mean": 99.0, "kl/max": 1e6, "grad_norm": 1e6, "entropy": 0.0, "logprob": None}
    steps = [STEADY, bad, bad, STEADY | {"kl/mean": None}, bad]
    assert [bool(state.check(row)) for row in steps] == [False, False, False, False, True]


@pytest.mark.parametrize("cut", range(5))
def test_the_objective_of_every_step_by_hand_also_after_a_resume(cut: int) -> None:
    """beta 0, .1, .2 over the warm-up, then x 1.5 (the KL is above 1.5); lambda ramps over two steps; nothing else
    changes. The state goes through JSON at any step.
    """
    state, found = training(), []
    for i, kl in enumerate((0.0, 1.0, 12.0, 12.0, 12.0)):
        if i == cut:
            state = reloaded(state, CONFIG)
        found.append(state.objective())
        notes = finish(state, kl)
    assert [own.beta for own in found] == pytest.approx([0, 0.1, 0.2, 0.3, 0.45])
    assert [own.sepa_lambda for own in found] == pytest.approx([0, 0.4, 0.8, 0.8, 0.8])
    assert {replace(own, beta=0.2, sepa_lambda=0.8) for own in found} == {OBJECTIVE}
    assert (state.stopped, notes) == ("kl/mean 12 above 10 for 3 steps", {})


def test_a_measure_serves_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-probability of the frozen batch is told once; entropy that is not measured is None."""
    told: list[Any] = []
    monkeypatch.setattr(TrainingState, "check", lambda self, measured: told.append(measured))
    state = training()
    state.logprob = -0.5
    of_step = {"kl/mean": 0.25, "kl/max": 0.25, "grad_norm": 3.0}
    finish(state, 0.25, 2.0)
    finish(state, 0.25, None)
    assert told == [{**of_step, "entropy": 2.0, "logprob": -0.5}, {**of_step, "entropy": None, "logprob": None}]
    assert state.references.updates == 2  # pyright: ignore
