"""Everything that is adapted from step to step while a policy trains, in one place: beta, SEPA's lambda, tripwires.

The step receives an `LossSettings` with this step's numbers and knows nothing of where they come from.


What a run that trains carries from step to step: updater, references, controllers. Its state is the checkpoint's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from probe.runs.controllers import BetaController, SepaSchedule, Tripwires
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater
from replay_pools.rollout import Rollout


@final
class Control:
    """The controllers of one run.

    Args:
        objective: with the numbers that the controllers lead to (`beta`, `sepa_lambda`).
        config: how they get there.
    """

    def __init__(self, objective: LossSettings, config: ControlConfig) -> None:
        self._objective = objective
        self._beta = BetaController(
            objective.beta,
            warmup_steps=config.beta_warmup_steps,
            target_kl=config.target_kl,
            horizon=config.kl_horizon,
            beta_min=config.beta_min,
            beta_max=config.beta_max,
        )
        self._sepa = SepaSchedule(
            objective.sepa_lambda,
            ramp_steps=config.sepa_ramp_steps,
            delay_steps=config.sepa_delay_steps,
            gate=config.sepa_gate,
        )
        self._tripwires = Tripwires(config.limits)
        self.stopped: str | None = None  # why the run must stop

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return replace(self._objective, beta=self._beta.value, sepa_lambda=self._sepa.value)

    def finish_step(
        self,
        *,
        kl: float | None,
        entropy: float | None,
        logprob: float | None,
        solve_rate: float,
    ) -> dict[str, float]:
        """Take in a step; `stopped` says whether it was the last.

        Args:
            kl, entropy, logprob: see `Tripwires.check`.
            solve_rate: share of the policy's rollouts that solve their problem.

        Returns:
            What the controller of beta did, by wire names without "kl/"; empty without a KL.
        """
        self.stopped = self._tripwires.check(kl=kl, entropy=entropy, logprob=logprob)
        self._sepa.update(solve_rate)
        return {} if kl is None or self.stopped else self._beta.update(kl)

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step, in plain JSON types."""
        parts = {"beta": self._beta, "sepa": self._sepa, "tripwires": self._tripwires}
        return {name: part.state_dict() for name, part in parts.items()} | {"stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._beta.load_state_dict(state["beta"])
        self._sepa.load_state_dict(state["sepa"])
        self._tripwires.load_state_dict(state["tripwires"])
        self.stopped = state["stopped"]


@final
class Training:
    """One policy in training, in one arm under one condition.

    Args:
        updater: steps the policy.
        references: of the KL penalty.
        control: of the objective.
    """

    def __init__(self, updater: Updater, references: References, control: Control) -> None:
        self.updater, self.references, self._control = updater, references, control
        self.logprob: float | None = None  # of the frozen probe batch, where it was measured before this step

    @property
    def stopped(self) -> str | None:
        """Why the run must stop after the last step; None while it may go on."""
        return self._control.stopped

    def stop(self, reason: str) -> None:
        """Go on no further."""
        self._control.stopped = reason

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return self._control.objective()

    def finish_step(self, result: StepResult, rollouts: Sequence[Rollout], own: Sequence[bool]) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            own: which rollouts are the policy's own samples; the others are a teacher's.

        Returns:
            What the controller of beta did (`Control.finish_step`).
        """
        self.references.update()
        (arm,) = result.arms
        kl = result.weightings[arm.condition].kl
        mine = [i for i, is_own in enumerate(own) if is_own] or list(range(len(own)))
        notes = self._control.finish_step(
            kl=kl.get("mean"),
            entropy=float(result.nll[mine].mean()) if any(own) else None,
            logprob=self.logprob,
            solve_rate=sum(rollouts[i].gt_pass for i in mine) / len(mine),
        )
        self.logprob = None
        return notes

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step."""
        return {
            "updater": self.updater.state_dict(),
            "references": self.references.state_dict(),
            "control": self._control.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.references.load_state_dict(state["references"])
        self._control.load_state_dict(state["control"])
