"""A policy in training: its updater, references, controllers and tripwires.

    beta     warm-up: beta_t = beta min(1, t / warmup_steps); target: an EMA of the KL, alpha = 2 / (horizon + 1), above
             1.5 target: beta x 1.5, below 0.5 target: beta / 1.5, clamped to [beta_min, beta_max]
    SEPA     lambda_t = peak min(1, t / ramp_steps)
    tripwire PATIENCE consecutive steps beyond a limit, or a number that is not finite, stop the run
    warning  a step beyond a bound is reported and counted in the manifest, and the run continues

The step receives a `LossSettings` with the numbers of this step. The `state_dict` of `TrainingState` is the checkpoint:
a resumed run continues exactly as an uninterrupted one.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, final

from probe.records.records import StepRecord
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater

if TYPE_CHECKING:  # a replay samples nothing
    from probe.runs.sources.past import PastWeights

PATIENCE = 3  # consecutive steps beyond a limit before the run stops
WARNINGS = {"kl/max": 10.0, "grad_norm": 50.0}  # {field: bound}; a step above it is reported, and the run continues
FACTOR = 1.5  # changes beta; the KL may lie in [target / 2, FACTOR target]
# {field: (1 if its value may not lie above the bound, -1 if not below; the bound by the settings and the first value)}
BOUNDS: Mapping[str, tuple[int, Callable[[ControlConfig, float], float | None]]] = {
    "kl/mean": (1, lambda control, first: control.kl_mean_max),
    "entropy": (-1, lambda control, first: control.entropy_min_frac and control.entropy_min_frac * first),
    "logprob": (-1, lambda control, first: first - 3.0),  # nats a token
}
# Attributes of `TrainingState` that change from step to step: of plain JSON types, and with a state of their own.
PLAIN, PARTS = ("beta", "ema", "baseline", "streaks", "stopped", "steps"), ("updater", "references", "past")


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
        control: the schedules and controllers of those two, and the limits that stop it.
    """

    def __init__(
        self, updater: Updater, references: References, objective: LossSettings, control: ControlConfig
    ) -> None:
        self.updater, self.references, self._objective, self._control = updater, references, objective, control
        self.steps = 0  # made
        self.beta = objective.beta  # coefficient of the KL penalty after the warm-up; fixed without a target
        self.ema: float | None = None  # of the KL; None before the first step
        self.baseline: dict[str, float] = {}  # {entropy, logprob: value in the first step}
        self.streaks: dict[str, int] = {}  # {field: consecutive steps beyond its limit}
        self.stopped: str | None = None  # why the run must stop after the last step
        self.logprob: float | None = None  # of the frozen probe batch; None if not measured before this step
        self.past: PastWeights | None = None  # earlier weights that sample rollouts; None: none do

    def _done(self, steps: int) -> float:
        """Return the completed share of a ramp over so many steps; 0 in its first step."""
        return min(1.0, self.steps / steps) if steps else 1.0

    def objective(self) -> LossSettings:
        """The objective of the next step."""
        beta = self.beta * self._done(self._control.beta_warmup_steps)
        sepa_lambda = self._objective.sepa_lambda * self._done(self._control.sepa_ramp_steps)
        return replace(self._objective, beta=beta, sepa_lambda=sepa_lambda)

    def finish_step(self, result: StepResult, entropy: float | None) -> dict[str, float]:
        """Move the references, the limits' counts and beta after the optimizer's step.

        The EMA starts at the first step's KL. Beta is adapted only after the warm-up, because the KL without the full
        penalty says nothing about the penalty's size.

        Args:
            entropy: the policy's entropy in this step, nats a token; None if it sampled no rollout.

        Returns:
            Wire names without `kl/`: `beta` and `warmup_progress` of that step, `ema`, and `beta_adjusted`, which is 1
            if beta was raised, -1 if it was lowered, else 0; empty without a KL, and if the run must stop.
        """
        self.references.update()
        (arm,) = result.arms
        kl = result.weightings[arm.measure.condition].kl
        measured = {"kl/mean": kl.get("mean"), "kl/max": kl.get("max")}
        measured |= {"grad_norm": float(arm.projection.before.norm), "entropy": entropy, "logprob": self.logprob}
        self.logprob, self.stopped = None, self.check(measured)
        control, before, warmed = self._control, self.beta, self._done(self._control.beta_warmup_steps)
        self.steps += 1
        if not kl or self.stopped:
            return {}
        self.ema = kl["mean"] if self.ema is None else self.ema + 2 / (control.kl_horizon + 1) * (kl["mean"] - self.ema)
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
        reasons = list[str]()
        for name, value in measured.items():
            if value is not None and not isfinite(value):
                return f"{name} is {value}"
        for name, (side, bound_of) in BOUNDS.items():
            if (value := measured[name]) is None:
                continue
            bound = bound_of(self._control, value if side > 0 else self.baseline.setdefault(name, value))
            if bound is not None:
                self.streaks[name] = self.streaks.get(name, 0) + 1 if side * (value - bound) > 0 else 0
                if self.streaks[name] >= PATIENCE:
                    which = "above" if side > 0 else "below"
                    reasons.append(f"{name} {value:.4g} {which} {bound:.4g} for {self.streaks[name]} steps")
        return reasons[0] if reasons else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step."""
        parts = {name: part.state_dict() for name in PARTS if (part := getattr(self, name)) is not None}
        return {name: copy(getattr(self, name)) for name in PLAIN} | parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in PLAIN:
            setattr(self, name, copy(state[name]))
        for name in PARTS:
            if (part := getattr(self, name)) is not None:
                part.load_state_dict(state[name])
