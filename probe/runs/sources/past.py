"""Sampling from earlier weights: ahead of training (`rollouts.prefetch`), and from the earlier checkpoint.

Batch b is sampled from the policy before batch b - n, the first n + 1 batches from the policy at the start. The earlier
checkpoint has that policy's weights after its newest multiple of `every` steps. `PastWeights` keeps these weights. They
are part of every checkpoint, so that a resumed run samples from the same weights. It may find coming batches on disk,
complete, in part or not at all: missing rollouts are sampled again, with the same result.

In one process nothing overlaps: a batch is sampled when a step needs it, with the old weights restored. The rollouts
are the same as n batches earlier, and a run that stops early has sampled none in vain. A server samples the next
batches in a thread while a step is computed (`Ahead`).
"""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Any, final

from torch import Tensor

from extraction.adapters.trained import Trained
from probe.runs.sources.served import PushedEngine
from probe.settings.rollouts import RolloutConfig
from replay_pools.engines import Engine


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


@final
class Ahead:
    """A thread that samples the next batches on a server: `sample` takes a batch and an engine.

    Close it before the server's engine: closing finishes the current batch and drops the later ones.
    """

    def __init__(
        self, past: PastWeights, engine: PushedEngine, num_batches: int, sample: Callable[[int, Engine], object]
    ) -> None:
        self._past, self._engine, self._num_batches, self._sample = past, engine, num_batches, sample
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._started: dict[int, Future[None]] = {}  # by batch
        self._adapters: list[Path] = []

    def wait(self, batch: int) -> None:
        """Start this batch and the next n from the current policy, and wait for this one."""
        for ahead in range(batch, min(batch + self._past.prefetch + 1, self._num_batches)):
            if ahead not in self._started:  # several after a resume
                with self._past.sampling(ahead):
                    self._adapters.append(self._engine.save(f"-batch{ahead}"))
                # In this context, so that waiting is reported.
                run, before = copy_context().run, self._started.get(ahead - 1)
                self._started[ahead] = self._thread.submit(run, self._make, ahead, self._adapters[-1], before)
        self._started[batch].result()

    def close(self) -> None:
        """End the thread and delete unused adapters."""
        self._thread.shutdown(cancel_futures=True)
        for adapter in self._adapters:
            shutil.rmtree(adapter, ignore_errors=True)

    def _make(self, batch: int, adapter: Path, before: Future[None] | None) -> None:
        # No batch follows a failed one, because its problems may depend on the batches before it.
        if before is not None:
            before.result()
        with ExitStack() as stack:
            self._sample(batch, self._engine.push(adapter, stack))
