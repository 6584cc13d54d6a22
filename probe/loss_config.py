"""The settings of everything that a training run differentiates: objective, ratio, KL penalty, entropy bonus."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from probe.controllers import BetaController, SepaSchedule
from probe.kl import KlEstimator
from probe.objective import Objective
from probe.ratio import Level, surrogate
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioConfig:
    """The surrogate of `probe.ratio`."""

    old_logprobs: Literal["current", "recorded"] = "current"
    importance_sampling_level: Level = "token"
    epsilon: float | None = 0.2  # None = not clipped
    epsilon_high: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        token = torch.zeros(1, 1)
        surrogate(token, token, token == 0, token, **self.options())  # trying them is the check

    def options(self) -> dict[str, Any]:
        """The keywords of `probe.ratio.surrogate`."""
        return {
            "level": self.importance_sampling_level,
            "epsilon": self.epsilon,
            "epsilon_high": self.epsilon_high,
            "delta": self.delta,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KlConfig:
    """The penalty of `probe.kl` and its controllers."""

    beta: float = 0.0
    estimator: KlEstimator = "k3"
    reference: Literal["base", "ema", "recorded"] = "base"
    ema_decay: float = 0.99
    ema_every: int = 1  # steps between updates of the EMA reference
    warmup_steps: int = 0
    target_kl: float | None = None
    horizon: int = 10
    beta_min: float = 1e-4
    beta_max: float = 1.0

    def __post_init__(self) -> None:
        self.controller()
        if self.ema_every < 1 or not 0 <= self.ema_decay <= 1:
            found = f"{self.ema_decay} every {self.ema_every}"
            raise ValueError(f"ema_decay, ema_every: expected a number in [0, 1] every 1 or more steps, found {found}")

    def controller(self) -> BetaController:
        """The controller of beta, at its start."""
        return BetaController(
            self.beta,
            warmup_steps=self.warmup_steps,
            target_kl=self.target_kl,
            horizon=self.horizon,
            beta_min=self.beta_min,
            beta_max=self.beta_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SepaConfig:
    """When SEPA reaches the `sepa_lambda` of the objective."""

    ramp_steps: int = 0
    delay_steps: int = 0
    gate: float = 0.0

    def __post_init__(self) -> None:
        self.schedule(peak=1.0)

    def schedule(self, peak: float) -> SepaSchedule:
        """The schedule, at its start."""
        return SepaSchedule(peak, ramp_steps=self.ramp_steps, delay_steps=self.delay_steps, gate=self.gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Everything that is differentiated."""

    objective: Objective = field(default_factory=Objective)
    ratio: RatioConfig = field(default_factory=RatioConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    sepa: SepaConfig = field(default_factory=SepaConfig)
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        if self.objective.loss_type == "nll":
            raise InputError("loss.objective loss_type", expected="a loss with advantages", found="nll")
        if self.kl.reference == "recorded" and self.kl.estimator == "full":
            raise InputError("loss.kl reference", expected="base or ema for estimator full", found="recorded")
