"""What a run that trains carries from step to step: updater, references, controllers. Its state is the checkpoint's."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from probe.objective.objective import Objective
from probe.runs.control import Control
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater
from replay_pools.rollout import Rollout


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

    def objective(self) -> Objective:
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
