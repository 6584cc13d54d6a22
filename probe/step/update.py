"""One step of the policy: AdamW on the coordinates of a basis, and what an arm does to the update that it made.

    Stepper     AdamW, with an optional cap on the gradient's norm and an optional warm-up and cosine decay
    Updater     a Stepper for one arm: steps as it is, gates the realised update, or parks the removed part

Shapes: r coordinates of a module, k directions. Coordinates and moments are float32 (float64 in a float64 model).
u = before - after is the realised update of one optimizer step: like a gradient of a loss it points against the step,
so the gates of `probe.step.projection` apply to it as they are.

    u' = gate(u)         removed = u - u'
    arm `projected`      coordinates after the step = before - u' = after + removed
    arm `route`          training goes on at `after`, as in `vanilla`; quarantine <- quarantine - removed, and
                         the deployed policy is coordinates - quarantine

Why gate the update: Adam divides each coordinate of a gradient by its own scale, so that a gradient without hack-ward
part still gives an update with one; the gated update has none. Adam's moments see the gradient as it is; a decoupled
weight decay is part of u. A gradient gate and an update gate are different interventions: the record names the one that
was used.

`route` after gradient routing (Cloud et al. 2024, arXiv 2410.04332), simplified: the quarantine lives in the same
coordinates as the policy, so the capacity is that of `vanilla` and the policy in training IS vanilla's, bit for bit;
what is learnt there steers what is sampled, and only the deployed policy differs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from extraction.adapters.interface import Coordinates
from probe.settings.arms import Arm
from probe.settings.words import Gate, Target
from probe.step.projection import Projection, project_modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """Linear warm-up and cosine decay to 0, as in transformers: the first step of a warm-up has the rate 0."""

    warmup_steps: int
    steps: int  # in all


class Stepper:
    """AdamW on the coordinates of a basis; each step returns the update that it made.

    Args:
        coordinates: what is trained.
        lr: at the end of the warm-up.
        weight_decay: decoupled; part of the realised update.
        max_grad_norm: cap on the norm of the gradient over all modules, after any gate; None = no cap.
        decay: None = a constant rate.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        *,
        lr: float,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        decay: Decay | None = None,
    ) -> None:
        self.coordinates = coordinates
        self._max_grad_norm = max_grad_norm
        self._optimizer = torch.optim.AdamW(coordinates.parameters(), lr=lr, weight_decay=weight_decay)
        self._schedule = None
        if decay is not None:
            self._schedule = get_cosine_schedule_with_warmup(self._optimizer, decay.warmup_steps, decay.steps)

    def step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step along -gradients {module: (r,)}.

        Returns:
            Minus the realised update, which points the way of a loss gradient.
        """
        before = self.coordinates.values()
        self.coordinates.set_gradients(gradients)
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.coordinates.parameters(), self._max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._schedule is not None:
            self._schedule.step()
        return {module: before[module] - value for module, value in self.coordinates.values().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes: coordinates, moments, schedule. For a checkpoint."""
        return {
            "values": self.coordinates.values(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.coordinates.load_values(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])


# (coordinates before a step, coordinates after it) -> the gated update: `split_update` with an arm's gate.
Split = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], "SplitUpdate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUpdate:
    """A realised update and the part that the gate took out of it; {module: (r,)}."""

    removed: dict[str, Tensor]  # u - u'; exactly 0 where the gate took nothing
    projection: Projection  # its `gradients` are u'; the measures are of u and u'


def split_update(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    directions: Mapping[str, Tensor],
    *,
    gate: Gate,
    overshoot: float = 1.0,
    preserve_magnitude: bool = False,
) -> SplitUpdate:
    """Gate the update that one optimizer step made.

    Args:
        before: {module: (r,)} coordinates before the step.
        after: coordinates after it.
        directions: {module: (k, r)} for the same modules.
        gate, overshoot, preserve_magnitude: as `project_modules`.

    Raises:
        ValueError: as `project_modules`.
    """
    update = add(before, after, scale=-1)
    projection = project_modules(
        update, directions, gate=gate, overshoot=overshoot, preserve_magnitude=preserve_magnitude
    )
    return SplitUpdate(removed=add(update, projection.gradients, scale=-1), projection=projection)


@final
class Updater:
    """Steps the policy of one arm: with the update as it is, with the gated update, or with a quarantine.

    Args:
        stepper: of the coordinates in training.
        arm: `projects`: the gated update replaces the update; `routes`: the removed part goes into the quarantine.
        target: what a projecting arm's gate acts on; with `gradient` the caller gates the gradient before the step.
    """

    def __init__(self, stepper: Stepper, arm: Arm, target: Target = "gradient") -> None:
        self._stepper, self._arm, self._target = stepper, arm, target
        self.coordinates = stepper.coordinates
        self._quarantine = {module: torch.zeros_like(v) for module, v in self.coordinates.values().items()}

    @property
    def routes(self) -> bool:
        """Whether the deployed policy differs from the policy in training."""
        return self._arm.routes

    def step(self, gradients: Mapping[str, Tensor], split: Split) -> Mapping[str, Tensor]:
        """One step along -gradients {module: (r,)}.

        Args:
            split: gates a realised update; called only for an arm that acts on updates.

        Returns:
            Minus the realised update of the deployed policy, which points the way of a loss gradient.
        """
        gates_update = self._arm.projects and self._target == "update"
        if not (gates_update or self.routes):
            return self._stepper.step(gradients)
        before = self.coordinates.values()
        self._stepper.step(gradients)
        after = self.coordinates.values()
        parts = split(before, after)
        if self.routes:
            self._quarantine = add(self._quarantine, parts.removed, scale=-1)
            # The deployed policy moves by the gated update alone.
            return parts.projection.gradients
        self.coordinates.load_values(add(after, parts.removed))
        # Read back: rounding of the addition is part of the realised update.
        return add(before, self.coordinates.values(), scale=-1)

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """While open, the coordinates are those of the deployed policy, without the quarantine."""
        if not self.routes:
            yield
            return
        with self.coordinates.at(add(self.coordinates.values(), self._quarantine, scale=-1)):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes, for a checkpoint."""
        return {"stepper": self._stepper.state_dict(), "quarantine": self._quarantine}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._stepper.load_state_dict(state["stepper"])
        device = self.coordinates.model.device
        self._quarantine = {module: value.to(device) for module, value in state["quarantine"].items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
    """a + scale b, module by module, of {module: (r,)}.

    Raises:
        ValueError: different modules.
    """
    if different := sorted(a.keys() ^ b.keys()):
        raise ValueError(f"expected the same modules, found {', '.join(different[:3])} on one side only")
    return {module: value.add(b[module], alpha=scale) for module, value in a.items()}
