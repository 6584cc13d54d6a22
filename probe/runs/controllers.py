"""Controllers: what is adapted from step to step while a policy trains. They live outside the step, see one number or a
few a step, and resume exactly. `Control` holds those of a run; the step receives a `LossSettings` with this step's
numbers and does not know where they come from.

    beta     warm-up: beta_t = beta min(1, t / warmup_steps); target: an EMA of the KL, alpha = 2 / (horizon + 1), above
             1.5 target: beta x 1.5, below 0.5 target: beta / 1.5, clamped to [beta_min, beta_max]
    SEPA     lambda = peak clip((s - delay_steps) / ramp_steps, 0, 1), s steps after the gate opened
    tripwire a limit that was passed for `patience` steps in a row, or a number that is not finite, stops the run
    warning  a bound that a step passes is said and counted in the manifest, and the run goes on

`state_dict` holds plain JSON types only, and floats survive JSON unchanged: a run that is resumed in the middle goes on
as one that was never stopped. The learning rate needs nothing here: transformers' `get_cosine_schedule_with_warmup`
has the same two methods.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypedDict, Unpack, final

from probe.records.records import StepRecord
from probe.settings.loss import LossSettings
from probe.settings.training import ControlConfig, Limits, Warnings

FACTOR = 1.5  # of beta, and the band of the KL around its target: [target / 2, FACTOR target]


class _Resumable:
    """The attributes named in `_state` are all that changes after construction."""

    _state: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step, in plain JSON types."""
        values = {name: getattr(self, name) for name in self._state}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Raises:
            ValueError: other names than this controller's.
        """
        if state.keys() != set(self._state):
            expected, found = ", ".join(self._state), ", ".join(state)
            raise ValueError(f"{type(self).__name__} state: expected {expected}, found {found}")
        for name, value in state.items():
            setattr(self, name, dict(value) if isinstance(value, dict) else value)


class BetaController(_Resumable):
    """The coefficient of the KL penalty: linear warm-up, then towards a target KL where there is one.

    The EMA follows the KL from the first step on (its first value is the first KL); beta is adapted only once the
    warm-up is over, because a KL without its penalty says nothing about the penalty's size.

    Args:
        beta: after the warm-up; fixed without `target_kl`.
        warmup_steps: steps from 0 to `beta`; 0 = no warm-up.
        target_kl: nats per token; None = beta is not adapted.
        horizon: of the EMA, in steps.
        beta_min, beta_max: bounds of an adapted beta.
    """

    _state = ("beta", "ema", "steps")

    def __init__(
        self,
        beta: float,
        *,
        warmup_steps: int = 0,
        target_kl: float | None = None,
        horizon: int = 10,
        beta_min: float = 1e-4,
        beta_max: float = 1.0,
    ) -> None:
        self._warmup_steps, self._target, self._alpha = warmup_steps, target_kl, 2 / (horizon + 1)
        self._bounds = beta_min, beta_max
        self.beta = beta
        self.ema: float | None = None
        self.steps = 0

    @property
    def progress(self) -> float:
        """Share of the warm-up that is over; 0 in the first step of a warm-up."""
        return min(1.0, self.steps / self._warmup_steps) if self._warmup_steps else 1.0

    @property
    def value(self) -> float:
        """The coefficient of the coming step."""
        return self.beta * self.progress

    def update(self, kl: float) -> dict[str, float]:
        """Take in the mean KL of the step that `value` was used in.

        Returns:
            Wire names without their `kl/`: `beta` and `warmup_progress` of that step, `ema`, and `beta_adjusted`, which
            is 1, -1 or 0 as beta was raised, lowered or left.

        Raises:
            ValueError: the KL is not finite (the tripwires come first).
        """
        if not math.isfinite(kl):
            raise ValueError(f"kl: expected a finite number, found {kl}")
        row = {"beta": self.value, "warmup_progress": self.progress}
        self.ema = kl if self.ema is None else self.ema + self._alpha * (kl - self.ema)
        before = self.beta
        if self._target is not None and self.progress == 1.0:
            low, high = self._bounds
            if self.ema > FACTOR * self._target:
                self.beta = min(high, self.beta * FACTOR)
            elif self.ema < self._target / 2:
                self.beta = max(low, self.beta / FACTOR)
        self.steps += 1
        return row | {"ema": self.ema, "beta_adjusted": float((self.beta > before) - (self.beta < before))}


class SepaSchedule(_Resumable):
    """The strength lambda of SEPA (`probe.objective.credit`): 0 until the gate opens, then a delayed linear ramp.

    The gate opens after the first step whose solve rate reaches it and stays open. The ramp counts from there, so that
    a gate that opens late does not make lambda jump.

    Args:
        peak: lambda at the end of the ramp, in [0, 1].
        ramp_steps: length of the ramp; 0 = the peak at once.
        delay_steps: steps between the gate and the ramp.
        gate: solve rate that opens the gate; 0 = open from the start.
    """

    _state = ("is_open", "steps")

    def __init__(self, peak: float, *, ramp_steps: int = 0, delay_steps: int = 0, gate: float = 0.0) -> None:
        self._peak, self._ramp_steps, self._delay_steps, self._gate = peak, ramp_steps, delay_steps, gate
        self.is_open = gate == 0
        self.steps = 0  # with the gate open

    @property
    def value(self) -> float:
        """Lambda of the coming step."""
        since = self.steps - self._delay_steps
        if not self.is_open or since < 0:
            return 0.0
        return self._peak * (min(1.0, since / self._ramp_steps) if self._ramp_steps else 1.0)

    def update(self, solve_rate: float | None) -> None:
        """Take in the share of solved rollouts of the step that `value` was used in; None: it is not known."""
        if self.is_open:
            self.steps += 1
        elif solve_rate is not None:
            self.is_open = solve_rate >= self._gate


class Watched(TypedDict):
    """What the tripwires watch in a step; None: not measured in it."""

    kl_mean: float | None  # from the reference, nats per token
    kl_token: float | None  # of the token in which it is largest, nats
    grad_norm: float  # of the policy gradient before the gate
    entropy: float | None  # mean surprisal of the policy's own samples, nats per token
    logprob: float | None  # mean per token of completions that do not change (a frozen probe batch), nats


class Tripwires(_Resumable):
    """Watches a run and says why it must stop. The first step's entropy and log-probability are its baselines."""

    _state = ("baseline", "streaks")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.baseline: dict[str, float] = {}
        self.streaks: dict[str, int] = {}

    def check(self, **step: Unpack[Watched]) -> str | None:
        """The reason to stop after this step, or None."""
        # By the names of the step records, where they have the number.
        measured = {
            "kl/mean": step["kl_mean"],
            "kl/max": step["kl_token"],
            "grad_norm": step["grad_norm"],
            "entropy": step["entropy"],
            "logprob": step["logprob"],
        }
        for name, value in measured.items():
            if value is not None and not math.isfinite(value):
                return f"{name} is {value}"
        for name in ("entropy", "logprob"):
            if (first := measured[name]) is not None:
                self.baseline.setdefault(name, first)
        reasons = [self._watch(name, measured[name], *rule) for name, rule in self._rules().items()]
        return next((reason for reason in reasons if reason), None)

    def _rules(self) -> dict[str, tuple[float | None, int]]:
        """{name: (bound, +1 where it is an upper bound and -1 where it is a lower one)}."""
        limits, first = self._limits, self.baseline
        entropy, drop = limits.entropy_min_frac, limits.logprob_drop_max
        return {
            "kl/mean": (limits.kl_mean_max, 1),
            "kl/max": (limits.kl_token_max, 1),
            "grad_norm": (limits.grad_norm_max, 1),
            "entropy": (None if entropy is None or "entropy" not in first else entropy * first["entropy"], -1),
            "logprob": (None if drop is None or "logprob" not in first else first["logprob"] - drop, -1),
        }

    def _watch(self, name: str, value: float | None, bound: float | None, side: int) -> str | None:
        """Count the steps beyond the bound in a row; a step without a measure leaves the count as it is."""
        if value is None or bound is None:
            return None
        self.streaks[name] = self.streaks.get(name, 0) + 1 if side * (value - bound) > 0 else 0
        if self.streaks[name] < self._limits.patience:
            return None
        return f"{name} {value:.4g} {'above' if side > 0 else 'below'} {bound:.4g} for {self.streaks[name]} steps"


def passed(step: StepRecord, bounds: Warnings) -> dict[str, tuple[float, float]]:
    """{field of the step: (its value, the bound that it is above)} of every warning."""
    watched = {
        "kl/max": (step.kl.get("max"), bounds.kl_token_max),
        "grad_norm": (step.grad_norm, bounds.grad_norm_max),
    }
    return {
        name: (value, bound)
        for name, (value, bound) in watched.items()
        if value is not None and bound is not None and value > bound
    }


def warnings_of(steps: Sequence[StepRecord], bounds: Warnings) -> list[str]:
    """A sentence for each bound that steps of a run passed: how many of them, and the furthest."""
    beyond: dict[str, list[tuple[float, int]]] = {}  # (value, step)
    limits: dict[str, float] = {}
    for step in steps:
        for name, (value, limit) in passed(step, bounds).items():
            limits[name] = limit
            beyond.setdefault(name, []).append((value, step.step))
    sentences = []
    for name, values in beyond.items():
        largest, at = max(values)
        counted = f"{len(values)} of {len(steps)} steps"
        sentences.append(f"{name} above {limits[name]:g} in {counted}, largest {largest:.4g} in step {at}")
    return sentences


@final
class Control:
    """The controllers of one run: beta, SEPA's lambda and the tripwires.

    Args:
        objective: with the numbers that the controllers lead to (`beta`, `sepa_lambda`).
        config: how they get there.
    """

    def __init__(self, objective: LossSettings, config: ControlConfig) -> None:
        self._objective = objective
        self._beta = BetaController(
            objective.beta,
            warmup_steps=config.beta_warmup_steps,
            target_kl=config.target_kl,
            horizon=config.kl_horizon,
            beta_min=config.beta_min,
            beta_max=config.beta_max,
        )
        self._sepa = SepaSchedule(
            objective.sepa_lambda,
            ramp_steps=config.sepa_ramp_steps,
            delay_steps=config.sepa_delay_steps,
            gate=config.sepa_gate,
        )
        self._tripwires = Tripwires(config.limits)
        self.warnings = config.warnings
        self.stopped: str | None = None  # why the run must stop

    def objective(self) -> LossSettings:
        """The objective of the coming step."""
        return replace(self._objective, beta=self._beta.value, sepa_lambda=self._sepa.value)

    def finish_step(self, *, solve_rate: float | None, **step: Unpack[Watched]) -> dict[str, float]:
        """Take in a step; `stopped` says whether it was the last.

        Args:
            step: what was measured in it.
            solve_rate: share of the policy's rollouts that solve their problem; None: of none is it known.

        Returns:
            What the controller of beta did, by wire names without "kl/"; empty without a KL.
        """
        self.stopped = self._tripwires.check(**step)
        self._sepa.update(solve_rate)
        kl_mean = step["kl_mean"]
        return {} if kl_mean is None or self.stopped else self._beta.update(kl_mean)

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
