"""A policy in training: its updater, its references, and what is adapted from step to step.

    beta     warm-up: beta_t = beta min(1, t / warmup_steps); target: an EMA of the KL, alpha = 2 / (horizon + 1), above
             1.5 target: beta x 1.5, below 0.5 target: beta / 1.5, clamped to [beta_min, beta_max]
    SEPA     lambda = peak clip((s - delay_steps) / ramp_steps, 0, 1), s steps after the gate opened
    tripwire a limit that was passed for `patience` steps in a row, or a number that is not finite, stops the run
    warning  a bound that a step passes is said and counted in the manifest, and the run goes on

The step receives a `LossSettings` with this step's numbers and does not know where they come from. The `state_dict` of
`TrainingState` is the checkpoint: a run that is resumed in the middle goes on as one that was never stopped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from probe.records.records import StepRecord
from probe.runs.join import solve_share
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig, Limits
from probe.step.reference import References
from probe.step.step import StepResult
from probe.step.update import Updater
from replay_pools.rollout import Rollout

if TYPE_CHECKING:  # a replay samples nothing
    from probe.runs.sources.past import PastSelf, PastWeights

LOGPROB_DROP = 3.0  # nats a token below the first step's that stop a run
WARNINGS = {"kl/max": 10.0, "grad_norm": 50.0}  # beyond which a run says so, and goes on: KL of a token, norm
FACTOR = 1.5  # of beta, and the band of the KL around its target: [target / 2, FACTOR target]


class _Resumable:
    """The attributes named in `_state` are all that changes after construction; plain JSON types."""

    _state: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step."""
        values = {name: getattr(self, name) for name in self._state}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        for name in self._state:
            value = state[name]
            setattr(self, name, dict(value) if isinstance(value, dict) else value)


class BetaController(_Resumable):
    """The coefficient of the KL penalty: linear warm-up, then towards a target KL where there is one.

    The EMA follows the KL from the first step on (its first value is the first KL); beta is adapted only once the
    warm-up is over, because a KL without its penalty says nothing about the penalty's size.

    Args:
        beta: after the warm-up; fixed without a target.
        config: warm-up, target, horizon and bounds.
    """

    _state = ("beta", "ema", "steps")

    def __init__(self, beta: float, config: ControlConfig) -> None:
        self._config, self.beta = config, beta
        self.ema: float | None = None
        self.steps = 0

    @property
    def progress(self) -> float:
        """Share of the warm-up that is over; 0 in the first step of a warm-up."""
        warmup = self._config.beta_warmup_steps
        return min(1.0, self.steps / warmup) if warmup else 1.0

    @property
    def value(self) -> float:
        """The coefficient of the coming step."""
        return self.beta * self.progress

    def update(self, kl: float) -> dict[str, float]:
        """Take in the mean KL, which is finite, of the step that `value` was used in.

        Returns:
            Wire names without their `kl/`: `beta` and `warmup_progress` of that step, `ema`, and `beta_adjusted`, which
            is 1, -1 or 0 as beta was raised, lowered or left.
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


class SepaSchedule(_Resumable):
    """The strength lambda of SEPA (`probe.objective.credit`): 0 until the gate opens, then a delayed linear ramp.

    The gate opens after the first step whose solve rate reaches it and stays open. The ramp counts from there, so that
    a gate that opens late does not make lambda jump.

    Args:
        peak: lambda at the end of the ramp, in [0, 1].
        config: gate, delay and ramp.
    """

    _state = ("is_open", "steps")

    def __init__(self, peak: float, config: ControlConfig) -> None:
        self._peak, self._config = peak, config
        self.is_open = config.sepa_gate == 0
        self.steps = 0  # with the gate open

    @property
    def value(self) -> float:
        """Lambda of the coming step."""
        since, ramp = self.steps - self._config.sepa_delay_steps, self._config.sepa_ramp_steps
        if not self.is_open or since < 0:
            return 0.0
        return self._peak * (min(1.0, since / ramp) if ramp else 1.0)

    def update(self, solve_rate: float | None) -> None:
        """Take in the share of solved rollouts of the step that `value` was used in; None: it is not known."""
        if self.is_open:
            self.steps += 1
        elif solve_rate is not None:
            self.is_open = solve_rate >= self._config.sepa_gate


class Tripwires(_Resumable):
    """Watches a run and says why it must stop. The first step's entropy and log-probability are its baselines."""

    _state = ("baseline", "streaks")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.baseline: dict[str, float] = {}
        self.streaks: dict[str, int] = {}

    def check(self, measured: Mapping[str, float | None]) -> str | None:
        """The reason to stop after this step, or None.

        Args:
            measured: `kl/mean` and `kl/max` from the reference, `grad_norm` before the gate, `entropy` (mean surprisal
                of the policy's own samples) and `logprob` (mean of completions that do not change), nats per token;
                None: not measured in this step.
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
        """Count the steps above (`side` 1) or below (-1) the bound in a row; one without a measure leaves the count."""
        if value is None or bound is None:
            return None
        self.streaks[name] = self.streaks.get(name, 0) + 1 if side * (value - bound) > 0 else 0
        if self.streaks[name] < self._limits.patience:
            return None
        return f"{name} {value:.4g} {'above' if side > 0 else 'below'} {bound:.4g} for {self.streaks[name]} steps"


def passed(step: StepRecord) -> dict[str, tuple[float, float]]:
    """{field of the step: (its value, the bound that it is above)} of every warning."""
    watched = {"kl/max": step.kl.get("max"), "grad_norm": step.grad_norm}
    values = {name: value for name, value in watched.items() if value is not None and value > WARNINGS[name]}
    return {name: (value, WARNINGS[name]) for name, value in values.items()}


def warnings_of(steps: Sequence[StepRecord]) -> list[str]:
    """A sentence for each bound that steps of a run passed: how many of them, and the furthest."""
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
    """One policy in training, in one arm under one condition.

    Args:
        updater: steps the policy.
        references: of the KL penalty.
        objective: with the numbers that the controllers lead to (`beta`, `sepa_lambda`).
        control: how they get there.
    """

    def __init__(
        self, updater: Updater, references: References, objective: LossSettings, control: ControlConfig
    ) -> None:
        self.updater, self.references, self._objective = updater, references, objective
        self._beta = BetaController(objective.beta, control)
        self._sepa = SepaSchedule(objective.sepa_lambda, control)
        self._tripwires = Tripwires(control.limits)
        self.stopped: str | None = None  # why the run must stop after the last step
        self.logprob: float | None = None  # of the frozen probe batch, where it was measured before this step
        self.past: PastWeights | None = None  # that sample batches to come, where sampling runs ahead
        self.past_self: PastSelf | None = None  # the policy as it was, where some rollouts are its

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return replace(self._objective, beta=self._beta.value, sepa_lambda=self._sepa.value)

    def finish_step(
        self,
        result: StepResult,
        rollouts: Sequence[Rollout],
        sampled_by_policy: Sequence[bool],
        entropy: float | None,
    ) -> dict[str, float]:
        """Move the references and the controllers after the optimizer's step.

        Args:
            sampled_by_policy: which rollouts are the policy's samples; the others are of other sources.
            entropy: of the policy in this step, nats a token; None without a rollout of its own.

        Returns:
            What the controller of beta did, by wire names without "kl/"; empty without a KL.
        """
        self.references.update()
        if self.past_self is not None:
            self.past_self.finish_step()
        (arm,) = result.arms
        kl = result.weightings[arm.measure.condition].kl
        # A step of nothing but a teacher's rollouts still has a solve rate.
        solving = [i for i, sampled in enumerate(sampled_by_policy) if sampled] or list(range(len(rollouts)))
        measured = {
            "kl/mean": kl.get("mean"),
            "kl/max": kl.get("max"),
            "grad_norm": float(arm.projection.before.norm),
            "entropy": entropy,
            "logprob": self.logprob,
        }
        self.logprob = None
        self.stopped = self._tripwires.check(measured)
        self._sepa.update(solve_share([rollouts[i] for i in solving]))
        return self._beta.update(kl["mean"]) if kl and not self.stopped else {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step."""
        return {name: part.state_dict() for name, part in self._parts().items()} | {"stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.stopped = state["stopped"]

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own, by its name in a checkpoint."""
        parts = {
            "updater": self.updater,
            "references": self.references,
            "beta": self._beta,
            "sepa": self._sepa,
            "tripwires": self._tripwires,
            "past": self.past,
            "past_self": self.past_self,
        }
        return {name: part for name, part in parts.items() if part is not None}
