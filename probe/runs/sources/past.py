"""Sampling from earlier weights: ahead of training (`rollouts.prefetch`), and from the earlier checkpoint.

    PastWeights          weights at the start of the newest n + 1 batches. Batch b is sampled from the policy before
                         batch b - n, the first n + 1 batches from the policy at the start
    EarlierCheckpoint    weights after the newest multiple of `every` steps (of the sampling policy's steps, if
                         sampling runs ahead)
    PrefetchedSource     groups of another source, each batch sampled from weights that are n batches old
    Background           a thread in which a server samples the next batches while a step is computed

The first two are part of every checkpoint, so that a resumed run samples from the same weights. It may find coming
batches on disk, complete, in part or not at all. Missing rollouts are sampled from the checkpoint's weights, with the
same result.

In one process nothing overlaps: a batch is sampled when a step needs it, with the old weights restored. The rollouts
are the same as n batches earlier, and a run that stops early has sampled none in vain.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, final

from torch import Tensor

from extraction.adapters.trained import Trained
from probe.runs.sources.served import PushedEngine, load_adapter, unload_adapter
from probe.step.groups import Group, GroupSource, RolloutKey
from replay_pools.engines import Sampler
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Completion, Rollout
from replay_pools.serving import ServerEngine


@final
class PastWeights:
    """The policy's weights at the start of the newest n + 1 batches.

    Args:
        trained: the policy.
        prefetch: n >= 1.
        iterations: optimizer steps on each batch.
    """

    def __init__(self, trained: Trained, *, prefetch: int, iterations: int) -> None:
        self._trained, self.prefetch, self.iterations = trained, prefetch, iterations
        self._weights: dict[int, dict[str, Tensor]] = {}  # by batch, oldest first; on the CPU

    def batch(self, step: int) -> int:
        """Return the batch that a step trains on."""
        return step // self.iterations

    def keep(self, batch: int) -> None:
        """Keep the current weights for the start of a batch, unless it has already started."""
        if batch not in self._weights:
            self._weights[batch] = {module: value.cpu() for module, value in self._trained.values().items()}
        for old in [kept for kept in self._weights if kept < batch - self.prefetch]:
            del self._weights[old]

    def sampling(self, batch: int) -> AbstractContextManager[None]:
        """Restore the weights that sample a batch while open."""
        return self._trained.at(self._weights[self._sampled_at(batch)])

    def sampler(self, batch: int) -> tuple[int, Mapping[str, Tensor]]:
        """Return (steps made, coordinates {module: (r,)}) of the policy that samples a batch."""
        sampled_at = self._sampled_at(batch)
        return self.iterations * sampled_at, self._weights[sampled_at]

    def staleness(self, step: int) -> int:
        """Return the number of updates between the sampling of a step's rollouts and the step."""
        return step - self.iterations * self._sampled_at(self.batch(step))

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
class EarlierCheckpoint:
    """The coordinates of a policy after the newest multiple of `every` optimizer steps, initially the first ones.

    Args:
        trained: the policy.
        every: steps; a multiple of the steps on a batch.
        past: the sampling weights, if sampling runs ahead; None = the policy in training.
    """

    def __init__(self, trained: Trained, *, every: int, past: PastWeights | None = None) -> None:
        self._trained, self._every, self._past = trained, every, past
        self._values = trained.values()
        self.steps = 0  # optimizer steps made

    def finish_step(self) -> None:
        """Call it after every optimizer step."""
        self.steps += 1
        steps, values = self.steps, self._trained.values()
        if self._past is not None:
            steps, values = self._past.sampler(self._past.batch(self.steps))
        if steps % self._every == 0:
            # Copies, because tensors that occur twice in a checkpoint would give other bytes after a resume.
            self._values = {module: value.clone() for module, value in values.items()}

    def restored(self) -> AbstractContextManager[None]:
        """Restore the earlier checkpoint while open."""
        return self._trained.at(self._values)

    def state_dict(self) -> dict[str, Any]:
        """Return the steps made and the earlier checkpoint's coordinates {module: (r,)}."""
        return {"steps": self.steps, "values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        device = self._trained.model.device
        self.steps = state["steps"]
        self._values = {module: value.to(device) for module, value in state["values"].items()}


@final
class AheadEngine:
    """An `Engine` (`replay_pools.engines`) of an earlier policy: the adapter opened by `using`.

    Args:
        pushed: engine of the current policy, on the same server.
    """

    def __init__(self, pushed: PushedEngine) -> None:
        self._pushed = pushed
        self._adapter: Path | None = None
        self._loaded: ServerEngine | None = None

    @property
    def chat(self) -> Chat:
        """The policy's chat template and tokenizer."""
        return self._pushed.chat

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return the policy's description, because both write one pool."""
        return self._pushed.describe(sampler)

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Return one completion a prompt from the adapter, which the server loads at the first call."""
        if self._loaded is None:
            assert self._adapter is not None, "sampling outside of `using`"
            self._loaded = load_adapter(self._pushed.base, self._adapter)
        return self._loaded.sample(prompts, sampler, seeds=seeds)

    @contextmanager
    def using(self, adapter: Path) -> Iterator[None]:
        """Sample from a saved adapter while open; then unload it and delete its directory."""
        self._adapter = adapter
        try:
            yield
        finally:
            loaded, self._adapter, self._loaded = self._loaded, None, None
            if loaded is not None:
                unload_adapter(loaded, adapter)
            shutil.rmtree(adapter)


@final
class Background:
    """A thread that samples batches of a run one by one, in the order of `start`.

    Close it before the objects it uses: closing finishes the current batch and drops the later ones.

    Args:
        source: groups sampled with `engine`; it writes the files that the source of the steps reads.
        engine: the engine of `source`.
        pushed: saves the adapter of each batch.
        iterations: optimizer steps on each batch.
    """

    def __init__(self, source: GroupSource, engine: AheadEngine, pushed: PushedEngine, *, iterations: int) -> None:
        self._source, self._engine, self._pushed, self._iterations = source, engine, pushed, iterations
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._batches: dict[int, Future[None]] = {}
        self._adapters: dict[int, Path] = {}

    def has_started(self, batch: int) -> bool:
        """Return True if a batch was started, finished or not."""
        return batch in self._batches

    def start(self, batch: int) -> None:
        """Queue a batch, to be sampled from the current policy."""
        self._adapters[batch] = self._pushed.save(f"batch{batch}")
        # In this context, so that waiting is reported.
        make = partial(copy_context().run, self._make)
        self._batches[batch] = self._thread.submit(make, batch, self._batches.get(batch - 1))

    def wait(self, batch: int) -> None:
        """Wait until a batch is on disk; raise the exception of its sampling."""
        self._batches[batch].result()

    def close(self) -> None:
        """End the thread and delete unused adapters."""
        self._thread.shutdown(cancel_futures=True)
        for adapter in self._adapters.values():
            if adapter.exists():
                shutil.rmtree(adapter)

    def _make(self, batch: int, before: Future[None] | None) -> None:
        # No batch follows a failed one, because its problems may depend on the batches before it.
        if before is not None:
            before.result()
        with self._engine.using(self._adapters[batch]):
            self._source.groups(batch * self._iterations)


@final
class PrefetchedSource:
    """A `GroupSource` (`probe.step.groups`): groups of another source, sampled from earlier weights.

    Args:
        source: samples from the current policy, and reads batches on disk.
        past: earlier weights of that policy.
        background: samples batches ahead; None = each batch is sampled when its step needs it.
    """

    def __init__(self, source: GroupSource, past: PastWeights, background: Background | None) -> None:
        self._source, self._past, self._background = source, past, background
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step; with a background, first start the next n batches from the current policy."""
        batch = self._past.batch(step)
        self._past.keep(batch)
        if self._background is not None:
            last = min(batch + self._past.prefetch, self._past.batch(self.num_steps - 1))
            for ahead in range(batch, last + 1):  # several after a resume
                if not self._background.has_started(ahead):
                    with self._past.sampling(ahead):
                        self._background.start(ahead)
            self._background.wait(batch)
        with self._past.sampling(batch):
            return self._source.groups(step)

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return a rollout with its labels."""
        return self._source.rollout(key)
