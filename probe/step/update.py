"""One step of the policy: AdamW on the coordinates of a basis, and an arm's change of the update.

Shapes: r coordinates of a module, k directions. Coordinates and moments are float32 (float64 in a float64 model).
u = before - after is the realised update of one optimizer step. Like the gradient of a loss it points against the step,
so `probe.step.projection` applies to it unchanged.

    u' = project(u)      removed = u - u'
    arm `projected`      coordinates after the step = before - u' = after + removed
    arm `projected-at-deployment`   training goes on at `after`, as in `vanilla`; parked <- parked - removed, and the
                                    deployed policy is coordinates - parked
    arm `quarantine`                B = [B_deployed, B_quarantine], half of the LoRA's columns each; a flagged rollout's
                                    gradient moves B_quarantine alone, others move both; deployed: B_quarantine = 0

Why project the update: Adam divides each coordinate of a gradient by a scale, so a gradient without a component toward
the hack still gives an update with one; the projected update has none. Adam's moments see the original gradient; a
decoupled weight decay is part of u. Projecting gradients and projecting updates are different interventions: the record
names the one used.

`quarantine` is gradient routing (Cloud et al. 2024, arXiv 2410.04332; SGTM, arXiv 2512.05648) on a LoRA: unflagged
rollouts move both halves, so that hacks which the monitor misses can be absorbed by the half that already hacks.
`projected-at-deployment` has no capacity of its own: the policy in training IS vanilla's, bit for bit.
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
    """AdamW in one arm: with the plain update, with the projected update, or with parts that are not deployed.

    Args:
        trained: the coordinates.
        arm: `projects`: the projected update replaces the update; `at_deployment`: the removed part is parked.
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
        self._parked = {module: torch.zeros_like(v) for module, v in trained.values().items()}
        self.quarantine = quarantined(trained) if arm.quarantines else None

    @property
    def is_deployed_apart(self) -> bool:
        """Return True if the deployed policy differs from the policy in training."""
        return self._arm.at_deployment or self._arm.quarantines

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
        if not self._arm.at_deployment and not (self._arm.acts and self._target == "update"):
            return update
        projected = project(update).gradients
        removed = add(update, projected, scale=-1)
        if self._arm.at_deployment:
            self._parked = add(self._parked, removed, scale=-1)
            return projected
        self.trained.load_values(add(after, removed))
        # Read back: rounding of the addition is part of the realised update.
        return add(before, self.trained.values(), scale=-1)

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """While open, set the coordinates of the deployed policy."""
        if not self.is_deployed_apart:
            yield
            return
        deployed = add(self.trained.values(), self._parked, scale=-1)
        if self.quarantine is not None:
            deployed = {module: value * ~self.quarantine[module] for module, value in deployed.items()}
        with self.trained.at(deployed):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes, for a checkpoint."""
        return {
            "values": self.trained.values(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
            "parked": self._parked,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.trained.load_values(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        device = self.trained.model.device
        self._parked = {module: value.to(device) for module, value in state["parked"].items()}


def quarantined(trained: Trained) -> dict[str, Tensor]:
    """Mark the coordinates of B (d_out, rank) in the second half of its columns, {module: (r,) bool}."""
    rank = trained.start.fingerprint["rank"]
    columns = torch.arange(rank, device=trained.model.device) >= rank // 2
    return {module: columns.repeat(size // rank) for module, size in trained.sizes.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
    """Return a + scale b, module by module, for {module: (r,)} with the same modules."""
    return {module: value.add(b[module], alpha=scale) for module, value in a.items()}
