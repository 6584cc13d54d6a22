"""TrainingState: updater, references and controllers of a policy in training; its `state_dict` is the checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from probe.runs.controllers import Control
from probe.runs.past_self import PastSelf
from probe.settings.loss import LossSettings
from probe.step.reference import References
from probe.step.results import StepResult
from probe.step.update import Updater
from replay_pools.rollout import Rollout


@final
class TrainingState:
    """One policy in training, in one arm under one condition.

    Args:
        updater: steps the policy.
        references: of the KL penalty.
        control: of the objective.
        past_self: the policy as it was, where some rollouts are its.
    """

    def __init__(
        self, updater: Updater, references: References, control: Control, past_self: PastSelf | None = None
    ) -> None:
        self.updater, self.references, self._control, self.past_self = updater, references, control, past_self
        self.logprob: float | None = None  # of the frozen probe batch, where it was measured before this step

    @property
    def stopped(self) -> str | None:
        """Why the run must stop after the last step; None while it may go on."""
        return self._control.stopped

    def stop(self, reason: str) -> None:
        """Stop after this step, for a reason that no controller sees."""
        self._control.stopped = reason

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return self._control.objective()

    def finish_step(
        self, result: StepResult, rollouts: Sequence[Rollout], sampled_by_policy: Sequence[bool]
    ) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            sampled_by_policy: which rollouts are the policy's samples; the others are of other sources.

        Returns:
            What the controller of beta did (`Control.finish_step`).
        """
        self.references.update()
        if self.past_self is not None:
            self.past_self.finish_step()
        (arm,) = result.arms
        kl = result.weightings[arm.condition].kl
        # A step of nothing but a teacher's rollouts still has a solve rate; its entropy would be the teacher's.
        counted = [i for i, from_policy in enumerate(sampled_by_policy) if from_policy] or list(range(len(rollouts)))
        labelled = [i for i in counted if rollouts[i].labelled]
        notes = self._control.finish_step(
            kl=kl.get("mean"),
            entropy=float(result.nll[counted].mean()) if any(sampled_by_policy) else None,
            logprob=self.logprob,
            solve_rate=sum(bool(rollouts[i].gt_pass) for i in labelled) / len(labelled),
        )
        self.logprob = None
        return notes

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step."""
        state = {
            "updater": self.updater.state_dict(),
            "references": self.references.state_dict(),
            "control": self._control.state_dict(),
        }
        return state if self.past_self is None else state | {"past_self": self.past_self.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.references.load_state_dict(state["references"])
        self._control.load_state_dict(state["control"])
        if self.past_self is not None:
            self.past_self.load_state_dict(state["past_self"])
