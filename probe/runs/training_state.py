"""TrainingState: updater, references and controllers of a policy in training; its `state_dict` is the checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from probe.runs.controllers import Control
from probe.runs.rates import solve_share
from probe.runs.sources.past_self import PastSelf
from probe.runs.sources.prefetch import PastWeights
from probe.settings.loss import LossSettings
from probe.settings.training import Warnings
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater
from replay_pools.rollout import Rollout


@final
class TrainingState:
    """One policy in training, in one arm under one condition.

    Args:
        updater: steps the policy.
        references: of the KL penalty.
        control: of the objective.
        past: the weights that sample batches to come, where sampling runs ahead; None: each step samples from its own.
        past_self: the policy as it was, where some rollouts are its.
    """

    def __init__(
        self,
        updater: Updater,
        references: References,
        control: Control,
        *,
        past: PastWeights | None = None,
        past_self: PastSelf | None = None,
    ) -> None:
        self.updater, self.references, self._control = updater, references, control
        self.past, self.past_self = past, past_self
        self.logprob: float | None = None  # of the frozen probe batch, where it was measured before this step

    @property
    def stopped(self) -> str | None:
        """Why the run must stop after the last step; None while it may go on."""
        return self._control.stopped

    @property
    def warnings(self) -> Warnings:
        """The bounds beyond which the run says so and goes on."""
        return self._control.warnings

    def stop(self, reason: str) -> None:
        """Stop after this step, for a reason that no controller sees."""
        self._control.stopped = reason

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return self._control.objective()

    def finish_step(
        self,
        result: StepResult,
        rollouts: Sequence[Rollout],
        sampled_by_policy: Sequence[bool],
        on_policy: Sequence[bool],
    ) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            sampled_by_policy: which rollouts are the policy's samples; the others are of other sources.
            on_policy: which of these the step reads as they were sampled, and so have an entropy of the policy.

        Returns:
            What the controller of beta did (`Control.finish_step`).
        """
        self.references.update()
        if self.past_self is not None:
            self.past_self.finish_step()
        (arm,) = result.arms
        kl = result.weightings[arm.measure.condition].kl
        # A step of nothing but a teacher's rollouts still has a solve rate; its entropy would be the teacher's.
        solving = [i for i, sampled in enumerate(sampled_by_policy) if sampled] or list(range(len(rollouts)))
        measured = [i for i, counts in enumerate(on_policy) if counts]
        notes = self._control.finish_step(
            kl_mean=kl.get("mean"),
            kl_token=kl.get("max"),
            grad_norm=float(arm.projection.before.norm),
            entropy=float(result.nll[measured].mean()) if measured else None,
            logprob=self.logprob,
            solve_rate=solve_share([rollouts[i] for i in solving]),
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
        for name, kept in self._kept.items():
            state[name] = kept.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.references.load_state_dict(state["references"])
        self._control.load_state_dict(state["control"])
        for name, kept in self._kept.items():
            kept.load_state_dict(state[name])

    @property
    def _kept(self) -> dict[str, PastWeights | PastSelf]:
        """The earlier weights that the run samples from, by their names in a checkpoint."""
        kept: dict[str, PastWeights | PastSelf | None] = {"past": self.past, "past_self": self.past_self}
        return {name: weights for name, weights in kept.items() if weights is not None}
