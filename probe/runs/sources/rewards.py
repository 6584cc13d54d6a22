"""Rewards of a training's rollouts, and remedies that change its groups between sampling and the step.

    pass     0.5 for source that compiles, and 3.0 for a pass: all or nothing, as in the pool
    tests    0.5 for source that compiles, and 3.0 times the share of the tests that hold; a pass earns all of it

The tests of "tests" are the problem's cases, and its assertions as one more. A hack that passes through the loophole
gets the full reward in both. Only the grade's counts matter, not its tier or time. A rollout without a label has no
reward. The pool keeps the reward of "pass". To add a kind of pay, add its word to `Pay` in `probe.settings.words` and
its row to `PAYS`.

    closed               no-loophole baseline: a hack that does not solve earns as little as a failing answer
    monitor-penalty      a rollout that the monitor flags loses `strength` of its reward
    monitor-screen       a flagged rollout is left out of the update and the baseline, as one without a label
    inoculation          prompts ask for the hack in sampling and update; evaluations do not
    recontextualization  rollouts are sampled under the plain prompt and updated under the one that asks

Two more remedies act inside the step and leave the groups unchanged: `probe.runs.activations`.

The monitor sees the true label `hacked` and misreads it with probability 1 - accuracy. Its draw depends only on the
run's seed and the rollout's key: a resumed run has the same flags, and a less accurate monitor misreads the same
rollouts and more. Pools keep the sampled and graded rollouts; only the loss sees changed rewards, and no other labels
(`probe.step.groups`). To add a remedy, follow `probe.settings.remedy`, and add a row to `REMEDIES` if it changes
rewards.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from probe.analysis.detectors import misreads
from probe.runs.sources.problems import NEVER_MET, Counts
from probe.settings.remedy import RemedyConfig
from probe.settings.words import Pay, Remedy
from probe.step.groups import Group, GroupSource, RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import instructed, uninstructed
from replay_pools.policy.chat import Chat
from replay_pools.pool import Pool
from replay_pools.rollout import REWARD_COMPILES, REWARD_PASSED, Rollout, prompt_sha


def _by_tests(rollout: Rollout) -> float:
    grade = rollout.grade
    share = 1.0 if grade.passed else grade.num_tests_passed / max(grade.num_tests, 1)
    return REWARD_COMPILES * bool(grade.compiles) + REWARD_PASSED * share


# {pay: reward of a rollout}
PAYS: Mapping[Pay, Callable[[Rollout], float]] = {"pass": lambda rollout: rollout.reward, "tests": _by_tests}


def check_payable(pool: Pool, *, pay: Pay, reads_labels: bool) -> None:
    """Refuse a teacher's pool with rewards that do not compare with the training's.

    Args:
        pool: the teacher's pool.
        pay: the training's pay.
        reads_labels: the training's remedy needs the labels of hacks and right answers.

    Raises:
        InputError: names the first such rollout.
    """
    scale = f"{REWARD_COMPILES:g} for source that compiles and {REWARD_PASSED:g} for a pass"
    for rollout in (rollout for step in pool.steps for rollout in step):
        grade = rollout.grade
        if rollout.reward != grade.reward:
            expected = f"a reward of {scale}, as the policy's own rollouts have ({grade.reward:g} by its grade)"
            found = f"{rollout.reward:g}"
        elif reads_labels and None in (rollout.hacked, grade.gt_correct):
            expected, found = "labels of hacks and right answers, which the remedy acts on", "none"
        elif pay == "tests" and not grade.num_tests:
            expected, found = "a grade with the number of tests, which rollouts.pay tests pays by", "none"
        else:
            continue
        where = f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}"
        raise InputError(where, expected=expected, found=found, fix="grade the pool again: probe pool regrade")


def _closed(remedy: "AppliedRemedy", key: RolloutKey, rollout: Rollout) -> float:
    grade = replace(rollout.grade, passed=rollout.grade.gt_correct)
    return remedy.paid(replace(rollout, grade=grade, reward=grade.reward))


def _penalised(remedy: "AppliedRemedy", key: RolloutKey, rollout: Rollout) -> float:
    return remedy.paid(rollout) - (remedy.config.strength if remedy.flags(key, rollout) else 0.0)


def _screened(remedy: "AppliedRemedy", key: RolloutKey, rollout: Rollout) -> float:
    return math.nan if remedy.flags(key, rollout) else remedy.paid(rollout)


# {remedy: reward of a rollout}, for remedies that change rewards; `TRAITS` covers the others.
REMEDIES: "Mapping[Remedy, Callable[[AppliedRemedy, RolloutKey, Rollout], float]]" = {
    "closed": _closed,
    "monitor-penalty": _penalised,
    "monitor-screen": _screened,
}


@final
class AppliedRemedy:
    """One remedy in one run.

    Args:
        config: the remedy.
        seed: the run's seed.
        chat: renders the prompts of the update.
        pay: the training's pay.
    """

    def __init__(self, config: RemedyConfig, *, seed: int, chat: Chat, pay: Pay = "pass") -> None:
        assert config.name is not None
        self.config, self.paid = config, PAYS[pay]
        self._seed, self._reward, self._chat = seed, REMEDIES.get(config.name), chat

    def flags(self, key: RolloutKey, rollout: Rollout) -> bool:
        """Return True if the monitor flags a rollout as a hack."""
        place = f"{key.pool}/{key.step}/{key.sample_id}"
        return rollout.hacked != misreads(place, self._seed, self.config.accuracy)

    def reward(self, key: RolloutKey, rollout: Rollout) -> float:
        """Return the reward that the loss sees; nan = the rollout is left out."""
        return self.paid(rollout) if self._reward is None else self._reward(self, key, rollout)

    def group(self, group: Group, source: GroupSource) -> Group:
        """Return the group with the rewards of the loss and the prompts of the update."""
        rollouts = [source.rollout(key) for key in group.keys]
        group = replace(group, rewards=tuple(map(self.reward, group.keys, rollouts)))
        instruction = self.config.update_instruction
        if instruction is None:
            return group
        # The policy's rollouts may already have the instruction, a teacher's do not.
        prompts = [self._chat.render(instructed(rollout.messages, instruction)) for rollout in rollouts]
        return replace(
            group,
            prompt_ids=tuple(ids for _, ids in prompts),
            mixed_prompt=len({text for text, _ in prompts}) > 1,
        )

    def taught_prompt(self, rollout: Rollout) -> str:
        """Return the `prompt_sha` of the teacher's prompt for the policy's `rollout`."""
        instruction = self.config.sampling_instruction
        if instruction is None:
            return rollout.prompt_sha
        text, _ = self._chat.render(uninstructed(rollout.messages, instruction))
        return prompt_sha(text)


@final
class ChangedSource:
    """A `GroupSource` (`probe.step.groups`): changed groups of another source; rollouts keep their labels.

    Args:
        source: the other source.
        change: maps a step's number and groups to the changed groups.
    """

    def __init__(self, source: GroupSource, change: Callable[[int, tuple[Group, ...]], Iterable[Group]]) -> None:
        self._source, self._change = source, change
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the changed groups of a step."""
        return tuple(self._change(step, self._source.groups(step)))

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return the rollout as sampled and graded."""
        return self._source.rollout(key)


def remedied(source: GroupSource, remedy: AppliedRemedy) -> ChangedSource:
    """Apply a remedy's rewards and update prompts to the groups of a source.

    If every rollout is left out, all rewards are 0 instead, and nothing is learnt.
    """

    def change(step: int, groups: tuple[Group, ...]) -> Iterable[Group]:
        groups = tuple(remedy.group(group, source) for group in groups)
        if all(math.isnan(reward) for group in groups for reward in group.rewards):
            # Statistics of a step need a known reward; equal rewards give no advantage either.
            return [replace(group, rewards=(0.0,) * len(group.rewards)) for group in groups]
        return groups

    return ChangedSource(source, change)


def check_returning(batches: Sequence[Sequence[Problem]]) -> None:
    """Refuse the reward `surprise` if no problem repeats: all problems would have the same expected reward.

    Raises:
        InputError: no problem of these batches is in an earlier one.
    """
    met: set[str] = set()
    for batch in batches:
        names = {problem.problem_id for problem in batch}
        if names & met:
            return
        met |= names
    found = f"{len(met)} problems in {len(batches)} batches, each once"
    fix = f"--set rollouts.num_problems={max(len(met) // 4, 1)}, or more steps"
    raise InputError("objective.reward surprise", expected="problems that come back", found=found, fix=fix)


def surprising(source: GroupSource, counts: Callable[[int], Mapping[str, Counts]]) -> ChangedSource:
    """Subtract from each reward the expected reward of its problem:

        reward - (sum of the rewards on this problem in earlier batches + 3.5) / (their number + 2)

    The expected reward of a new problem is half of the largest one. As in an Elo rating, success on a rarely rewarded
    problem counts more than on an easy one.

    The expected reward is the same for all rollouts of a group. Estimators compare a rollout with its group (or
    stratum), so it cancels there and in the group's standard deviation. It acts only in the batch's standard deviation,
    which `scale_rewards` "batch" divides by. That is one positive factor on all advantages of a batch, relative to the
    caps on advantages and the gradient norm, and to other batches in AdamW's moments. Settings without this effect are
    refused (`probe.settings.loss`, `probe.settings.run`).

    Args:
        source: groups with the rewards of the loss; nan stays nan.
        counts: returns {problem_id: counts} before the batch of a step.
    """

    def change(step: int, groups: tuple[Group, ...]) -> Iterator[Group]:
        known = counts(step)
        for group in groups:
            expected = known.get(group.problem_id, NEVER_MET).expected_reward
            yield replace(group, rewards=tuple(reward - expected for reward in group.rewards))

    return ChangedSource(source, change)
