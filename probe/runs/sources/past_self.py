"""PastSelf: the policy of a training as it was some steps ago, kept to sample from.

One copy of the coordinates is kept: those after the newest multiple of `every` steps, at first those of the start. It
takes the place of the present ones while it samples and in no other moment, and it is part of every checkpoint, so that
a resumed run samples from the same past. With `every` at least the number of steps it stays the policy at the start.

Where sampling runs ahead of training, the steps are those of the policy that samples (`prefetch.PastWeights`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor

from extraction.adapters.interface import Coordinates
from probe.runs.sources.prefetch import PastWeights


@final
class PastSelf:
    """The coordinates of a policy after the newest multiple of `every` optimizer steps.

    Args:
        coordinates: of the policy in training.
        every: steps; a multiple of those on a batch.
        past: the weights that sample, where sampling runs ahead; None: the policy in training samples.
    """

    def __init__(self, coordinates: Coordinates, *, every: int, past: PastWeights | None = None) -> None:
        self._coordinates, self._every, self._past = coordinates, every, past
        self._values = coordinates.values()
        self.steps = 0  # that the policy has made

    def finish_step(self) -> None:
        """Call it after every optimizer step."""
        self.steps += 1
        steps, values = self._sampler()
        if steps % self._every == 0:
            # Copies: tensors that a checkpoint has twice would be written in other bytes after a resume.
            self._values = {module: value.clone() for module, value in values.items()}

    def _sampler(self) -> tuple[int, Mapping[str, Tensor]]:
        """(steps made, coordinates) of the policy that samples the batch of the coming step."""
        if self._past is None:
            return self.steps, self._coordinates.values()
        return self._past.sampler(self._past.batch(self.steps))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While open, the policy is its past self."""
        with self._coordinates.at(self._values):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Steps made by the policy in training, and the coordinates {module: (r,)} of its past self."""
        return {"steps": self.steps, "values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        device = self._coordinates.model.device
        self.steps = state["steps"]
        self._values = {module: value.to(device) for module, value in state["values"].items()}
