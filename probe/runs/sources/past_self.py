"""PastSelf: the policy of a training as it was some steps ago, kept to sample from.

One copy of the coordinates is kept: those after the newest multiple of `every` steps, at first those of the start. It
takes the place of the present ones while it samples and in no other moment, and it is part of every checkpoint, so that
a resumed run samples from the same past. With `every` at least the number of steps it stays the policy at the start.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from extraction.adapters.interface import Coordinates


@final
class PastSelf:
    """The coordinates of a policy after the newest multiple of `every` optimizer steps.

    Args:
        coordinates: of the policy in training.
        every: steps.
    """

    def __init__(self, coordinates: Coordinates, *, every: int) -> None:
        self._coordinates, self._every = coordinates, every
        self._values = coordinates.values()
        self.steps = 0  # that the policy has made

    def finish_step(self) -> None:
        """Call it after every optimizer step."""
        self.steps += 1
        if self.steps % self._every == 0:
            self._values = self._coordinates.values()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While open, the policy is its past self."""
        with self._coordinates.at(self._values):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Steps made, and the coordinates {module: (r,)}."""
        return {"steps": self.steps, "values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        device = self._coordinates.model.device
        self.steps = state["steps"]
        self._values = {module: value.to(device) for module, value in state["values"].items()}
