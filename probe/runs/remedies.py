"""Remedies: what is done to the groups of a training between sampling and the step; one row of `REMEDIES` each.

    closed               a hack that does not solve earns what a failing answer earns: training with the loophole closed
    monitor-penalty      a rollout that the monitor flags loses `strength` of its reward
    monitor-screen       a flagged rollout is left out of the update and of the baseline, as one without label
    inoculation          prompts ask for the hack while rollouts are sampled and updated on; evaluations do not
    recontextualization  sampled under the plain prompt, updated on under the one that asks

Two more leave the groups as they are and act inside the step: `probe.runs.activations`.

The monitor sees the true label `hacked` and misreads it with probability 1 - accuracy, by a draw that depends on the
run's seed and on the rollout's key alone: a resumed run has the same flags, and the flags that two accuracies misread
are nested. Pools keep rollouts as they were sampled and graded; only what the loss sees changes. The loss sees no label
otherwise (`probe.step.groups`).

To add a remedy: a row here, of a function from a labelled rollout to its reward or of an instruction in the prompt of
the update, and what `probe.settings.remedy` asks for.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from probe.runs.sources.rewards import PAYS
from probe.settings.remedy import RemedyConfig
from probe.settings.words import Pay, Remedy
from probe.step.groups import Group, GroupSource, RolloutKey, stored_reward
from replay_pools.consistency import prompt_sha
from replay_pools.environments.loopholes import instructed, uninstructed
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the reward function of a remedy may read beside the rollout."""

    config: RemedyConfig
    seed: int
    paid: Callable[[Rollout], float]  # what the training pays a rollout: a row of probe.runs.sources.rewards.PAYS

    def flags(self, key: RolloutKey, rollout: Rollout) -> bool:
        """Whether the monitor calls a rollout a hack."""
        draw = random.Random(f"monitor/{self.seed}/{key.pool}/{key.step}/{key.sample_id}").random()
        misread = draw >= self.config.accuracy
        return rollout.hacked != misread


def _closed(context: Context, key: RolloutKey, rollout: Rollout) -> float:
    grade = replace(rollout.grade, passed=rollout.grade.gt_correct)
    return context.paid(replace(rollout, grade=grade, reward=grade.reward))


def _penalised(context: Context, key: RolloutKey, rollout: Rollout) -> float:
    return context.paid(rollout) - (context.config.strength if context.flags(key, rollout) else 0.0)


def _screened(context: Context, key: RolloutKey, rollout: Rollout) -> float:
    return math.nan if context.flags(key, rollout) else context.paid(rollout)


def _as_paid(context: Context, key: RolloutKey, rollout: Rollout) -> float:
    return context.paid(rollout)


# The reward of a labelled rollout; whether the prompt of the update carries the instruction is a trait of the remedy.
REMEDIES: Mapping[Remedy, Callable[[Context, RolloutKey, Rollout], float]] = {
    "closed": _closed,
    "monitor-penalty": _penalised,
    "monitor-screen": _screened,
    "inoculation": _as_paid,
    "recontextualization": _as_paid,
    "preventative-steering": _as_paid,
    "concept-ablation": _as_paid,
}


@final
class AppliedRemedy:
    """One remedy in one run.

    Args:
        config: of the remedy.
        seed: of the run.
        chat: renders the prompts of the update.
        pay: what the training pays for.
    """

    def __init__(self, config: RemedyConfig, *, seed: int, chat: Chat, pay: Pay = "pass") -> None:
        assert config.name is not None
        self._context = Context(config=config, seed=seed, paid=PAYS[pay])
        self._reward, self._chat = REMEDIES[config.name], chat

    def reward(self, key: RolloutKey, rollout: Rollout) -> float:
        """The reward that the loss sees; nan where the rollout is left out, or has no label."""
        return self._reward(self._context, key, rollout) if rollout.labelled else stored_reward(key, rollout)

    def group(self, group: Group, source: GroupSource) -> Group:
        """The group on the prompts of the update."""
        instruction = self._context.config.update_instruction
        if instruction is None:
            return group
        rollouts = [source.rollout(key) for key in group.keys]
        # A rollout that was sampled under the instruction carries it already, a teacher's does not.
        prompts = [self._chat.render(instructed(rollout.messages, instruction)) for rollout in rollouts]
        return replace(
            group,
            prompt_ids=tuple(ids for _, ids in prompts),
            mixed_prompt=len({text for text, _ in prompts}) > 1,
        )

    def taught_prompt(self, rollout: Rollout) -> str:
        """`prompt_sha` of the stored prompt that a teacher answers where the policy answers that of `rollout`."""
        instruction = self._context.config.sampling_instruction
        if instruction is None:
            return rollout.prompt_sha
        text, _ = self._chat.render(uninstructed(rollout.messages, instruction))
        return prompt_sha(text)


@final
class RemediedSource:
    """A `GroupSource` (`probe.step.groups`): the groups of another one, as a remedy leaves them.

    Args:
        source: its groups have the rewards of the remedy; its rollouts keep their labels, for the records.
        remedy: the remedy.
    """

    def __init__(self, source: GroupSource, remedy: AppliedRemedy) -> None:
        self._source, self._remedy = source, remedy
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step; where every rollout was left out, all rewards are 0 instead, and nothing is learnt."""
        groups = tuple(self._remedy.group(group, self._source) for group in self._source.groups(step))
        if all(math.isnan(reward) for group in groups for reward in group.rewards):
            # Statistics of a step need one reward that is known; equal rewards have no advantage either.
            return tuple(replace(group, rewards=(0.0,) * len(group.rewards)) for group in groups)
        return groups

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels, as it was sampled and graded."""
        return self._source.rollout(key)
