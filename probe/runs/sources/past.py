"""The policy as it was: weights that sample ahead of training (`rollouts.prefetch`), and its past self, to sample from.

    PastWeights        at the start of the newest n + 1 batches: batch b is sampled from the policy that has made the
                       updates of the batches before b - n, the first n + 1 batches from the policy at the start
    PastSelf           after the newest multiple of `every` steps; where sampling runs ahead, of the steps of the policy
                       that samples
    PrefetchedSource   groups of another source, each batch sampled from the weights of its time: n batches stale
    Background         a thread that has a server sample the next batches while a step is computed

The first two are part of every checkpoint: a resumed run samples from the same past. It may find any of the batches to
come on disk, in part or not at all. What is missing is sampled from the weights in the checkpoint, so that its rollouts
are the same, whichever batches the killed run had got to.

In one process nothing can overlap: a batch is sampled when a step needs it, with the weights of its time put back.
This gives the rollouts that sampling it n batches earlier would, and a run that stops early has sampled none in vain.
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
        prefetch: n, at least 1.
        iterations: optimizer steps on each batch.
    """

    def __init__(self, trained: Trained, *, prefetch: int, iterations: int) -> None:
        self._trained, self.prefetch, self.iterations = trained, prefetch, iterations
        self._weights: dict[int, dict[str, Tensor]] = {}  # by batch, oldest first; on the CPU

    def batch(self, step: int) -> int:
        """The batch that a step trains on."""
        return step // self.iterations

    def keep(self, batch: int) -> None:
        """Remember the present weights as those at the start of a batch, unless it has started already."""
        if batch not in self._weights:
            self._weights[batch] = {module: value.cpu() for module, value in self._trained.values().items()}
        for old in [kept for kept in self._weights if kept < batch - self.prefetch]:
            del self._weights[old]

    def sampling(self, batch: int) -> AbstractContextManager[None]:
        """While open, the policy is the one that samples a batch."""
        return self._trained.at(self._weights[self._sampled_at(batch)])

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
        trained: the policy.
        every: steps; a multiple of those on a batch.
        past: the weights that sample, where sampling runs ahead; None: the policy in training samples.
    """

    def __init__(self, trained: Trained, *, every: int, past: PastWeights | None = None) -> None:
        self._trained, self._every, self._past = trained, every, past
        self._values = trained.values()
        self.steps = 0  # that the policy has made

    def finish_step(self) -> None:
        """Call it after every optimizer step."""
        self.steps += 1
        steps, values = self.steps, self._trained.values()
        if self._past is not None:
            steps, values = self._past.sampler(self._past.batch(self.steps))
        if steps % self._every == 0:
            # Copies: tensors that a checkpoint has twice would be written in other bytes after a resume.
            self._values = {module: value.clone() for module, value in values.items()}

    def restored(self) -> AbstractContextManager[None]:
        """While open, the policy is its past self."""
        return self._trained.at(self._values)

    def state_dict(self) -> dict[str, Any]:
        """Steps made by the policy in training, and the coordinates {module: (r,)} of its past self."""
        return {"steps": self.steps, "values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        device = self._trained.model.device
        self.steps = state["steps"]
        self._values = {module: value.to(device) for module, value in state["values"].items()}


@final
class AheadEngine:
    """An `Engine` (`replay_pools.engines`) of a policy as it was: the adapter that `using` has open.

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
            self._loaded = load_adapter(self._pushed.base, self._adapter)
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
                unload_adapter(loaded, adapter)
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
        # In this context, so that what it waits for is said.
        make = partial(copy_context().run, self._make)
        self._batches[batch] = self._thread.submit(make, batch, self._batches.get(batch - 1))

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
    """

    def __init__(self, source: GroupSource, past: PastWeights, background: Background | None) -> None:
        self._source, self._past, self._background = source, past, background
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step; in the background, the next n batches are started from the policy as it is now."""
        batch = self._past.batch(step)
        self._past.keep(batch)
        if self._background is not None:
            last = min(batch + self._past.prefetch, self._past.batch(self.num_steps - 1))
            for ahead in range(batch, last + 1):  # after a resume several have not started
                if not self._background.has_started(ahead):
                    with self._past.sampling(ahead):
                        self._background.start(ahead)
            self._background.wait(batch)
        with self._past.sampling(batch):
            return self._source.groups(step)

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels."""
        return self._source.rollout(key)
