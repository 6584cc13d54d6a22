"""What a training pays a rollout, and what is done to its groups between sampling and the step.

    pass     0.5 for source that compiles, and 3.0 for a pass: all or nothing, as the pool has it
    tests    0.5 for source that compiles, and 3.0 times the share of the tests that hold; a pass earns all of it

The tests of "tests" are the problem's cases, and its assertions as one more. A hack that passes by the loophole is paid
in full by both. Only counts of the grade are read, no tier and no time. A rollout without label has no reward. The pool
keeps the reward of "pass". To add a way to pay: its word in `Pay` of `probe.settings.words`, its row in `PAYS`.

    closed               a hack that does not solve earns what a failing answer earns: training with the loophole closed
    monitor-penalty      a rollout that the monitor flags loses `strength` of its reward
    monitor-screen       a flagged rollout is left out of the update and of the baseline, as one without label
    inoculation          prompts ask for the hack while rollouts are sampled and updated on; evaluations do not
    recontextualization  sampled under the plain prompt, updated on under the one that asks

Two remedies more leave the groups as they are and act inside the step: `probe.runs.activations`.

The monitor sees the true label `hacked` and misreads it with probability 1 - accuracy, by a draw that depends on the
run's seed and on the rollout's key alone: a resumed run has the same flags, and the flags that two accuracies misread
are nested. Pools keep rollouts as they were sampled and graded; only what the loss sees changes. The loss sees no label
otherwise (`probe.step.groups`). To add a remedy: a row of `REMEDIES`, if it pays otherwise, and what
`probe.settings.remedy` asks for.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

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


# The reward of a rollout.
PAYS: Mapping[Pay, Callable[[Rollout], float]] = {"pass": lambda rollout: rollout.reward, "tests": _by_tests}


def check_payable(pool: Pool, *, pay: Pay, reads_labels: bool) -> None:
    """Refuse a pool whose rollouts cannot be paid beside those that a training samples and grades.

    Args:
        pool: of a teacher.
        pay: what the training pays for.
        reads_labels: whether its remedy acts on the labels of hacks and of right answers.

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


# The reward of a rollout under the remedies that change it; what the others do is a trait of each.
REMEDIES: "Mapping[Remedy, Callable[[AppliedRemedy, RolloutKey, Rollout], float]]" = {
    "closed": _closed,
    "monitor-penalty": _penalised,
    "monitor-screen": _screened,
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
        self.config, self.paid = config, PAYS[pay]
        self._seed, self._reward, self._chat = seed, REMEDIES.get(config.name), chat

    def flags(self, key: RolloutKey, rollout: Rollout) -> bool:
        """Whether the monitor calls a rollout a hack."""
        draw = random.Random(f"monitor/{self._seed}/{key.pool}/{key.step}/{key.sample_id}").random()
        misread = draw >= self.config.accuracy
        return rollout.hacked != misread

    def reward(self, key: RolloutKey, rollout: Rollout) -> float:
        """Return the reward that the loss sees; nan where the rollout is left out."""
        return self.paid(rollout) if self._reward is None else self._reward(self, key, rollout)

    def group(self, group: Group, source: GroupSource) -> Group:
        """The group with the rewards that the loss sees, on the prompts of the update."""
        rollouts = [source.rollout(key) for key in group.keys]
        group = replace(group, rewards=tuple(map(self.reward, group.keys, rollouts)))
        instruction = self.config.update_instruction
        if instruction is None:
            return group
        # A rollout that was sampled under the instruction carries it already, a teacher's does not.
        prompts = [self._chat.render(instructed(rollout.messages, instruction)) for rollout in rollouts]
        return replace(
            group,
            prompt_ids=tuple(ids for _, ids in prompts),
            mixed_prompt=len({text for text, _ in prompts}) > 1,
        )

    def taught_prompt(self, rollout: Rollout) -> str:
        """`prompt_sha` of the stored prompt that a teacher answers where the policy answers that of `rollout`."""
        instruction = self.config.sampling_instruction
        if instruction is None:
            return rollout.prompt_sha
        text, _ = self._chat.render(uninstructed(rollout.messages, instruction))
        return prompt_sha(text)


@final
class ChangedSource:
    """A `GroupSource` (`probe.step.groups`): the groups of another one, changed; its rollouts keep their labels.

    Args:
        source: of the groups.
        change: makes the groups of a step of its number and the groups of `source`.
    """

    def __init__(self, source: GroupSource, change: Callable[[int, tuple[Group, ...]], Iterable[Group]]) -> None:
        self._source, self._change = source, change
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """The changed groups of a step."""
        return tuple(self._change(step, self._source.groups(step)))

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels, as it was sampled and graded."""
        return self._source.rollout(key)


def remedied(source: GroupSource, remedy: AppliedRemedy) -> ChangedSource:
    """Groups that have the rewards of a remedy, on the prompts of its update.

    Where every rollout was left out, all rewards are 0 instead, and nothing is learnt.
    """

    def change(step: int, groups: tuple[Group, ...]) -> Iterable[Group]:
        groups = tuple(remedy.group(group, source) for group in groups)
        if all(math.isnan(reward) for group in groups for reward in group.rewards):
            # Statistics of a step need one reward that is known; equal rewards have no advantage either.
            return [replace(group, rewards=(0.0,) * len(group.rewards)) for group in groups]
        return groups

    return ChangedSource(source, change)


def check_returning(batches: Sequence[Sequence[Problem]]) -> None:
    """Refuse a surprise reward where no problem comes back: every expectation would be that of one never met.

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
    """Groups whose rewards are minus the reward that the problem's record lets one expect.

        reward - (sum of the rewards on this problem in earlier batches + 3.5) / (their number + 2)

    A problem never met is expected to earn half of the most that can be earned. As in an Elo rating, success on a
    problem that is hardly ever paid is worth more than on one that always is.

    The expectation is the same for all rollouts of a problem, so of a group. Every estimator compares a rollout with
    its own group (or stratum): there the expectation cancels, as it does in the group's standard deviation. It acts
    where rewards of several problems meet: in the standard deviation of the batch that `scale_rewards` "batch" divides
    by, which is then of the surprises. It is one positive factor on all advantages of a batch, against the caps on
    advantages and on the norm of the gradient, and against other batches in the moments of AdamW. Settings under which
    it cannot act are refused (`probe.settings.loss`, `probe.settings.run`).

    Args:
        source: its rewards are as the loss would see them; one that is nan stays so.
        counts: {problem_id: counts} before the batch of a step.
    """

    def change(step: int, groups: tuple[Group, ...]) -> Iterator[Group]:
        known = counts(step)
        for group in groups:
            expected = known.get(group.problem_id, NEVER_MET).expected_reward
            yield replace(group, rewards=tuple(reward - expected for reward in group.rewards))

    return ChangedSource(source, change)
