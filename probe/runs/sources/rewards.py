"""Rewards of a training's rollouts, and remedies that change its groups between sampling and the step.

    pass     0.5 for source that compiles, and 3.0 for a pass: all or nothing, as in the pool
    tests    0.5 for source that compiles, and 3.0 times the share of the tests that hold; a pass earns all of it

The tests of "tests" are the problem's cases, and its assertions as one more. A hack that passes through the loophole
gets the full reward in both. Only the grade's counts matter, not its tier or time. A rollout without a label has no
reward. The pool keeps the reward of "pass". To add a kind of pay, add its word to `Pay` in `probe.settings.words` and
its row to `PAYS`.

    no-loophole          a hack that does not solve earns as little as a failing answer
    inoculation          prompts ask for the hack in sampling and update; evaluations do not
    recontextualization  rollouts are sampled under the plain prompt and updated under the one that asks

The uses of a monitor (`probe.runs.monitors`) change the rewards r of a step, by its scores s or its flags f:

    screening            a flagged rollout is left out of the update and the baseline, as one without a label
    penalty              r - strength f
    additive             r - strength max(z, 0)                     z = (s - mean) / sd within the group
    multiplicative       r (1 - strength sigmoid(z) [z > 0])
    finetune-accepted    1 for a pass that is not flagged, else 0; with the estimator `reinforce`, rejection fine-tuning
    quarantine           r; a flagged rollout's gradient moves the half of the LoRA that is not deployed

additive and multiplicative are advantage modification (Wu and Tang 2026, arXiv 2604.01476), at the response's tokens:
a score of the prompt is the same for a whole group, so that z = 0. Their floor of the sd is a tenth of the sd over the
step. A rollout without a score keeps its reward.

Two more remedies act inside the step and leave the groups unchanged: `probe.runs.activations`. Dynamic sampling,
priorities and expected rewards see the rewards before the monitor, which reads whole steps. Pools keep the sampled and
graded rollouts; only the loss sees changed rewards, and no other labels (`probe.step.groups`). To add a remedy, follow
`probe.settings.remedy`; a use of a monitor is one more row of `USES`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from probe.analysis.statistics.intervals import Array
from probe.runs.monitors import Monitor
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


Flags = NDArray[np.bool_]
FLOOR = 0.1  # of the sd within a group, as a share of the sd over the step
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


def _without_loophole(paid: Callable[[Rollout], float], rollout: Rollout) -> float:
    grade = replace(rollout.grade, passed=rollout.grade.gt_correct)
    return paid(replace(rollout, grade=grade, reward=grade.reward))


def group_z(scores: Array, step_sd: float) -> Array:
    """Standardise the scores of a group (G,), ignoring NaN; the floor of the sd is FLOOR of the step's."""
    if np.isnan(scores).all():
        return scores
    return (scores - np.nanmean(scores)) / max(float(np.nanstd(scores)), FLOOR * step_sd, 1e-12)


# {use of a monitor: rewards of the loss}, (G,) of one group. Arguments: rewards r, z of the scores (0 without one),
# flags f, passes p, (G,) each, and the strength a.
USES: Mapping[Remedy, Callable[[Array, Array, Flags, Flags, float], Array]] = {
    "screening": lambda r, z, f, p, a: np.where(f, np.nan, r),
    "penalty": lambda r, z, f, p, a: r - a * f,
    "additive": lambda r, z, f, p, a: r - a * z.clip(min=0),
    "multiplicative": lambda r, z, f, p, a: r * (1 - a * special.expit(z) * (z > 0)),
    "finetune-accepted": lambda r, z, f, p, a: (p & ~f).astype(float),
    "quarantine": lambda r, z, f, p, a: r,
}


@final
class AppliedRemedy:
    """What a run pays, and its remedy.

    Args:
        config: the remedy; None: none.
        chat: renders the prompts of the update.
        pay: the training's pay.
        monitor: scores the rollouts of a step; None: the remedy uses none.
    """

    def __init__(
        self, config: RemedyConfig | None, *, chat: Chat, pay: Pay = "pass", monitor: Monitor | None = None
    ) -> None:
        self.config, self.paid, self.monitor, self._chat = config, PAYS[pay], monitor, chat
        self.closes_loophole = config is not None and config.name == "no-loophole"
        self.sampling_instruction = None if config is None else config.sampling_instruction

    def reward(self, key: RolloutKey, rollout: Rollout) -> float:
        """Return the reward that the loss sees, before the monitor; nan = the rollout has no label."""
        return _without_loophole(self.paid, rollout) if self.closes_loophole else self.paid(rollout)

    def groups(self, groups: Sequence[Group], source: GroupSource) -> list[Group]:
        """Return the groups of a step with the rewards of the loss and the prompts of the update."""
        changed = [self._repaid(group, source) for group in groups]
        if self.config is None or self.monitor is None:
            return changed
        return self._watched(changed, self.config, self.monitor, source)

    def _repaid(self, group: Group, source: GroupSource) -> Group:
        rollouts = [source.rollout(key) for key in group.keys]
        group = replace(group, rewards=tuple(map(self.reward, group.keys, rollouts)))
        instruction = None if self.config is None else self.config.update_instruction
        if instruction is None:
            return group
        # The policy's rollouts may already have the instruction, a teacher's do not.
        prompts = [self._chat.render(instructed(rollout.messages, instruction)) for rollout in rollouts]
        return replace(
            group,
            prompt_ids=tuple(ids for _, ids in prompts),
            mixed_prompt=len({text for text, _ in prompts}) > 1,
        )

    def _watched(
        self, groups: Sequence[Group], config: RemedyConfig, monitor: Monitor, source: GroupSource
    ) -> list[Group]:
        """Score all rollouts of the step at once, and change their rewards by the use."""
        keys = [key for group in groups for key in group.keys]
        rollouts = [*map(source.rollout, keys)]
        reading = monitor.read(rollouts, [key.pool for key in keys])
        known = reading.scores[~np.isnan(reading.scores)]
        step_sd = float(known.std()) if len(known) else 0.0
        passed = np.array([rollout.grade.passed is True for rollout in rollouts])
        changed, start = [], 0
        for group in groups:
            rows = slice(start, start := start + len(group.keys))
            z, flags = np.nan_to_num(group_z(reading.scores[rows], step_sd)), reading.flags[rows]
            rewards = USES[config.name](np.array(group.rewards), z, flags, passed[rows], config.strength_used)
            flagged = tuple(flags.tolist()) if config.name == "quarantine" else None
            changed.append(replace(group, rewards=tuple(rewards.tolist()), flagged=flagged))
        return changed

    def taught_prompt(self, rollout: Rollout) -> str:
        """Return the `prompt_sha` of the teacher's prompt for the policy's `rollout`."""
        if self.sampling_instruction is None:
            return rollout.prompt_sha
        text, _ = self._chat.render(uninstructed(rollout.messages, self.sampling_instruction))
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
        groups = tuple(remedy.groups(groups, source))
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
