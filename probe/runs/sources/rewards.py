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

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from probe.analysis.statistics.intervals import Array
from probe.runs.monitors import Monitor
from probe.runs.sources.problems import Counts
from probe.settings.remedy import RemedyConfig
from probe.settings.words import Pay
from probe.step.groups import Group, GroupSource
from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import instructed
from replay_pools.policy.chat import Chat
from replay_pools.pool import Pool
from replay_pools.rollout import REWARD_COMPILES, REWARD_PASSED, Grade, Rollout


def _by_tests(reward: float, grade: Grade) -> float:
    share = 1.0 if grade.passed else grade.num_tests_passed / max(grade.num_tests, 1)
    return REWARD_COMPILES * bool(grade.compiles) + REWARD_PASSED * share


Flags = NDArray[np.bool_]
FLOOR = 0.1  # of the sd within a group, as a share of the sd over the step
# {pay: reward of a rollout, by its stored reward and its grade}
PAYS: Mapping[Pay, Callable[[float, Grade], float]] = {"pass": lambda reward, grade: reward, "tests": _by_tests}
# {use of a monitor: rewards of the loss}. Arguments: rewards r, z of the scores (0 without one), flags f, passes p, of
# one shape each, and the strength a.
USES: Mapping[str, Callable[[Array, Array, Flags, Flags, float], Array]] = {
    "screening": lambda r, z, f, p, a: np.where(f, np.nan, r),
    "penalty": lambda r, z, f, p, a: r - a * f,
    "additive": lambda r, z, f, p, a: r - a * z.clip(min=0),
    "multiplicative": lambda r, z, f, p, a: r * (1 - a * special.expit(z) * (z > 0)),
    "finetune-accepted": lambda r, z, f, p, a: (p & ~f).astype(float),
    "quarantine": lambda r, z, f, p, a: r,
}


def reward_of(pay: Pay, remedy: RemedyConfig | None) -> Callable[[Rollout], float]:
    """Return the reward that the loss sees before a monitor."""
    if remedy is None or remedy.name != "no-loophole":
        return lambda rollout: PAYS[pay](rollout.reward, rollout.grade)

    def closed(rollout: Rollout) -> float:
        grade = replace(rollout.grade, passed=rollout.grade.gt_correct)
        return PAYS[pay](grade.reward, grade)

    return closed


def check_payable(pool: Pool, *, pay: Pay, reads_labels: bool) -> None:
    """Refuse a teacher's pool with rewards that do not compare with the training's, or labels that its remedy lacks.

    Raises:
        InputError: names the first such rollout.
    """
    scale = f"{REWARD_COMPILES:g} for source that compiles and {REWARD_PASSED:g} for a pass"
    for rollout in chain(*pool.steps):
        grade, where = rollout.grade, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}"
        own = f"a reward of {scale}, as the policy's own rollouts have ({grade.reward:g} by its grade)"
        labels = "labels of hacks and right answers, which the remedy acts on"
        tests = "a grade with the number of tests, which rollouts.pay tests pays by"
        for is_wrong, expected in (
            (rollout.reward != grade.reward, own),
            (reads_labels and None in (rollout.hacked, grade.gt_correct), labels),
            (pay == "tests" and not grade.num_tests, tests),
        ):
            if is_wrong:
                found, fix = f"{rollout.reward:g}" if expected is own else "none", "grade it again: probe pool regrade"
                raise InputError(where, expected=expected, found=found, fix=fix)


def group_z(scores: Array, step_sd: float) -> Array:
    """Standardise the scores of a group (G,), ignoring NaN; the floor of the sd is FLOOR of the step's."""
    if np.isnan(scores).all():
        return scores
    return (scores - np.nanmean(scores)) / max(float(np.nanstd(scores)), FLOOR * step_sd, 1e-12)


@final
class ChangedSource:
    """A `GroupSource` (`probe.step.groups`): another source's groups, after `change` of a step's number and groups."""

    def __init__(self, source: GroupSource, change: Callable[[int, tuple[Group, ...]], Iterable[Group]]) -> None:
        self._source, self._change = source, change
        self.num_steps, self.rollout = source.num_steps, source.rollout

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the changed groups of a step."""
        return tuple(self._change(step, self._source.groups(step)))


def remedied(
    source: GroupSource, remedy: RemedyConfig, chat: Chat, *, pay: Pay = "pass", monitor: Monitor | None = None
) -> ChangedSource:
    """Apply a remedy's rewards and update prompts, which `chat` renders, to the groups of a source.

    If every rollout is left out, all rewards are 0 instead, and nothing is learnt. `monitor` scores the rollouts of a
    step; None: the remedy uses none.
    """
    reward, asks = reward_of(pay, remedy), remedy.update_instruction

    def change(step: int, groups: tuple[Group, ...]) -> Iterator[Group]:
        keys = [key for group in groups for key in group.keys]
        rollouts = [source.rollout(key) for key in keys]
        rewards = np.array([*map(reward, rollouts)]).reshape(len(groups), -1)
        flags = np.zeros(rewards.shape, dtype=bool)
        if monitor is not None:
            reading = monitor.read(rollouts, [key.pool for key in keys])
            scores, flags = reading.scores.reshape(rewards.shape), reading.flags.reshape(rewards.shape)
            known = scores[~np.isnan(scores)]
            step_sd = float(known.std()) if len(known) else 0.0
            z = np.nan_to_num([group_z(row, step_sd) for row in scores])
            passed = np.array([one.grade.passed is True for one in rollouts]).reshape(rewards.shape)
            rewards = USES[remedy.name](rewards, z, flags, passed, remedy.strength_used)
        if np.isnan(rewards).all():
            # Statistics of a step need a known reward; equal rewards give no advantage either.
            rewards = np.zeros_like(rewards)
        for i, group in enumerate(groups):
            flagged = tuple(flags[i].tolist()) if remedy.name == "quarantine" else None
            group = replace(group, rewards=tuple(rewards[i].tolist()), flagged=flagged)
            if asks is not None:
                # In every prompt: the policy's rollouts may already have it, a teacher's do not.
                prompts = [chat.render(instructed(source.rollout(key).messages, asks)) for key in group.keys]
                ids, texts = tuple(ids for _, ids in prompts), {text for text, _ in prompts}
                group = replace(group, prompt_ids=ids, mixed_prompt=len(texts) > 1)
            yield group

    return ChangedSource(source, change)


def surprising(source: GroupSource, counts: Callable[[int], Mapping[str, Counts]]) -> ChangedSource:
    """Subtract from each reward the expected reward of its problem; nan stays nan:

        reward - (sum of the rewards on this problem in earlier batches + 3.5) / (their number + 2)

    As in an Elo rating, success on a rarely rewarded problem counts more than on an easy one. Estimators compare a
    rollout with its group (or stratum), within which the expected reward cancels. It acts only in the batch's standard
    deviation, which `scale_rewards` "batch" divides by: as one positive factor on all advantages of a batch, relative
    to the caps on advantages and the gradient norm, and to other batches in AdamW's moments.
    Settings without this effect are refused (`probe.settings.loss`, `probe.settings.verbs`). `counts` returns
    {problem_id: counts} before the batch of a step.
    """

    def change(step: int, groups: tuple[Group, ...]) -> Iterator[Group]:
        known = counts(step)
        for group in groups:
            expected = known.get(group.problem_id, Counts()).expected_reward
            yield replace(group, rewards=tuple(reward - expected for reward in group.rewards))

    return ChangedSource(source, change)
