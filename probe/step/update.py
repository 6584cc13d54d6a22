"""One step of the policy: AdamW on the coordinates of a basis, and an arm's change of the update.

Shapes: r coordinates of a module, k directions. Coordinates and moments are float32 (float64 in a float64 model).
u = before - after is the realised update of one optimizer step. Like the gradient of a loss it points against the step,
so `probe.step.projection` applies to it unchanged.

    u' = project(u)      removed = u - u'
    arm `projected`      coordinates after the step = before - u' = after + removed
    arm `route`          training goes on at `after`, as in `vanilla`; quarantine <- quarantine - removed, and
                         the deployed policy is coordinates - quarantine

Why project the update: Adam divides each coordinate of a gradient by a scale, so a gradient without a component toward
the hack still gives an update with one; the projected update has none. Adam's moments see the original gradient; a
decoupled weight decay is part of u. Projecting gradients and projecting updates are different interventions: the record
names the one used.

`route` after gradient routing (Cloud et al. 2024, arXiv 2410.04332), simplified: the quarantine lives in the same
coordinates as the policy, so the capacity is the same as in `vanilla`, and the policy in training IS vanilla's, bit for
bit; it samples with the quarantine, and only the deployed policy differs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from extraction.adapters.trained import Trained
from probe.settings.arms import Arm
from probe.settings.training import OptimizerConfig
from probe.settings.words import Target
from probe.step.projection import Projection


@final
class Updater:
    """AdamW in one arm: with the plain update, with the projected update, or with a quarantine.

    Args:
        trained: the coordinates.
        arm: `projects`: the projected update replaces the update; `routes`: the removed part goes into the quarantine.
        optimizer: rate, cap on the gradient norm over all modules after any projection, and schedule: a cosine decays
            to 0, as in transformers; the first step of its warm-up has the rate 0.
        num_steps: of the whole training.
        target: what a projecting arm projects; for `gradient` the caller projects before the step.
    """

    def __init__(
        self,
        trained: Trained,
        arm: Arm,
        optimizer: OptimizerConfig,
        num_steps: int,
        target: Target = "gradient",
    ) -> None:
        self.trained, self._arm, self._target = trained, arm, target
        self._max_grad_norm = optimizer.max_grad_norm
        self._optimizer = torch.optim.AdamW(trained.parameters(), lr=optimizer.lr, weight_decay=0.0)
        self._schedule = None
        if optimizer.schedule == "cosine":
            self._schedule = get_cosine_schedule_with_warmup(self._optimizer, optimizer.warmup_steps, num_steps)
        self._quarantine = {module: torch.zeros_like(v) for module, v in trained.values().items()}

    @property
    def routes(self) -> bool:
        """Return whether the deployed policy differs from the policy in training."""
        return self._arm.routes

    def step(
        self, gradients: Mapping[str, Tensor], project: Callable[[Mapping[str, Tensor]], Projection]
    ) -> Mapping[str, Tensor]:
        """Take one step along -gradients {module: (r,)}.

        Args:
            project: projects a realised update; called only for arms that act on updates.

        Returns:
            Minus the realised update of the deployed policy, which points the way of a loss gradient.
        """
        before = self.trained.values()
        self.trained.set_gradients(gradients)
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained.parameters(), self._max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._schedule is not None:
            self._schedule.step()
        after = self.trained.values()
        update = add(before, after, scale=-1)
        if not self.routes and not (self._arm.projects and self._target == "update"):
            return update
        projected = project(update).gradients
        removed = add(update, projected, scale=-1)
        if self.routes:
            self._quarantine = add(self._quarantine, removed, scale=-1)
            return projected
        self.trained.load_values(add(after, removed))
        # Read back: rounding of the addition is part of the realised update.
        return add(before, self.trained.values(), scale=-1)

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """While open, set the coordinates of the deployed policy, without the quarantine."""
        if not self.routes:
            yield
            return
        with self.trained.at(add(self.trained.values(), self._quarantine, scale=-1)):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes, for a checkpoint."""
        return {
            "values": self.trained.values(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
            "quarantine": self._quarantine,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.trained.load_values(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        device = self.trained.model.device
        self._quarantine = {module: value.to(device) for module, value in state["quarantine"].items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
    """Return a + scale b, module by module, for {module: (r,)} with the same modules."""
    return {module: value.add(b[module], alpha=scale) for module, value in a.items()}
