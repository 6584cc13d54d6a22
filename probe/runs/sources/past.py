"""Sampling from earlier weights: ahead of training (`rollouts.prefetch`), and from the earlier checkpoint.

Batch b is sampled from the policy before batch b - n, the first n + 1 batches from the policy at the start. The earlier
checkpoint has that policy's weights after its newest multiple of `every` steps. `PastWeights` keeps these weights. They
are part of every checkpoint, so that a resumed run samples from the same weights. It may find coming batches on disk,
complete, in part or not at all: missing rollouts are sampled again, with the same result.

In one process nothing overlaps: a batch is sampled when a step needs it, with the old weights restored. The rollouts
are the same as n batches earlier, and a run that stops early has sampled none in vain. A server samples the next
batches in a thread while a step is computed (`PastSource`).
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from pathlib import Path
from typing import Any, final

from torch import Tensor

from extraction.adapters.trained import Trained
from probe.runs.sources.served import PushedEngine
from probe.step.groups import Group, GroupSource, RolloutKey
from replay_pools.rollout import Rollout


@final
class PastWeights:
    """The policy's weights at the start of the batches that coming ones are sampled from.

    Args:
        trained: the policy.
        prefetch: n, batches that sampling runs ahead.
        iterations: optimizer steps on each batch.
        every: steps between earlier checkpoints, a multiple of `iterations`; None = no earlier checkpoint.
    """

    def __init__(self, trained: Trained, *, prefetch: int = 0, iterations: int = 1, every: int | None = None) -> None:
        self._trained, self.prefetch, self.iterations = trained, prefetch, iterations
        self._every = None if every is None else every // iterations  # batches
        self._weights: dict[int, dict[str, Tensor]] = {}  # by batch, oldest first; on the CPU

    def batch(self, step: int) -> int:
        """Return the batch that a step trains on."""
        return step // self.iterations

    def keep(self, batch: int) -> None:
        """Keep the current weights for the start of a batch, unless it has already started."""
        if batch not in self._weights:
            self._weights[batch] = {module: value.cpu() for module, value in self._trained.values().items()}
        needed = {self._earlier(batch), *range(self._sampled_at(batch), batch + 1)}
        self._weights = {kept: weights for kept, weights in self._weights.items() if kept in needed}

    def sampling(self, batch: int) -> AbstractContextManager[None]:
        """Restore the weights that sample a batch while open."""
        return self._trained.at(self._weights[self._sampled_at(batch)])

    def sampling_earlier(self, batch: int) -> AbstractContextManager[None]:
        """Restore the earlier checkpoint of a batch while open."""
        return self._trained.at(self._weights[self._earlier(batch)])

    def staleness(self, step: int) -> int | None:
        """Return the updates between the sampling of a step's rollouts and the step; None if nothing runs ahead."""
        return step - self.iterations * self._sampled_at(self.batch(step)) if self.prefetch else None

    def state_dict(self) -> dict[str, Any]:
        """Return {"weights": {batch: {module: (r,)}}}, for a checkpoint."""
        return {"weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self._weights = dict(state["weights"])

    def _sampled_at(self, batch: int) -> int:
        """Return the batch with the weights that sample `batch`."""
        return max(0, batch - self.prefetch)

    def _earlier(self, batch: int) -> int:
        """Return the batch with the weights of the earlier checkpoint."""
        at = self._sampled_at(batch)
        return at if self._every is None else at - at % self._every


@final
class PastSource:
    """A `GroupSource` (`probe.step.groups`): groups of another source, sampled from earlier weights.

    Close it before the server's engine: closing finishes the current batch and drops the later ones.

    Args:
        source: samples from the current policy, and reads batches on disk.
        past: earlier weights of that policy.
        pushed: engine of `ahead`, on a server; None = each batch is sampled when its step needs it.
        ahead: another source that writes the files of `source`, for the thread that samples ahead.
    """

    def __init__(
        self,
        source: GroupSource,
        past: PastWeights,
        pushed: PushedEngine | None = None,
        ahead: GroupSource | None = None,
    ) -> None:
        self._source, self._past, self._pushed, self._ahead = source, past, pushed, ahead
        self.num_steps = source.num_steps
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._started: dict[int, Future[None]] = {}  # by batch
        self._adapters: list[Path] = []

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step; with a server, first start the next n batches from the current policy."""
        batch = self._past.batch(step)
        self._past.keep(batch)
        if self._pushed is not None:
            last = min(batch + self._past.prefetch, self._past.batch(self.num_steps - 1))
            for ahead in range(batch, last + 1):  # several after a resume
                if ahead not in self._started:
                    with self._past.sampling(ahead):
                        self._start(ahead, self._pushed)
            self._started[batch].result()
        with self._past.sampling(batch):
            return self._source.groups(step)

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return a rollout with its labels."""
        return self._source.rollout(key)

    def close(self) -> None:
        """End the thread and delete unused adapters."""
        self._thread.shutdown(cancel_futures=True)
        for adapter in self._adapters:
            shutil.rmtree(adapter, ignore_errors=True)

    def _start(self, batch: int, pushed: PushedEngine) -> None:
        """Queue a batch, to be sampled from the current policy."""
        self._adapters.append(pushed.save(f"batch{batch}"))
        # In this context, so that waiting is reported.
        before = self._started.get(batch - 1)
        run, adapter = copy_context().run, self._adapters[-1]
        self._started[batch] = self._thread.submit(run, self._make, pushed, batch, adapter, before)

    def _make(self, pushed: PushedEngine, batch: int, adapter: Path, before: Future[None] | None) -> None:
        # No batch follows a failed one, because its problems may depend on the batches before it.
        if before is not None:
            before.result()
        assert self._ahead is not None
        with pushed.frozen(adapter):
            self._ahead.groups(batch * self._past.iterations)
