"""LiveSource: groups sampled from the policy in training, graded, and written to a pool before a step reads them.

Rollouts of other policies (`probe.runs.sources.others`) may replace some of the policy's own in a group.

The groups of a batch are steps of the run's pool `rollouts/`, read from disk and grouped as in `ReplaySource`: a
training is a replay of a growing pool, with the same numbers. Step s trains on batch s // iterations. Rollouts in the
pool are not sampled again, so a resumed run trains on the same ones.

A group without reward variance has no policy gradient. With `dynamic_sampling` R, another one replaces it up to R times
(dynamic sampling, DAPO, arXiv 2503.14476). With P prompts a step, batch b owns the pool's steps
b P (1 + R) .. (b + 1) P (1 + R) - 1; place i of attempt a is P a + i, and unused places stay empty.

Ranks split the groups of an attempt. Each samples and grades its groups, with the noise of a single-rank run; rank 0
writes all, and all ranks read them from disk.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from probe.runs.sources.others import OtherPolicy
from probe.runs.sources.problems import Counts, Problems, Tally
from probe.step.distributed import SOLO, World
from probe.step.groups import Group, RolloutKey, make_group, stored_reward
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.generate import RolloutMaker, derive_seed
from replay_pools.pool import PoolWriter, step_files
from replay_pools.rollout import Rollout


class LiveSource:
    """Groups on the problems of `probe.runs.sources.problems`, sampled from the current policy.

    Args:
        directory: the pool; its name is the pool's name in records.
        header: the pool's header.
        maker: samples from the policy in training, and grades.
        problems: P (1 + resamples) problems of each batch, requested when the batch is sampled.
        seed: seeds the sampling noise, together with the batch.
        iterations: steps on each batch; the later ones are off-policy.
        resamples: dynamic sampling: further attempts at a group without reward variance.
        reward: reward that the loss sees; nan = none.
        sampling: open while the policy samples.
        tally: the record to draw problems by; None = this pool's.
        world: the ranks that split the groups.

    Attributes:
        others: other policies, with at most G - 1 rollouts in a group of G, all together.
    """

    def __init__(
        self,
        directory: Path,
        *,
        header: dict[str, Any],
        maker: RolloutMaker,
        problems: Problems,
        seed: int,
        iterations: int = 1,
        resamples: int = 0,
        reward: Callable[[RolloutKey, Rollout], float] = stored_reward,
        sampling: Callable[[], AbstractContextManager[object]] = nullcontext,
        tally: Tally | None = None,
        world: World = SOLO,
    ) -> None:
        self._world = world
        self._writer = world.on_main(lambda: PoolWriter(directory, header=header))
        self._maker, self._problems, self._seed = maker, problems, seed
        self._rollouts: dict[RolloutKey, Rollout] = {}  # in the newest batch
        self._iterations, self._resamples, self._reward, self._sampling = iterations, resamples, reward, sampling
        self.num_steps = problems.num_batches * iterations
        self.others: Sequence[OtherPolicy] = ()
        self.tally = tally or Tally(self._held, reward)

    def batch(self, step: int) -> int:
        """Return the batch that a step trains on."""
        return step // self._iterations

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step, sampled now unless the pool holds them: the policy's rollouts come first."""
        batch = self.batch(step)
        others = [other for other in self.others if other.counts[batch]]
        groups = self.sampled(batch, fewer=sum(other.counts[batch] for other in others))
        for other in others:
            for rollouts, drawn in zip(groups, other.drawn(batch, [group[0][1] for group in groups]), strict=True):
                rollouts.extend(drawn)
        self._rollouts = dict(chain(*groups))
        return tuple(make_group(step, group, self._reward) for group in groups)

    def counts(self, step: int) -> Mapping[str, Counts]:
        """Return {problem_id: counts of the policy's rollouts} before the batch of a step, on every rank."""
        return self._world.on_main(lambda: self.tally.before(self.batch(step)))

    def sampled(self, batch: int, *, fewer: int = 0) -> list[list[tuple[RolloutKey, Rollout]]]:
        """Return the groups of a batch from disk, each `fewer` rollouts smaller than the maker's groups.

        With `fewer`, others complete the groups. Their reward variance is not known yet: none is sampled again.
        """
        groups = self._attempt(batch, 0, range(self._width), fewer)
        resamples = 0 if fewer else self._resamples
        for attempt in range(1, 1 + resamples):
            flat = []
            for place, group in groups.items():
                rewards = {self._reward(key, rollout) for key, rollout in group}
                # All rewards that the loss sees are equal.
                if len({reward for reward in rewards if not math.isnan(reward)}) <= 1:
                    flat.append(place)
            groups |= self._attempt(batch, attempt, flat, fewer)
        return list(groups.values())

    def _attempt(
        self, batch: int, attempt: int, places: Sequence[int], fewer: int
    ) -> dict[int, list[tuple[RolloutKey, Rollout]]]:
        """Return {place in the batch: group} of one attempt, sampled together unless the pool holds them."""
        if not places:
            return {}
        problems = self._problems.batch(batch, self.tally)
        offset = attempt * self._width
        first = batch * self._problems.width
        positions = {first + offset + i: problems[offset + i] for i in places}
        maker = replace(self._maker, group=self._maker.group - fewer)
        # The first attempt has the same seed as a run without resamples.
        seed = derive_seed("live", self._seed, batch, *([attempt] if attempt else []))
        with self._sampling():
            groups = write_groups(self._world, maker, self._writer, positions, seed=seed)
        name = self._writer.directory.name
        keyed = {}
        for i, group in zip(places, groups, strict=True):
            keyed[i] = [(RolloutKey(name, rollout.step, rollout.sample_id), rollout) for rollout in group]
        return keyed

    @property
    def _width(self) -> int:
        """The number P of groups in a batch."""
        return self._problems.width // (1 + self._resamples)

    def _held(self, batch: int) -> dict[RolloutKey, Rollout]:
        """Return the pool's rollouts of a completely sampled batch, resamples included."""
        name, first = self._writer.directory.name, batch * self._problems.width
        rollouts = list(chain(*(_stored(self._writer, first + i) for i in range(self._width))))
        for step in range(first + self._width, first + self._problems.width):
            rollouts += self._writer.read_step(step) or []
        return {RolloutKey(name, rollout.step, rollout.sample_id): rollout for rollout in rollouts}

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return a rollout of the newest batch with its labels."""
        return self._rollouts[key]

    def finish(self, batches: int) -> None:
        """Keep the first `batches` and complete the pool with a manifest."""
        if not self._world.is_main:
            return
        self._writer.drop_steps(self._problems.width * batches)
        # A run that stopped early may have an empty pool.
        if step_files(self._writer.directory):
            self._writer.finish()


def write_groups(
    world: World, maker: RolloutMaker, writer: PoolWriter, problems: Mapping[int, Problem], *, seed: int
) -> list[list[Rollout]]:
    """Sample, grade and write the steps {step: problem} that a pool lacks.

    Args:
        world: every rank calls this and makes its share. With a sharded base every rank makes all, because all must
            call the model equally often.
        seed: seed of the sampling noise.

    Returns:
        The group of each step, in the order of `problems`, read from disk; the same on every rank.
    """
    missing = world.on_main(lambda: [step for step in problems if writer.read_step(step) is None])
    share = slice(None) if world.shards_base else world.rows(len(problems))
    parts = world.gather(maker.make(dict([*problems.items()][share]), missing, seed=seed))

    def written() -> list[list[Rollout]]:
        for step, rollouts in dict(chain(*(part.items() for part in parts))).items():
            writer.write_step(step, rollouts)
        return [_stored(writer, step) for step in problems]

    return world.on_main(written)


def _stored(writer: PoolWriter, step: int) -> list[Rollout]:
    """Read the group of a step from disk; InputError if it is incomplete."""
    rollouts = writer.read_step(step)
    if rollouts is None:
        where = writer.directory
        raise InputError(where, expected=f"step {step}, which was written", found="none that is whole")
    return rollouts
