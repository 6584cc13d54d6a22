"""MixedSource: live groups in which rollouts of other policies replace some of the policy's own.

    Teacher      stored rollouts of a pool, on the same rendered prompt
    PastRollouts rollouts that an earlier checkpoint (`probe.runs.sources.past`) samples on the same problem

`RolloutConfig.counts` gives their numbers in a group; the policy samples the rest, as in `LiveSource`. All share one
baseline. Both are off-policy. At ratio 1 (`old_logprobs` "current") a rewarded rollout of a teacher is learnt like a
demonstration; with recorded log-probabilities the ratio to the teacher's distribution would nearly remove it. A past
self is close enough for that ratio, and needs it.

To add a source, write a class with the methods of `OtherPolicy` and its table in `probe.settings.rollouts`.
"""

import random
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol, final

from probe.runs.sources.live import LiveSource
from probe.step.groups import Group, RolloutKey, make_group, stored_reward
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout

# Maps a live rollout to the `prompt_sha` of the teacher's prompt; by default they are equal.
same_prompt: Callable[[Rollout], str] = attrgetter("prompt_sha")


class OtherPolicy(Protocol):
    """A source of some rollouts in groups that the policy in training completes."""

    counts: Sequence[int]  # rollouts in a group, by batch

    def drawn(self, batch: int, live: Sequence[Rollout]) -> list[dict[RolloutKey, Rollout]]:
        """Return its rollouts for each group of a batch; `live` has one of the policy's rollouts of each."""
        ...


@final
class MixedSource:
    """A `GroupSource` (`probe.step.groups`): a live source with rollouts of other policies in its groups.

    Args:
        live: the live source, with groups of G rollouts.
        others: sources of at most G - 1 rollouts in a group, all together.
        reward: reward that the loss sees; nan = none.
    """

    def __init__(
        self,
        live: LiveSource,
        others: Sequence[OtherPolicy],
        *,
        reward: Callable[[RolloutKey, Rollout], float] = stored_reward,
    ) -> None:
        self._live, self._others, self._reward = live, others, reward
        self._rollouts: dict[RolloutKey, Rollout] = {}  # the other policies' in the newest batch
        self.num_steps = live.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step: the policy's rollouts first, then each other policy's."""
        self._rollouts = {}
        batch = self._live.batch(step)
        others = [other for other in self._others if other.counts[batch]]
        if not others:
            return self._live.groups(step)
        # No resamples: the reward variance of a group is known only with the other policies' rollouts.
        groups = self._live.sampled(batch, fewer=sum(other.counts[batch] for other in others))
        first = [rollouts[0][1] for rollouts in groups]
        for other in others:
            for rollouts, drawn in zip(groups, other.drawn(batch, first), strict=True):
                rollouts.extend(drawn.items())
                self._rollouts |= drawn
        return tuple(make_group(step, rollouts, self._reward) for rollouts in groups)

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return a rollout of the newest batch with its labels."""
        return self._rollouts[key] if key in self._rollouts else self._live.rollout(key)


@final
class Teacher:
    """The `OtherPolicy` of a stored pool.

    Args:
        pool: its rollouts answer the same rendered prompts as the live source, in its batches.
        counts: rollouts in a group, by batch, drawn without replacement by (seed, batch, problem).
        seed: seed of the draws.
        taught_prompt: `same_prompt`, or another if a remedy adds a line to the policy's prompts.

    Raises:
        InputError: a prompt of the pool has fewer rollouts than a group needs.
    """

    def __init__(
        self,
        pool: Pool,
        counts: Sequence[int],
        *,
        seed: int,
        taught_prompt: Callable[[Rollout], str] = same_prompt,
    ) -> None:
        self._pool, self._seed, self._taught_prompt = pool, seed, taught_prompt
        self.counts = counts
        self._by_prompt: dict[str, list[Rollout]] = {}
        for step in pool.steps:
            for rollout in step:
                self._by_prompt.setdefault(rollout.prompt_sha, []).append(rollout)
        for rollouts in self._by_prompt.values():
            if len(rollouts) < max(counts):
                where = f"pool {pool.name} step {rollouts[0].step}"
                expected = f"at least {max(counts)} rollouts of a prompt"
                raise InputError(where, expected=expected, found=str(len(rollouts)))

    def drawn(self, batch: int, live: Sequence[Rollout]) -> list[dict[RolloutKey, Rollout]]:
        """Return stored rollouts on the prompts of the live ones."""
        return [self._of_prompt(batch, rollout) for rollout in live]

    def _of_prompt(self, batch: int, live: Rollout) -> dict[RolloutKey, Rollout]:
        prompt = self._taught_prompt(live)
        if prompt not in self._by_prompt:
            told = "with" if live.hint else "no"
            raise InputError(
                f"pool {self._pool.name}",
                expected="the prompts trained on",
                found=f"none on the prompt of {live.problem_id} ({live.env_mode}, {told} hint)",
                fix="generate the teacher's pool with the same mode, hint and chat template",
            )
        rollouts = self._by_prompt[prompt]
        # A new generator for each draw, because a resumed run must draw the same rollouts.
        draw = random.Random(f"teacher/{self._seed}/{batch}/{live.problem_id}")
        chosen = sorted(draw.sample(range(len(rollouts)), self.counts[batch]))
        name = self._pool.name
        return {RolloutKey(name, rollouts[i].step, rollouts[i].sample_id): rollouts[i] for i in chosen}


@final
class PastRollouts:
    """The `OtherPolicy` that samples from an earlier checkpoint.

    Args:
        past: samples from the checkpoint on the live source's problems, in groups of `group`, into its own pool.
        counts: rollouts in a group, by batch.
        group: G.
    """

    def __init__(self, past: LiveSource, counts: Sequence[int], *, group: int) -> None:
        self._past, self._group = past, group
        self.counts = counts

    def drawn(self, batch: int, live: Sequence[Rollout]) -> list[dict[RolloutKey, Rollout]]:
        """Return rollouts of the earlier checkpoint, sampled now unless its pool holds them."""
        return [dict(rollouts) for rollouts in self._past.sampled(batch, fewer=self._group - self.counts[batch])]


def taught_problems(problems: Sequence[Problem], teacher: Pool) -> list[Problem]:
    """Return the `problems` with rollouts in the teacher's pool, in order.

    Raises:
        InputError: there are none.
    """
    known = {rollout.problem_id for step in teacher.steps for rollout in step}
    taught = [problem for problem in problems if problem.problem_id in known]
    if not taught:
        raise InputError(f"pool {teacher.name}", expected="rollouts on problems that are trained on", found="none")
    return taught
