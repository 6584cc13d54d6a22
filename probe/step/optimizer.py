"""AdamW on the coordinates of one basis: an optional cap on the gradient's norm, an optional warm-up and cosine decay.

Shapes: r coordinates of a module. Coordinates and moments are float32 (float64 in a float64 model).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from extraction.adapters.coordinates import Coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """Linear warm-up and cosine decay to 0, both of transformers: the first step of a warm-up has the rate 0."""

    warmup_steps: int
    steps: int  # in all


class Stepper:
    """Steps coordinates along gradients, and says what the step really was.

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
        self._schedule = (
            None if decay is None else get_cosine_schedule_with_warmup(self._optimizer, decay.warmup_steps, decay.steps)
        )

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
        """Everything that a step changes: coordinates, moments, schedule."""
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
