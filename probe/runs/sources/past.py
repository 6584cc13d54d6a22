"""Sampling from earlier weights: ahead of training (`rollouts.prefetch`), and from the earlier checkpoint.

Batch b is sampled from the policy before batch b - n, the first n + 1 batches from the policy at the start. The earlier
checkpoint has that policy's weights after its newest multiple of `every` steps. `PastWeights` keeps these weights. They
are part of every checkpoint, so that a resumed run samples from the same weights. It may find coming batches on disk,
complete, in part or not at all: missing rollouts are sampled again, with the same result.

In one process nothing overlaps: a batch is sampled when a step needs it, with the old weights restored. The rollouts
are the same as n batches earlier, and a run that stops early has sampled none in vain. A server samples the next
batches in a thread while a step is computed (`sampling_ahead`).
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, final

from torch import Tensor

from extraction.adapters.trained import Trained
from probe.runs.sources.served import PushedEngine
from probe.settings.rollouts import RolloutConfig
from replay_pools.generate import Engine


@final
class PastWeights:
    """The policy's weights at the start of the batches that coming ones are sampled from."""

    def __init__(self, trained: Trained, config: RolloutConfig) -> None:
        earlier = config.earlier_checkpoint
        self._trained, self.prefetch, self._iterations = trained, config.prefetch, config.iterations
        self._every = 1 if earlier is None else earlier.every // config.iterations  # batches
        self._weights: dict[int, dict[str, Tensor]] = {}  # by batch, oldest first; on the CPU

    def keep(self, batch: int) -> None:
        """Keep the current weights for the start of a batch, unless it has already started."""
        if batch not in self._weights:
            self._weights[batch] = {module: value.cpu() for module, value in self._trained.values().items()}
        sampled = self._sampled_at(batch)
        needed = {sampled - sampled % self._every, *range(sampled, batch + 1)}
        self._weights = {kept: weights for kept, weights in self._weights.items() if kept in needed}

    def sampling(self, batch: int, *, earlier: bool = False) -> AbstractContextManager[None]:
        """Restore the weights that sample a batch, or those of its earlier checkpoint, while open."""
        sampled = self._sampled_at(batch)
        return self._trained.at(self._weights[sampled - sampled % self._every if earlier else sampled])

    def staleness(self, step: int) -> int | None:
        """Return the updates between the sampling of a step's rollouts and the step; None if nothing runs ahead."""
        return step - self._iterations * self._sampled_at(step // self._iterations) if self.prefetch else None

    def state_dict(self) -> dict[str, Any]:
        """Return {"weights": {batch: {module: (r,)}}}, for a checkpoint."""
        return {"weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self._weights = dict(state["weights"])

    def _sampled_at(self, batch: int) -> int:
        """Return the batch with the weights that sample `batch`."""
        return max(0, batch - self.prefetch)


@contextmanager
def sampling_ahead(
    past: PastWeights, engine: PushedEngine, num_batches: int, sample: Callable[[int, Engine], object]
) -> Iterator[Callable[[int], None]]:
    """Open a function that starts a batch and the next n from the current policy, in a thread, and waits for the first.

    `sample` takes a batch and an engine. Close this before the server's engine: closing finishes the current batch and
    drops the later ones.
    """
    started: dict[int, Future[None]] = {}  # by batch
    adapters: list[Path] = []

    def make(batch: int, adapter: Path) -> None:
        # No batch follows a failed one, because its problems may depend on the batches before it.
        if batch - 1 in started:
            started[batch - 1].result()
        with ExitStack() as stack:
            sample(batch, engine.push(adapter, stack))

    def wait(batch: int) -> None:
        for ahead in range(batch, min(batch + past.prefetch + 1, num_batches)):
            if ahead not in started:  # several after a resume
                with past.sampling(ahead):
                    adapters.append(engine.save(f"-batch{ahead}"))
                # In this context, so that waiting is reported.
                started[ahead] = thread.submit(copy_context().run, make, ahead, adapters[-1])
        started[batch].result()

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    try:
        yield wait
    finally:
        thread.shutdown(cancel_futures=True)
        for adapter in adapters:
            shutil.rmtree(adapter, ignore_errors=True)  # unused ones
