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
from typing import TYPE_CHECKING, Any, final

from probe.records.records import StepRecord
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater

if TYPE_CHECKING:  # a replay samples nothing
    from probe.runs.sources.past import PastWeights

LOGPROB_DROP = 3.0  # nats a token; a larger drop since the first step stops the run
WARNINGS = {"kl/max": 10.0, "grad_norm": 50.0}  # {field: bound}; a step above it is reported, and the run continues
FACTOR = 1.5  # changes beta; the KL may lie in [target / 2, FACTOR target]
# Attributes of `TrainingState` of plain JSON types that change from step to step.
PLAIN = ("beta", "ema", "baseline", "streaks", "stopped", "steps")


def warnings_of(steps: Sequence[StepRecord]) -> list[str]:
    """Return a sentence for each bound that steps exceeded: how many steps, and the largest value."""
    sentences = []
    for name, bound in WARNINGS.items():
        values = [(step.kl.get("max") if name == "kl/max" else step.grad_norm, step.step) for step in steps]
        if beyond := [(value, step) for value, step in values if value is not None and value > bound]:
            largest, at = max(beyond)
            counted = f"in {len(beyond)} of {len(steps)} steps"
            sentences.append(f"{name} above {bound:g} {counted}, largest {largest:.4g} in step {at}")
    return sentences


@final
class TrainingState:
    """One policy in training, in one arm under one loss variant.

    Args:
        updater: steps the policy.
        references: reference policies of the KL penalty.
        objective: the loss, with the final `beta` and `sepa_lambda`.
        control: the schedules and controllers of those two, and the limits.

    Attributes:
        beta: coefficient of the KL penalty after the warm-up; fixed without a target.
        ema: of the KL; None before the first step.
        baseline: {entropy, logprob: value in the first step}.
        streaks: {field: consecutive steps beyond its limit}.
        stopped: why the run must stop after the last step.
        steps: steps made.
        logprob: of the frozen probe batch; None if not measured before this step.
        past: earlier weights that sample rollouts; None: none do.
    """

    def __init__(
        self, updater: Updater, references: References, objective: LossSettings, control: ControlConfig
    ) -> None:
        self.updater, self.references, self._objective, self._control = updater, references, objective, control
        self.beta = objective.beta
        self.ema: float | None = None
        self.baseline: dict[str, float] = {}
        self.streaks: dict[str, int] = {}
        self.stopped: str | None = None
        self.steps = 0
        self.logprob: float | None = None
        self.past: PastWeights | None = None

    def _done(self, steps: int) -> float:
        """Return the completed share of a ramp over so many steps; 0 in its first step."""
        return min(1.0, self.steps / steps) if steps else 1.0

    def objective(self) -> LossSettings:
        """The objective of the next step."""
        beta = self.beta * self._done(self._control.beta_warmup_steps)
        sepa_lambda = self._objective.sepa_lambda * self._done(self._control.sepa_ramp_steps)
        return replace(self._objective, beta=beta, sepa_lambda=sepa_lambda)

    def finish_step(self, result: StepResult, entropy: float | None) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            entropy: the policy's entropy in this step, nats a token; None if it sampled no rollout.

        Returns:
            The result of `adapt`; empty without a KL.
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
        self.stopped = self.check(measured)
        row = self.adapt(kl["mean"]) if kl and not self.stopped else {}
        self.steps += 1
        return row

    def adapt(self, kl: float) -> dict[str, float]:
        """Adapt beta to the finite mean KL of a step.

        The EMA starts at the first step's KL. Beta is adapted only after the warm-up, because the KL without the full
        penalty says nothing about the penalty's size.

        Returns:
            Wire names without `kl/`: `beta` and `warmup_progress` of that step, `ema`, and `beta_adjusted`, which is 1
            if beta was raised, -1 if it was lowered, else 0.
        """
        control, before, warmed = self._control, self.beta, self._done(self._control.beta_warmup_steps)
        self.ema = kl if self.ema is None else self.ema + 2 / (control.kl_horizon + 1) * (kl - self.ema)
        if control.target_kl is not None and warmed == 1.0:
            if self.ema > FACTOR * control.target_kl:
                self.beta = min(control.beta_max, before * FACTOR)
            elif self.ema < control.target_kl / 2:
                self.beta = max(control.beta_min, before / FACTOR)
        adjusted = float((self.beta > before) - (self.beta < before))
        return {"beta": before * warmed, "warmup_progress": warmed, "ema": self.ema, "beta_adjusted": adjusted}

    def check(self, measured: Mapping[str, float | None]) -> str | None:
        """Return the reason to stop after this step, or None.

        Args:
            measured: `kl/mean` and `kl/max` from the reference, `grad_norm` before the projection, `entropy` (mean
                surprisal of the policy's samples) and `logprob` (mean over fixed completions), nats per token; None =
                not measured in this step, which keeps the count of steps beyond a limit.
        """
        for name, value in measured.items():
            if value is not None and not math.isfinite(value):
                return f"{name} is {value}"
        for name in ("entropy", "logprob"):
            if (first := measured[name]) is not None:
                self.baseline.setdefault(name, first)
        limits, reasons = self._control.limits, []
        bounds = {"kl/mean": (limits.kl_mean_max, 1)}  # {field: (bound, 1 if the value may not lie above it, else -1)}
        if limits.entropy_min_frac is not None and "entropy" in self.baseline:
            bounds["entropy"] = limits.entropy_min_frac * self.baseline["entropy"], -1
        if "logprob" in self.baseline:
            bounds["logprob"] = self.baseline["logprob"] - LOGPROB_DROP, -1
        for name, (bound, side) in bounds.items():
            value = measured[name]
            if value is None or bound is None:
                continue
            self.streaks[name] = self.streaks.get(name, 0) + 1 if side * (value - bound) > 0 else 0
            if self.streaks[name] >= limits.patience:
                which = "above" if side > 0 else "below"
                reasons.append(f"{name} {value:.4g} {which} {bound:.4g} for {self.streaks[name]} steps")
        return reasons[0] if reasons else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step."""
        plain = {name: getattr(self, name) for name in PLAIN}
        plain = {name: dict(value) if isinstance(value, dict) else value for name, value in plain.items()}
        return plain | {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in PLAIN:
            value = state[name]
            setattr(self, name, dict(value) if isinstance(value, dict) else value)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        """Return {name in a checkpoint: object with a state}."""
        parts = {"updater": self.updater, "references": self.references, "past": self.past}
        return {name: part for name, part in parts.items() if part is not None}
