"""LiveSource: groups sampled from the policy in training, graded, and written to a pool before a step reads them.

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
from typing import TYPE_CHECKING, Any

from probe.runs.sources.problems import Counts, counted
from probe.runs.sources.rewards import reward_of
from probe.step.distributed import World
from probe.step.groups import Group, RolloutKey, make_group
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.generate import Engine, PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.pool import PoolWriter, step_files
from replay_pools.rollout import Rollout

if TYPE_CHECKING:
    from probe.runs.training_inputs import TrainingInputs

Keyed = list[tuple[RolloutKey, Rollout]]


class LiveSource:
    """Groups on the problems of the inputs, sampled from the current policy.

    Args:
        directory: the pool; its name is the pool's name in records.
        maker: samples from the policy in training, and grades.
        sizes: the policy's rollouts in a group, by batch; `others` add the rest.
        seed: seeds the sampling noise, together with the batch.
        sampling: open while a batch is sampled.
        counts: replaces `counts`, by which problems are drawn: those of another pool on the same problems.
    """

    def __init__(
        self,
        directory: Path,
        inputs: "TrainingInputs",
        maker: RolloutMaker,
        *,
        sizes: Sequence[int],
        seed: int,
        sampling: Callable[[int], AbstractContextManager[object]] = nullcontext,
        counts: Callable[[int], Mapping[str, Counts]] | None = None,
    ) -> None:
        rollouts, num_batches = inputs.config.rollouts, len(inputs.candidates)
        plan = {"env": rollouts.env, "split": "train", "seed": inputs.config.seed}
        plan |= {"steps": num_batches * inputs.width, "steps_per_batch": rollouts.prompts_per_step}
        self._writer = open_writer(inputs.world, directory, maker, inputs.listed, **plan)
        self._inputs, self._maker, self._config = inputs, maker, rollouts
        self._sizes, self._seed, self._sampling = sizes, seed, sampling
        self._reward = reward_of(rollouts.pay, inputs.config.remedy)
        self._rollouts: dict[RolloutKey, Rollout] = {}  # in the newest batch
        self._counts: dict[int, Mapping[str, Counts]] = {0: {}}  # by batch; a thread that samples ahead fills it, too
        self._drawn_by = counts or self.counts
        self.num_steps = num_batches * rollouts.iterations
        # Functions of (batch, one of the policy's rollouts of each group): rollouts of another policy for each group
        self.others: Sequence[Callable[[int, Sequence[Rollout]], Sequence[Keyed]]] = ()

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step, sampled now unless the pool holds them: the policy's rollouts come first."""
        batch = step // self._config.iterations
        groups = self.sampled(batch)
        first = [group[0][1] for group in groups]
        for other in self.others:
            for rollouts, drawn in zip(groups, other(batch, first), strict=True):
                rollouts.extend(drawn)
        self._rollouts = dict(chain(*groups))
        return tuple(make_group(step, group, self._reward) for group in groups)

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return a rollout of the newest batch with its labels."""
        return self._rollouts[key]

    def counts(self, batch: int) -> Mapping[str, Counts]:
        """Return {problem_id: counts of the pool's rollouts} in the batches before this one; on rank 0.

        They are counted from disk, so that a resumed run, or one that samples ahead, gets the same counts.
        """
        for done in range(len(self._counts) - 1, batch):
            first, sampled = done * self._inputs.width, self._config.prompts_per_step
            steps = [_stored(self._writer, first + place) for place in range(sampled)]
            steps += [self._writer.read_step(first + place) or [] for place in range(sampled, self._inputs.width)]
            self._counts[done + 1] = counted(self._counts[done], chain(*steps), self._reward)
        return self._counts[batch]

    def sampled(self, batch: int, engine: Engine | None = None) -> list[Keyed]:
        """Return the policy's rollouts in the groups of a batch, from disk.

        Args:
            engine: samples in place of the maker's, with weights of its own, so that another thread may call this.
        """
        inputs, sampled = self._inputs, self._config.prompts_per_step
        maker = replace(self._maker, group=self._sizes[batch], engine=engine or self._maker.engine)
        # The reward variance of a group that others complete is not known yet: none is sampled again.
        resamples = self._config.dynamic_sampling if maker.group == self._config.group else 0
        name, groups = self._writer.directory.name, dict[int, Keyed]()
        with self._sampling(batch) if engine is None else nullcontext():
            problems = dict(enumerate(inputs.problems(batch, self._drawn_by), start=batch * inputs.width))
            places: Sequence[int] = range(sampled)
            for attempt in range(1 + resamples):
                first = batch * inputs.width + attempt * sampled
                # The first attempt has the same seed as a run without resamples.
                seed = derive_seed("live", self._seed, batch, *([attempt] if attempt else []))
                asked = {first + place: problems[first + place] for place in places}
                found = write_groups(inputs.world, maker, self._writer, asked, seed=seed)
                for place, group in zip(places, found, strict=True):
                    groups[place] = [(RolloutKey(name, one.step, one.sample_id), one) for one in group]
                places = [place for place in places if self._is_flat(groups[place])]
        return list(groups.values())

    def _is_flat(self, group: Keyed) -> bool:
        """Return True if all rewards that the loss sees are equal."""
        rewards = {self._reward(rollout) for _, rollout in group}
        return len({reward for reward in rewards if not math.isnan(reward)}) <= 1

    def finish(self, batches: int) -> None:
        """Keep the first `batches` and complete the pool with a manifest."""
        if not self._inputs.world.is_main:
            return
        self._writer.drop_steps(self._inputs.width * batches)
        # A run that stopped early may have an empty pool.
        if step_files(self._writer.directory):
            self._writer.finish()


def open_writer(
    world: World, directory: Path, maker: RolloutMaker, problems: Sequence[Problem], **plan: Any
) -> PoolWriter:
    """Begin or continue a pool of the maker's rollouts on problems; `plan` has the other fields of its `PoolPlan`."""
    whole = PoolPlan(mode=maker.mode, hint=maker.hint, group=maker.group, **plan)
    header = pool_header(maker.engine, whole, maker.sampler, maker.grader, problems)
    return world.on_main(lambda: PoolWriter(directory, header=header))


def write_groups(
    world: World, maker: RolloutMaker, writer: PoolWriter, problems: Mapping[int, Problem], *, seed: int
) -> list[list[Rollout]]:
    """Sample, grade and write the steps {step: problem} that a pool lacks; return each step's group, read from disk.

    Every rank calls this, makes its share and gets all groups. With a sharded base every rank makes all, because all
    must call the model equally often.
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
