"""What a training pays a graded rollout, and rewards beside what the record of a problem lets one expect.

    pass     0.5 for source that compiles, and 3.0 for a pass: all or nothing, as the pool has it
    tests    0.5 for source that compiles, and 3.0 times the share of the tests that hold; a pass earns all of it

The tests of "tests" are the problem's cases, and its assertions as one more. A hack that passes by the loophole is paid
in full by both. Only counts of the grade are read, no tier and no time. A rollout without label has no reward, whatever
pays. The pool keeps the reward of "pass".

To add a way to pay: its word in `Pay` of `probe.settings.words`, its row in `PAYS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from probe.runs.sources.tally import NEVER_MET, Counts
from probe.settings.words import Pay
from probe.step.groups import Group, GroupSource, RolloutKey
from replay_pools.errors import InputError
from replay_pools.pool import Pool
from replay_pools.rollout import REWARD_COMPILES, REWARD_PASSED, Rollout


def _by_tests(rollout: Rollout) -> float:
    grade = rollout.grade
    assertions = grade.detectors.get("assertions")  # None: the problem has none
    num_tests = grade.num_tests + (assertions is not None)
    num_held = grade.num_tests_passed + bool(assertions)
    share = 1.0 if grade.passed else num_held / max(num_tests, 1)
    return REWARD_COMPILES * bool(grade.compiles) + REWARD_PASSED * share


# The reward of a labelled rollout.
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
    for step in pool.steps:
        for rollout in step:
            fault = _unpayable(rollout, pay, reads_labels) if rollout.labelled else None
            if fault is not None:
                raise InputError(
                    f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}",
                    expected=fault[0],
                    found=fault[1],
                    fix="grade the pool again: probe pool regrade",
                )


def _unpayable(rollout: Rollout, pay: Pay, reads_labels: bool) -> tuple[str, str] | None:
    """(what was expected, what was found) of a rollout that cannot be paid; None where it can."""
    grade = rollout.grade
    if rollout.reward != grade.reward:
        scale = f"{REWARD_COMPILES:g} for source that compiles and {REWARD_PASSED:g} for a pass"
        expected = f"a reward of {scale}, as the policy's own rollouts have ({grade.reward:g} by its grade)"
        return expected, f"{rollout.reward:g}"
    if reads_labels and None in (rollout.hacked, grade.gt_correct):
        return "labels of hacks and right answers, which the remedy acts on", "none"
    if pay == "tests" and not grade.num_tests and grade.detectors.get("assertions") is None:
        return "a grade with the number of tests, which rollouts.pay tests pays by", "none"
    return None


@final
class SurpriseSource:
    """A `GroupSource` (`probe.step.groups`) of rewards minus the reward that the problem's record lets one expect.

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
        source: its rewards are as the loss would see them.
        counts: {problem_id: counts} before the batch of a step.
    """

    def __init__(self, source: GroupSource, counts: Callable[[int], Mapping[str, Counts]]) -> None:
        self._source, self._counts = source, counts
        self.num_steps = source.num_steps

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step; a reward that is nan stays so."""
        groups = self._source.groups(step)
        counts = self._counts(step)
        surprising = []
        for group in groups:
            expected = counts.get(group.problem_id, NEVER_MET).expected_reward
            surprising.append(replace(group, rewards=tuple(reward - expected for reward in group.rewards)))
        return tuple(surprising)

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels, as it was sampled and graded."""
        return self._source.rollout(key)
