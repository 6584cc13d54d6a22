"""rollouts.prioritise: weights by hand, draws by simulation, counts of a pool. Whole runs: test_others.py."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import nan
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from probe.runs.sources.problems import PRIORITIES, Counts, counted, draw
from replay_pools.rollout import Rollout

# Smoothed: paid (k + 1) / (n + 2) is 1/2, 3/4 and 1/4; exploited 1/2, 1/2 and 1/8.
COUNTS = {"new": Counts(), "easy": Counts(6, paid=5, exploited=3), "hard": Counts(6, paid=1, exploited=0)}
PROBLEMS: list[Any] = [SimpleNamespace(problem_id=name) for name in COUNTS]
# {priority: the weights of COUNTS, by hand}
WEIGHTS = {
    "variance": {"new": 1 / 4, "easy": 3 / 16, "hard": 3 / 16},
    "hard": {"new": 1 / 2, "easy": 1 / 4, "hard": 3 / 4},
    "exploited": {"new": 1 / 2, "easy": 1 / 2, "hard": 1 / 8},
}


@pytest.mark.parametrize("priority", WEIGHTS)
def test_draws_are_without_replacement_by_the_weights_that_are_left(priority) -> None:
    """Frequencies of 20,000 draws of two against the exact law: w_a / W * w_b / (W - w_a). Four standard errors."""
    found = {name: PRIORITIES[priority](*counts.rates) for name, counts in COUNTS.items()}
    assert found == pytest.approx(WEIGHTS[priority])
    times, total = 20_000, sum(WEIGHTS[priority].values())
    chances = {name: weight / total for name, weight in WEIGHTS[priority].items()}
    known = {"easy": COUNTS["easy"], "hard": COUNTS["hard"]}  # a new problem has no counts
    draws = (draw(PROBLEMS, known, priority, 2, random.Random(i)) for i in range(times))
    drawn = Counter(tuple(problem.problem_id for problem in pair) for pair in draws)
    assert all(first != second for first, second in drawn)
    for first, chance in chances.items():
        for second in COUNTS.keys() - {first}:
            expected = chance * chances[second] / (1 - chance)
            error = (expected * (1 - expected) / times) ** 0.5
            assert drawn[first, second] / times == pytest.approx(expected, abs=4 * error)


def test_a_batch_is_counted_by_problem(make_rollout: Callable[..., Rollout]) -> None:
    """Two rollouts of problem 0 pass, one of them exploits; one of problem 1 fails. A rollout without a reward counts
    in the rates alone. The exploit passes, whatever a remedy leaves of its reward; half of its pay would be pay.
    """
    first = make_rollout(0, 0)
    passed = replace(first, reward=3.5, grade=replace(first.grade, passed=True, exploited=False))
    hack = replace(passed, sample_id=1, grade=replace(passed.grade, exploited=True))
    failed = make_rollout(1, 0)
    failed = replace(failed, reward=0.5, grade=replace(failed.grade, passed=False, exploited=False))
    one = counted({}, [passed, hack], attrgetter("reward"))
    assert one == {"fake/0": Counts(2, paid=2, exploited=1, rewarded=2, reward=7.0)}
    two = counted(one, [failed], attrgetter("reward"))
    assert two == one | {"fake/1": Counts(1, rewarded=1, reward=0.5)}
    assert counted(two, [failed], lambda rollout: nan) == one | {"fake/1": Counts(2, rewarded=1, reward=0.5)}
    for left, paid in ((nan, 1), (0.5, 1), (2.0, 2)):
        counts = counted({}, [passed, hack], lambda rollout: left if rollout.grade.exploited else 3.5)["fake/0"]  # noqa: B023
        assert (counts.rollouts, counts.paid, counts.exploited) == (2, paid, 1)
