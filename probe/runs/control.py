"""A policy in training: its updater, references, controllers and tripwires.

    beta     warm-up: beta_t = beta min(1, t / warmup_steps); target: an EMA of the KL, alpha = 2 / (horizon + 1), above
             1.5 target: beta x 1.5, below 0.5 target: beta / 1.5, clamped to [beta_min, beta_max]
    SEPA     lambda_t = peak min(1, t / ramp_steps)
    tripwire `patience` consecutive steps beyond a limit, or a number that is not finite, stop the run
    warning  a step beyond a bound is reported and counted in the manifest, and the run continues

The step receives a `LossSettings` with the numbers of this step. The `state_dict` of `TrainingState` is the checkpoint:
a resumed run continues exactly as an uninterrupted one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from probe.records.records import StepRecord
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig, Limits
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater

if TYPE_CHECKING:  # a replay samples nothing
    from probe.runs.sources.past import PastWeights

LOGPROB_DROP = 3.0  # nats a token; a larger drop since the first step stops the run
WARNINGS = {"kl/max": 10.0, "grad_norm": 50.0}  # {field: bound}; a step above it is reported, and the run continues
FACTOR = 1.5  # changes beta; the KL may lie in [target / 2, FACTOR target]


class _Resumable:
    """A class with its whole mutable state in the attributes named by `_state`, of plain JSON types."""

    _state: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step."""
        values = {name: getattr(self, name) for name in self._state}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in self._state:
            value = state[name]
            setattr(self, name, dict(value) if isinstance(value, dict) else value)


class BetaController(_Resumable):
    """The coefficient of the KL penalty: linear warm-up, then adapted to the target KL, if there is one.

    The EMA starts at the first step's KL. Beta is adapted only after the warm-up, because the KL without the full
    penalty says nothing about the penalty's size.

    Args:
        beta: beta after the warm-up; fixed without a target.
        config: warm-up, target, horizon and bounds.
    """

    _state = ("beta", "ema", "steps")

    def __init__(self, beta: float, config: ControlConfig) -> None:
        self._config, self.beta = config, beta
        self.ema: float | None = None
        self.steps = 0

    @property
    def progress(self) -> float:
        """Completed share of the warm-up; 0 in its first step."""
        warmup = self._config.beta_warmup_steps
        return min(1.0, self.steps / warmup) if warmup else 1.0

    @property
    def value(self) -> float:
        """The coefficient for the next step."""
        return self.beta * self.progress

    def update(self, kl: float) -> dict[str, float]:
        """Update with the finite mean KL of the step that used `value`.

        Returns:
            Wire names without `kl/`: `beta` and `warmup_progress` of that step, `ema`, and `beta_adjusted`, which is 1
            if beta was raised, -1 if it was lowered, else 0.
        """
        row = {"beta": self.value, "warmup_progress": self.progress}
        alpha, target, before = 2 / (self._config.kl_horizon + 1), self._config.target_kl, self.beta
        self.ema = kl if self.ema is None else self.ema + alpha * (kl - self.ema)
        if target is not None and self.progress == 1.0:
            if self.ema > FACTOR * target:
                self.beta = min(self._config.beta_max, self.beta * FACTOR)
            elif self.ema < target / 2:
                self.beta = max(self._config.beta_min, self.beta / FACTOR)
        self.steps += 1
        return row | {"ema": self.ema, "beta_adjusted": float((self.beta > before) - (self.beta < before))}


class Tripwires(_Resumable):
    """Limits that stop a run. The first step's entropy and log-probability are the baselines."""

    _state = ("baseline", "streaks")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.baseline: dict[str, float] = {}
        self.streaks: dict[str, int] = {}

    def check(self, measured: Mapping[str, float | None]) -> str | None:
        """Return the reason to stop after this step, or None.

        Args:
            measured: `kl/mean` and `kl/max` from the reference, `grad_norm` before the projection, `entropy` (mean
                surprisal of the policy's samples) and `logprob` (mean over fixed completions), nats per token; None =
                not measured in this step.
        """
        for name, value in measured.items():
            if value is not None and not math.isfinite(value):
                return f"{name} is {value}"
        for name in ("entropy", "logprob"):
            if (first := measured[name]) is not None:
                self.baseline.setdefault(name, first)
        limits, first = self._limits, self.baseline
        lowest = smallest = None
        if limits.entropy_min_frac is not None and "entropy" in first:
            lowest = limits.entropy_min_frac * first["entropy"]
        if "logprob" in first:
            smallest = first["logprob"] - LOGPROB_DROP
        reasons = [
            self._watch("kl/mean", measured["kl/mean"], limits.kl_mean_max, 1),
            self._watch("entropy", measured["entropy"], lowest, -1),
            self._watch("logprob", measured["logprob"], smallest, -1),
        ]
        return next((reason for reason in reasons if reason), None)

    def _watch(self, name: str, value: float | None, bound: float | None, side: int) -> str | None:
        """Count consecutive steps above (`side` 1) or below (-1) the bound; a missing value keeps the count."""
        if value is None or bound is None:
            return None
        self.streaks[name] = self.streaks.get(name, 0) + 1 if side * (value - bound) > 0 else 0
        if self.streaks[name] < self._limits.patience:
            return None
        return f"{name} {value:.4g} {'above' if side > 0 else 'below'} {bound:.4g} for {self.streaks[name]} steps"


def passed(step: StepRecord) -> dict[str, tuple[float, float]]:
    """Return {field of the step: (value, exceeded bound)} of every warning."""
    watched = {"kl/max": step.kl.get("max"), "grad_norm": step.grad_norm}
    values = {name: value for name, value in watched.items() if value is not None and value > WARNINGS[name]}
    return {name: (value, WARNINGS[name]) for name, value in values.items()}


def warnings_of(steps: Sequence[StepRecord]) -> list[str]:
    """Return a sentence for each bound that steps exceeded: how many steps, and the largest value."""
    beyond: dict[tuple[str, float], list[tuple[float, int]]] = {}  # {(name, bound): [(value, step)]}
    for step in steps:
        for name, (value, bound) in passed(step).items():
            beyond.setdefault((name, bound), []).append((value, step.step))
    sentences = []
    for (name, bound), values in beyond.items():
        largest, at = max(values)
        counted = f"{len(values)} of {len(steps)} steps"
        sentences.append(f"{name} above {bound:g} in {counted}, largest {largest:.4g} in step {at}")
    return sentences


@final
class TrainingState:
    """One policy in training, in one arm under one loss variant.

    Args:
        updater: steps the policy.
        references: reference policies of the KL penalty.
        objective: the loss, with the final `beta` and `sepa_lambda`.
        control: the schedules and controllers of those two.
    """

    def __init__(
        self, updater: Updater, references: References, objective: LossSettings, control: ControlConfig
    ) -> None:
        self.updater, self.references, self._objective = updater, references, objective
        self._beta, self._ramp = BetaController(objective.beta, control), control.sepa_ramp_steps
        self._tripwires = Tripwires(control.limits)
        self.stopped: str | None = None  # why the run must stop after the last step
        self.logprob: float | None = None  # of the frozen probe batch; None if not measured before this step
        self.steps = 0  # steps made
        self.past: PastWeights | None = None  # earlier weights that sample rollouts; None: none do

    def objective(self) -> LossSettings:
        """The objective of the next step."""
        ramp = min(1.0, self.steps / self._ramp) if self._ramp else 1.0
        return replace(self._objective, beta=self._beta.value, sepa_lambda=self._objective.sepa_lambda * ramp)

    def finish_step(self, result: StepResult, entropy: float | None) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            entropy: the policy's entropy in this step, nats a token; None if it sampled no rollout.

        Returns:
            The result of `BetaController.update`; empty without a KL.
        """
        self.references.update()
        (arm,) = result.arms
        kl = result.weightings[arm.measure.condition].kl
        measured = {
            "kl/mean": kl.get("mean"),
            "kl/max": kl.get("max"),
            "grad_norm": float(arm.projection.before.norm),
            "entropy": entropy,
            "logprob": self.logprob,
        }
        self.logprob = None
        self.stopped = self._tripwires.check(measured)
        self.steps += 1
        return self._beta.update(kl["mean"]) if kl and not self.stopped else {}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return parts | {"steps": self.steps, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.steps, self.stopped = state["steps"], state["stopped"]

    def _parts(self) -> dict[str, Any]:
        """Return {name in a checkpoint: object with a state}."""
        parts = {
            "updater": self.updater,
            "references": self.references,
            "beta": self._beta,
            "tripwires": self._tripwires,
            "past": self.past,
        }
        return {name: part for name, part in parts.items() if part is not None}
