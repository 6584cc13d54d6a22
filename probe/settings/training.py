"""The tables `optimizer`, `control`, `checkpoints` and `evaluation` of a run: how its weights move and are watched."""

from dataclasses import dataclass, field
from typing import Literal

from probe.settings.ranges import at_least, known_words
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW on the coordinates of a basis (`probe.step.update`)."""

    lr: float = 0.0  # at the end of the warm-up; 0 = frozen weights
    schedule: Literal["cosine", "constant"] = "cosine"  # after the warm-up; cosine decays to 0
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0  # cap on the norm of the gradient, after the gate; None = no cap

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        at_least(0, warmup_steps=self.warmup_steps)
        if self.schedule == "constant" and self.warmup_steps:
            raise FieldError("warmup_steps", "0 with the schedule constant, which has no warm-up", self.warmup_steps)
        if not (self.lr >= 0 and (self.max_grad_norm is None or self.max_grad_norm > 0)):
            actual = f"{self.lr}, {self.max_grad_norm}"
            raise FieldError("lr, max_grad_norm", ">= 0, > 0 or none", actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that stop a run that trains; None = no limit."""

    kl_mean_max: float | None = 10.0  # nats per token, mean of a step
    kl_token_max: float | None = None  # nats, of one token: the largest of a step
    grad_norm_max: float | None = None  # norm of the gradient before the gate
    entropy_min_frac: float | None = 0.1  # of the first step's entropy
    logprob_drop_max: float | None = 3.0  # nats per token below the first step's
    patience: int = 3  # consecutive steps beyond a limit; a spike that recovers does not stop the run

    def __post_init__(self) -> None:
        """Refuse limits of 0 and below, which every step exceeds."""
        at_least(1, patience=self.patience)
        for name in ("kl_mean_max", "kl_token_max", "grad_norm_max", "entropy_min_frac", "logprob_drop_max"):
            _check_bound(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warnings:
    """Bounds beyond which a run that trains says so, and goes on; None = silent. Numbers and names as in `Limits`."""

    kl_token_max: float | None = 10.0
    grad_norm_max: float | None = 50.0

    def __post_init__(self) -> None:
        """Refuse bounds of 0 and below, which every step exceeds."""
        for name in ("kl_token_max", "grad_norm_max"):
            _check_bound(name, getattr(self, name))


def _check_bound(name: str, bound: float | None) -> None:
    if bound is not None and not bound > 0:
        raise FieldError(name, "a number above 0, or none", bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """The controllers of `probe.runs.control`, and when the EMA reference of the KL moves."""

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
    warnings: Warnings = field(default_factory=Warnings)

    def __post_init__(self) -> None:
        """Refuse numbers out of their range; `RunConfig` checks them against the objective."""
        at_least(0, beta_warmup_steps=self.beta_warmup_steps, sepa_ramp_steps=self.sepa_ramp_steps)
        at_least(0, sepa_delay_steps=self.sepa_delay_steps)
        at_least(1, kl_horizon=self.kl_horizon, ema_every=self.ema_every)
        for name in ("ema_decay", "sepa_gate"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FieldError(name, "a number in [0, 1]", value)
        if self.target_kl is not None and not self.target_kl > 0:
            raise FieldError("target_kl", "a number above 0, or none", self.target_kl)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept. The last step always writes one."""

    every: int = 1  # steps
    keep: int = 2  # newest checkpoints

    def __post_init__(self) -> None:
        """Refuse 0 for either: without a checkpoint a run cannot be resumed."""
        at_least(1, every=self.every, keep=self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Held-out problems, the same for every arm and seed, in every mode with its hint."""

    every: int = 20  # steps; also before the first and after the last
    num_problems: int = 64
    modes: tuple[str, ...] = ()  # none = the mode of the rollouts
    without_hint: bool = False  # evaluate the mode of the rollouts also without its hint
    rollouts_per_problem: int = 1  # with more, the unit of the intervals is no longer the rollout

    def __post_init__(self) -> None:
        """Refuse an evaluation without rollouts, and unknown modes."""
        at_least(1, every=self.every, num_problems=self.num_problems, rollouts_per_problem=self.rollouts_per_problem)
        known_words("modes", self.modes, LOOPHOLES)
