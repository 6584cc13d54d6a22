"""LiveSource: groups sampled from the policy in training, graded, and written to a pool before a step reads them.

The groups of a batch are steps of the pool `rollouts/` of the run, read from disk and made into groups as
`ReplaySource` does: a training run is a replay of a pool that grows, and the two give the same numbers. Step s trains
on batch s // iterations. What the pool holds is not sampled again, so a resumed run trains on the same rollouts.

A group without reward variance has no policy gradient. With R refills, its place is given to another problem up to R
times (dynamic sampling of DAPO, arXiv 2503.14476); with P prompts a step, batch b owns the pool's steps
b P (1 + R) .. (b + 1) P (1 + R) - 1, in which place i of attempt a is P a + i, and those not needed stay empty.

Several ranks share out the groups of an attempt. Each samples its groups with the noise that they would get from one
rank, and grades them; rank 0 writes all, and all ranks go on with what is on disk.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from probe.runs.sources.problems import Counts, Problems, Tally
from probe.step.distributed import SOLO, World
from probe.step.groups import Group, RolloutKey, make_group, stored_reward
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.generate import RolloutMaker, derive_seed
from replay_pools.pool import PoolWriter, step_files
from replay_pools.rollout import Rollout


class LiveSource:
    """Groups on the problems of `probe.runs.sources.problems`, sampled from the policy as it is.

    Args:
        directory: of the pool; its name is the pool's in the records.
        header: of the pool.
        maker: samples and grades; its policy is the one that is trained.
        problems: of each batch, P (1 + refills) of them; asked for when the batch is sampled.
        seed: of the sampling noise, together with the batch.
        iterations: steps on each batch; the later ones are off-policy.
        refills: further attempts at a group without reward variance.
        reward: that the loss sees, of which a group has variance or not; nan = none.
        sampling: open while the policy samples.
        tally: what problems are drawn by; None: of this pool.
        world: the ranks that share out the groups.
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
        refills: int = 0,
        reward: Callable[[RolloutKey, Rollout], float] = stored_reward,
        sampling: Callable[[], AbstractContextManager[object]] = nullcontext,
        tally: Tally | None = None,
        world: World = SOLO,
    ) -> None:
        self._world = world
        self._writer = world.on_main(lambda: PoolWriter(directory, header=header))
        self._maker, self._problems, self._seed = maker, problems, seed
        self._rollouts: dict[RolloutKey, Rollout] = {}  # of the newest batch
        self._iterations, self._refills, self._reward, self._sampling = iterations, refills, reward, sampling
        self.num_steps = problems.num_batches * iterations
        self.tally = tally or Tally(self._held, reward)

    def batch(self, step: int) -> int:
        """The batch that a step trains on."""
        return step // self._iterations

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step, sampled now unless the pool holds them."""
        return tuple(make_group(step, group, self._reward) for group in self.sampled(self.batch(step)))

    def counts(self, step: int) -> Mapping[str, Counts]:
        """{problem_id: what the policy has earned on it} before the batch of a step, on every rank."""
        return self._world.on_main(lambda: self.tally.before(self.batch(step)))

    def sampled(self, batch: int, *, fewer: int = 0) -> list[list[tuple[RolloutKey, Rollout]]]:
        """The groups of a batch as they are on disk, each with `fewer` rollouts less than the maker's groups have.

        With `fewer`, the caller completes the groups, and none is refilled: its reward variance is not known yet.
        """
        groups = self._attempt(batch, 0, range(self._width), fewer)
        refills = 0 if fewer else self._refills
        for attempt in range(1, 1 + refills):
            flat = []
            for place, group in groups.items():
                rewards = {self._reward(key, rollout) for key, rollout in group}
                # The loss sees no two different rewards.
                if len({reward for reward in rewards if not math.isnan(reward)}) <= 1:
                    flat.append(place)
            groups |= self._attempt(batch, attempt, flat, fewer)
        self._rollouts = {key: rollout for group in groups.values() for key, rollout in group}
        return list(groups.values())

    def _attempt(
        self, batch: int, attempt: int, places: Sequence[int], fewer: int
    ) -> dict[int, list[tuple[RolloutKey, Rollout]]]:
        """{place in the batch: its group} of one attempt, sampled together unless the pool holds them."""
        if not places:
            return {}
        problems = self._problems.batch(batch, self.tally)
        offset = attempt * self._width
        first = batch * self._problems.width
        positions = {first + offset + i: problems[offset + i] for i in places}
        maker = replace(self._maker, group=self._maker.group - fewer)
        # The seed of the first attempt is that of a run without refills.
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
        """P, groups of a batch."""
        return self._problems.width // (1 + self._refills)

    def _held(self, batch: int) -> dict[RolloutKey, Rollout]:
        """What the pool holds of a batch, refills included, that has been sampled whole."""
        name, first = self._writer.directory.name, batch * self._problems.width
        rollouts = list(chain(*(_stored(self._writer, first + i) for i in range(self._width))))
        for step in range(first + self._width, first + self._problems.width):
            rollouts += self._writer.read_step(step) or []
        return {RolloutKey(name, rollout.step, rollout.sample_id): rollout for rollout in rollouts}

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels; of the newest batch only."""
        return self._rollouts[key]

    def finish(self, batches: int) -> None:
        """Complete the pool: its manifest has the hashes of all rollouts. Only the first `batches` are kept."""
        if not self._world.is_main:
            return
        self._writer.drop_steps(self._problems.width * batches)
        # A pool that nothing was sampled for, in a run that stopped early, has nothing to complete.
        if step_files(self._writer.directory):
            self._writer.finish()


def write_groups(
    world: World, maker: RolloutMaker, writer: PoolWriter, problems: Mapping[int, Problem], *, seed: int
) -> list[list[Rollout]]:
    """Sample, grade and write the steps {step: problem} that a pool does not hold yet.

    Args:
        world: every rank calls this and makes its share; with a sharded base every rank makes all, since all must call
            the model equally often.
        seed: of the sampling noise.

    Returns:
        The group of each step, in the order of `problems`, read back from disk; the same on every rank.
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
    """The group of a step as it is on disk; InputError where it is not whole."""
    rollouts = writer.read_step(step)
    if rollouts is None:
        where = writer.directory
        raise InputError(where, expected=f"step {step}, which was written", found="none that is whole")
    return rollouts
