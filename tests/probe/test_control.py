"""probe.runs.controllers, training_state: this step's objective, and what of a step the controllers get to see."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
from probe.runs.controllers import Control
from probe.runs.training_state import TrainingState

from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig, Limits

OBJECTIVE = LossSettings(reference="base", beta=0.2, gtpo_beta=1.0, sepa_lambda=0.8)
CONFIG = ControlConfig(
    beta_warmup_steps=2, target_kl=1.0, kl_horizon=1, sepa_ramp_steps=2, sepa_gate=0.5, limits=Limits(patience=2)
)
ROWS = [
    {"kl_mean": kl, "kl_token": kl, "grad_norm": 1.0, "entropy": 1.0, "logprob": None, "solve_rate": rate}
    for kl, rate in zip((0, 1, 9, 9), (0, 0.5, 0, 0))
]


def test_the_objective_of_every_step_by_hand() -> None:
    """beta 0, .1, .2 over the warm-up, then x 1.5 (the KL is above 1.5); lambda opens after the solve rate of .5 and
    ramps over two steps; nothing else of the objective changes.
    """
    control, found = Control(OBJECTIVE, CONFIG), []
    for row in ROWS:
        found.append(control.objective())
        control.finish_step(**row)
    assert [own.beta for own in found] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [own.sepa_lambda for own in found] == pytest.approx([0, 0, 0, 0.4])
    assert {replace(own, beta=0.2, sepa_lambda=0.8) for own in found} == {OBJECTIVE}


@pytest.mark.parametrize("cut", range(5))
def test_a_control_goes_on_from_its_state(cut: int) -> None:
    """Through JSON at any step: objectives, notes and the reason to stop are the uninterrupted one's."""
    config = replace(CONFIG, limits=Limits(kl_mean_max=5.0, patience=2))

    def trajectory(cut: int | None) -> list[Any]:
        control, found = Control(OBJECTIVE, config), []
        for i, row in enumerate(ROWS):
            if i == cut:
                state = orjson.loads(orjson.dumps(control.state_dict()))
                control = Control(OBJECTIVE, config)
                control.load_state_dict(state)
            found.append((control.objective(), control.finish_step(**row), control.stopped))
        return found

    assert trajectory(cut) == trajectory(None)
    assert trajectory(None)[-1][2] == "kl/mean 9 above 5 for 2 steps"


class Watched:
    """A Control that remembers what it is told."""

    stopped = None

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def finish_step(self, **told: Any) -> dict[str, float]:
        self.told.append(told)
        return {"beta": 0.5}


def finish(
    own: list[bool], logprob: float | None = None, on_policy: list[bool] | None = None
) -> tuple[dict[str, Any], int]:
    """(what the controllers are told of a step of four rollouts, how often the references moved)."""
    moves: list[int] = []
    control, references = Watched(), SimpleNamespace(update=lambda: moves.append(1))
    training = TrainingState(SimpleNamespace(), references, control)  # pyright: ignore
    training.logprob = logprob
    result = SimpleNamespace(
        nll=torch.tensor([1.0, 2.0, 3.0, 10.0]),
        arms=[SimpleNamespace(condition="x", projection=SimpleNamespace(norm_in=torch.tensor(3.0)))],
        weightings={"x": SimpleNamespace(kl={"mean": 0.25, "max": 9.0})},
    )
    rollouts = [SimpleNamespace(gt_pass=passed, labelled=True) for passed in (True, False, False, True)]
    assert training.finish_step(result, rollouts, own, on_policy or own) == {"beta": 0.5}  # pyright: ignore
    assert training.logprob is None, "one measure of the frozen batch would serve two steps"
    return control.told[0], len(moves)


def test_the_controllers_see_the_policys_own_rollouts() -> None:
    """Entropy and solve rate are of the policy's samples: a teacher's would hide a collapse. Without any there is no
    entropy, and the solve rate is of all.
    """
    of_step = {"kl_mean": 0.25, "kl_token": 9.0, "grad_norm": 3.0}
    told, num_moves = finish([True, True, True, False], logprob=-0.5)
    assert told == {**of_step, "entropy": 2.0, "logprob": -0.5, "solve_rate": pytest.approx(1 / 3)}
    assert num_moves == 1
    told, _ = finish([False] * 4)
    assert told == {**of_step, "entropy": None, "logprob": None, "solve_rate": 0.5}
    told, _ = finish([True, True, True, False], on_policy=[False] * 4)
    assert told == {**of_step, "entropy": None, "logprob": None, "solve_rate": pytest.approx(1 / 3)}
