"""The policy as it was: weights that sample ahead of training (`rollouts.prefetch`), and its past self, to sample from.

    PastWeights   at the start of the newest n + 1 batches: batch b is sampled from the policy that has made the updates
                  of the batches before b - n, the first n + 1 batches from the policy at the start
    PastSelf      after the newest multiple of `every` steps; where sampling runs ahead, of the steps of the policy that
                  samples

Both are part of every checkpoint: a resumed run samples from the same past.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, final

from torch import Tensor

from extraction.adapters.interface import Coordinates


@final
class PastWeights:
    """The policy's weights at the start of the newest n + 1 batches.

    Args:
        coordinates: of the policy.
        prefetch: n, at least 1.
        iterations: optimizer steps on each batch.
    """

    def __init__(self, coordinates: Coordinates, *, prefetch: int, iterations: int) -> None:
        self._coordinates, self.prefetch, self.iterations = coordinates, prefetch, iterations
        self._weights: dict[int, dict[str, Tensor]] = {}  # by batch, oldest first; on the CPU

    def batch(self, step: int) -> int:
        """The batch that a step trains on."""
        return step // self.iterations

    def keep(self, batch: int) -> None:
        """Remember the present weights as those at the start of a batch, unless it has started already."""
        if batch not in self._weights:
            self._weights[batch] = {module: value.cpu() for module, value in self._coordinates.values().items()}
        for old in [kept for kept in self._weights if kept < batch - self.prefetch]:
            del self._weights[old]

    def sampling(self, batch: int) -> AbstractContextManager[None]:
        """While open, the policy is the one that samples a batch."""
        return self._coordinates.at(self._weights[self._sampled_at(batch)])

    def sampler(self, batch: int) -> tuple[int, Mapping[str, Tensor]]:
        """(steps made, coordinates {module: (r,)}) of the policy that samples a batch."""
        sampled_at = self._sampled_at(batch)
        return self.iterations * sampled_at, self._weights[sampled_at]

    def staleness(self, step: int) -> int:
        """Updates between the policy that samples the rollouts of a step and the one that takes the step."""
        return step - self.iterations * self._sampled_at(self.batch(step))

    def state_dict(self) -> dict[str, Any]:
        """{"weights": {batch: {module: (r,)}}}, for a checkpoint."""
        return {"weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._weights = dict(state["weights"])

    def _sampled_at(self, batch: int) -> int:
        """The batch at whose start the policy samples another one."""
        return max(0, batch - self.prefetch)


@final
class PastSelf:
    """The coordinates of a policy after the newest multiple of `every` optimizer steps, at first those of the start.

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
        steps, values = self.steps, self._coordinates.values()
        if self._past is not None:
            steps, values = self._past.sampler(self._past.batch(self.steps))
        if steps % self._every == 0:
            # Copies: tensors that a checkpoint has twice would be written in other bytes after a resume.
            self._values = {module: value.clone() for module, value in values.items()}

    def restored(self) -> AbstractContextManager[None]:
        """While open, the policy is its past self."""
        return self._coordinates.at(self._values)

    def state_dict(self) -> dict[str, Any]:
        """Steps made by the policy in training, and the coordinates {module: (r,)} of its past self."""
        return {"steps": self.steps, "values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        device = self._coordinates.model.device
        self.steps = state["steps"]
        self._values = {module: value.to(device) for module, value in state["values"].items()}
