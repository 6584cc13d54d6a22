"""Everything that is adapted from step to step while a policy trains, in one place: beta, SEPA's lambda, tripwires.

The step receives an `Objective` with this step's numbers and knows nothing of where they come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from probe.objective.objective import Objective
from probe.runs.controllers import BetaController, Limits, SepaSchedule, Tripwires


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """The controllers of `probe.runs.controllers`, and when the EMA reference of the KL moves."""

    beta_warmup_steps: int = 0
    target_kl: float | None = None  # nats per token; None = beta is not adapted
    kl_horizon: int = 10  # steps
    beta_min: float = 1e-4
    beta_max: float = 1.0
    ema_decay: float = 0.99  # 0 = the reference is synced
    ema_every: int = 1  # steps between updates of the EMA reference
    sepa_ramp_steps: int = 0
    sepa_delay_steps: int = 0
    sepa_gate: float = 0.0  # solve rate that starts the ramp
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.sepa(1.0)
        if self.ema_every < 1 or not 0 <= self.ema_decay <= 1:
            found = f"{self.ema_decay} every {self.ema_every}"
            raise ValueError(f"ema_decay, ema_every: expected a number in [0, 1] every 1 or more steps, found {found}")

    def beta(self, beta: float) -> BetaController:
        """The controller of beta, at its start."""
        return BetaController(
            beta,
            warmup_steps=self.beta_warmup_steps,
            target_kl=self.target_kl,
            horizon=self.kl_horizon,
            beta_min=self.beta_min,
            beta_max=self.beta_max,
        )

    def sepa(self, peak: float) -> SepaSchedule:
        """The schedule of SEPA's lambda, at its start."""
        return SepaSchedule(
            peak, ramp_steps=self.sepa_ramp_steps, delay_steps=self.sepa_delay_steps, gate=self.sepa_gate
        )


@final
class Control:
    """The controllers of one run.

    Args:
        objective: with the numbers that the controllers lead to (`beta`, `sepa_lambda`).
        config: how they get there.

    Raises:
        ValueError: a target KL without a beta between its bounds.
    """

    def __init__(self, objective: Objective, config: ControlConfig) -> None:
        self._objective = objective
        self._beta, self._sepa = config.beta(objective.beta), config.sepa(objective.sepa_lambda)
        self._tripwires = Tripwires(config.limits)
        self.stopped: str | None = None  # why the run must stop

    def objective(self) -> Objective:
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
