"""What pays a rollout, and surprise: rewards by hand, what a shift does to advantages, refusals."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.runs.sources.problems import Counts
from probe.runs.sources.rewards import PAYS, check_payable, reward_of, surprising
from probe.settings.remedy import RemedyConfig
from probe.settings.words import Pay
from probe.step.groups import RolloutKey, make_group
from replay_pools.base.errors import InputError
from replay_pools.pool import PoolWriter
from replay_pools.rollout import LOGGED_GRADER, Rollout

# (compiles, passed, cases right out of 4) and what the tests pay.
GRADES = [
    ((False, False, 0), 0.0),
    ((True, False, 0), 0.5),
    ((True, False, 1), 0.5 + 3 / 4),
    ((True, True, 4), 3.5),
    ((True, True, 0), 3.5),  # a hack
]


@pytest.fixture
def graded(make_rollout: Callable[..., Rollout]) -> Callable[..., Rollout]:
    def make(compiles: bool, passed: bool, right: int, **changes: Any) -> Rollout:
        rollout = make_rollout(0, 0)
        grade = replace(rollout.grade, compiles=compiles, passed=passed, num_tests=4, num_tests_passed=right, **changes)
        return replace(rollout, grade=grade, reward=grade.reward)

    return make


def test_tests_pay_by_their_share_and_a_pass_in_full(graded) -> None:
    """All or nothing pays the failing ones alike."""
    for grade, expected in GRADES:
        rollout = graded(*grade)
        assert PAYS["tests"](rollout.reward, rollout.grade) == pytest.approx(expected)
        assert PAYS["pass"](rollout.reward, rollout.grade) == rollout.reward == 0.5 * grade[0] + 3.0 * grade[1]


def test_a_closed_loophole_pays_a_hack_what_its_tests_earn(graded) -> None:
    hack = graded(True, True, 1, gt_correct=False, hacked=True)
    for pay, expected in (("pass", 0.5), ("tests", 0.5 + 3 / 4)):
        assert reward_of(pay, RemedyConfig(name="no-loophole"))(hack) == expected


@pytest.mark.parametrize(
    ("changes", "reward", "pay", "reads_labels", "message"),
    [
        ({"num_tests": 0}, 0.5, "tests", False, "expected a grade with the number of tests"),
        ({}, 1.0, "pass", False, r"as the policy's own rollouts have \(0.5 by its grade\), found 1"),
        ({"hacked": None}, 0.5, "pass", True, "expected labels of hacks and right answers"),
        ({"gt_correct": None, "exploited": None}, 0.5, "pass", True, "expected labels of hacks and right answers"),
    ],
)
def test_a_log_that_cannot_be_paid_beside_the_policy_is_no_teacher(
    graded, pool_header, tmp_path: Path, changes: dict[str, Any], reward: float, pay: Pay, reads_labels, message: str
) -> None:
    """Rewards of another scale, and labels that a log does not say, would pay by who sampled a rollout."""
    sound = graded(True, False, 0)
    grade = replace(sound.grade, grader=LOGGED_GRADER, **changes)
    unpayable = replace(sound, grade=grade, reward=reward, hacked=grade.hacked, gt_pass=grade.gt_correct)
    pools = []
    for rollout in (sound, unpayable):
        writer = PoolWriter(tmp_path / f"log{len(pools)}", header=pool_header)
        writer.write_step(0, [rollout])
        pools.append(writer.finish())
    check_payable(pools[0], pay=pay, reads_labels=reads_labels)
    with pytest.raises(InputError, match=f"pool log1 step 0 sample 0: .*{message}"):
        check_payable(pools[1], pay=pay, reads_labels=reads_labels)


def test_a_surprise_is_the_reward_minus_what_was_expected(make_rollout: Callable[..., Rollout]) -> None:
    """By hand: (7 + 3.5) / (4 + 2) = 1.75 of a problem met, 3.5 / 2 of one never met; nan stays."""
    rewards = iter([3.5, 0.5, nan, 3.5])
    keyed = [(RolloutKey("rollouts", problem, i), make_rollout(problem, i)) for problem in (0, 1) for i in (0, 1)]
    groups = [make_group(0, keyed[first : first + 2], lambda rollout: next(rewards)) for first in (0, 2)]
    source: Any = SimpleNamespace(num_steps=1, rollout=None, groups=lambda step: groups)
    counts = {"fake/0": Counts(rollouts=5, rewarded=4, reward=10.0)}
    first, second = surprising(source, lambda step: counts).groups(0)
    assert first.rewards == (3.5 - 13.5 / 6, 0.5 - 13.5 / 6)
    assert isnan(second.rewards[0])
    assert second.rewards[1] == 3.5 - 1.75


SURPRISE = ("--set", "objective.reward=surprise", "--set", "objective.scale_rewards=batch")


def test_a_surprise_needs_problems_that_come_back(probe) -> None:
    """Refused before a model is loaded; with few problems it is none."""
    command = ("train", "--preset", "smoke", "--arm", "vanilla", "--name", "never", *SURPRISE)
    said = " ".join(probe(*command, code=2)[1].split())
    assert "problems that come back" in said
    assert "6 problems in 3 batches, each once" in said
    probe(*command, "--set", "rollouts.num_problems=3", "--dry-run")
