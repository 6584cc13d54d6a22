"""Prefetching: sampling runs n batches ahead of training (`rollouts.prefetch`), so that rollouts are n batches stale.

    PrefetchedSource   groups of another source, each batch sampled from the weights of its time (`probe.runs.past`)
    Background         a thread that has a server sample the next batches while a step is computed

In one process nothing can overlap: a batch is sampled when a step needs it, with the weights of its time put back.
This gives the rollouts that sampling it n batches earlier would, and a run that stops early has sampled none in vain.

A resumed run may find any of the batches to come on disk, in part or not at all. What is missing is sampled from the
weights in the checkpoint, so that its rollouts are the same, whichever batches the killed run had got to.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from probe.runs.past import PastWeights
from probe.runs.sources.served import PushedEngine, forget_adapter
from probe.step.groups import Group, GroupSource, RolloutKey
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Rollout
from replay_pools.sampling.engines import Completion, Sampler
from replay_pools.serving.engine import ServerEngine


@final
class AheadEngine:
    """An `Engine` (`replay_pools.sampling.engines`) of a policy as it was: the adapter that `using` has open.

    Args:
        pushed: of the policy as it is, on the same server.
    """

    def __init__(self, pushed: PushedEngine) -> None:
        self._pushed = pushed
        self._adapter: Path | None = None
        self._loaded: ServerEngine | None = None

    @property
    def chat(self) -> Chat:
        """As of the policy."""
        return self._pushed.chat

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """As the policy: its pools are one pool."""
        return self._pushed.describe(sampler)

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """One completion a prompt from the adapter, which the server loads when the first prompts come."""
        if self._loaded is None:
            assert self._adapter is not None, "sampling outside of `using`"
            self._loaded = self._pushed.load(self._adapter)
        return self._loaded.sample(prompts, sampler, seeds=seeds)

    @contextmanager
    def using(self, adapter: Path) -> Iterator[None]:
        """While open, `sample` draws from a saved adapter; then the server forgets it and the directory is deleted."""
        self._adapter = adapter
        try:
            yield
        finally:
            loaded, self._adapter, self._loaded = self._loaded, None, None
            if loaded is not None:
                forget_adapter(loaded, adapter)
            shutil.rmtree(adapter)


@final
class Background:
    """A thread that makes batches of a run, one after the other, in the order in which they were started.

    Close it before anything that it uses: the batch at which it is gets done first, those behind it do not.

    Args:
        source: groups of the run, sampled with `engine`; what it writes is what the source of the steps reads.
        engine: of `source`.
        pushed: saves the adapter of each batch.
        iterations: optimizer steps on each batch.
    """

    def __init__(self, source: GroupSource, engine: AheadEngine, pushed: PushedEngine, *, iterations: int) -> None:
        self._source, self._engine, self._pushed, self._iterations = source, engine, pushed, iterations
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._batches: dict[int, Future[None]] = {}
        self._adapters: dict[int, Path] = {}

    def has_started(self, batch: int) -> bool:
        """Whether a batch is made, being made or waiting."""
        return batch in self._batches

    def start(self, batch: int) -> None:
        """Have a batch made from the policy as it is now, after those that were started before."""
        self._adapters[batch] = self._pushed.save(f"batch{batch}")
        self._batches[batch] = self._thread.submit(self._make, batch, self._batches.get(batch - 1))

    def wait(self, batch: int) -> None:
        """Return when a batch is on disk; raises what went wrong in making it."""
        self._batches[batch].result()

    def close(self) -> None:
        """End the thread, and delete the adapters that it did not come to."""
        self._thread.shutdown(cancel_futures=True)
        for adapter in self._adapters.values():
            if adapter.exists():
                shutil.rmtree(adapter)

    def _make(self, batch: int, before: Future[None] | None) -> None:
        # Nothing is made behind a batch that failed: which problems it gets may depend on those before it.
        if before is not None:
            before.result()
        with self._engine.using(self._adapters[batch]):
            self._source.groups(batch * self._iterations)


@final
class PrefetchedSource:
    """A `GroupSource` (`probe.step.groups`): groups of another one, sampled from the weights of their time.

    Args:
        source: samples from the policy as it is, and reads what is on disk.
        past: of that policy.
        background: makes the batches before their steps come; None: each is sampled when its step needs it.
        finish: completes the pools of the run with its first so many batches.
    """

    def __init__(
        self, source: GroupSource, past: PastWeights, background: Background | None, finish: Callable[[int], None]
    ) -> None:
        self._source, self._past, self._background, self._finish = source, past, background, finish
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step; in the background, the next n batches are started from the policy as it is now."""
        batch = self._past.batch(step)
        self._past.keep(batch)
        if self._background is not None:
            last = self._past.batch(self.num_steps - 1)
            self._start(self._background, range(batch, min(batch + self._past.prefetch, last) + 1))
            self._background.wait(batch)
        with self._past.sampling(batch):
            return self._source.groups(step)

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels."""
        return self._source.rollout(key)

    def _start(self, background: Background, batches: range) -> None:
        """Start those of `batches` that have not started; after a resume these are several."""
        for batch in batches:
            if not background.has_started(batch):
                with self._past.sampling(batch):
                    background.start(batch)

    def finish(self, batches: int) -> None:
        """Complete the pools with their first so many batches."""
        if self._background is not None:
            self._background.close()
        self._finish(batches)
