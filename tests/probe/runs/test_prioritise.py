"""rollouts.prioritise: weights by hand, draws by simulation, counts from the pool, whole runs and refusals."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import nan
from operator import attrgetter
from types import SimpleNamespace

import pytest

from probe.runs.sources.problems import PRIORITIES, Counts, Problems, Tally, draw
from probe.step.groups import RolloutKey
from replay_pools.rollout import Rollout

# Smoothed: paid (k + 1) / (n + 2) is 1/2, 3/4 and 1/4; exploited 1/2, 1/2 and 1/8.
COUNTS = {
    "new": Counts(),
    "easy": Counts(rollouts=6, paid=5, exploited=3),
    "hard": Counts(rollouts=6, paid=1, exploited=0),
}


# {priority: the weights of COUNTS, by hand}
WEIGHTS = {
    "variance": {"new": 1 / 4, "easy": 3 / 16, "hard": 3 / 16},
    "hard": {"new": 1 / 2, "easy": 1 / 4, "hard": 3 / 4},
    "exploited": {"new": 1 / 2, "easy": 1 / 2, "hard": 1 / 8},
}


@pytest.mark.parametrize("priority", WEIGHTS)
def test_draws_are_without_replacement_by_the_weights_that_are_left(priority) -> None:
    """Frequencies of 20,000 draws of two against the exact law: w_a / W * w_b / (W - w_a). Four standard errors."""
    assert {name: PRIORITIES[priority](counts) for name, counts in COUNTS.items()} == pytest.approx(WEIGHTS[priority])
    times, total = 20_000, sum(WEIGHTS[priority].values())
    chances = {name: weight / total for name, weight in WEIGHTS[priority].items()}
    drawn = Counter(tuple(draw(COUNTS, priority, 2, random.Random(i))) for i in range(times))
    assert all(first != second for first, second in drawn)
    for first, chance in chances.items():
        for second in COUNTS.keys() - {first}:
            expected = chance * chances[second] / (1 - chance)
            error = (expected * (1 - expected) / times) ** 0.5
            assert drawn[first, second] / times == pytest.approx(expected, abs=4 * error)


@pytest.fixture
def held(make_rollout: Callable[..., Rollout]) -> dict[int, dict[RolloutKey, Rollout]]:
    """{batch: its rollouts}: two paid rollouts of problem 0, one of them exploited, and an unpaid one of problem 1."""
    paid = make_rollout(0, 0)
    paid = replace(paid, reward=3.5, grade=replace(paid.grade, passed=True, exploited=False))
    hack = replace(paid, sample_id=1, grade=replace(paid.grade, exploited=True))
    failed = make_rollout(1, 0)
    failed = replace(failed, reward=0.5, grade=replace(failed.grade, passed=False, exploited=False))
    batches = {0: [paid, hack], 1: [failed]}
    return {
        batch: {RolloutKey("rollouts", r.step, r.sample_id): r for r in rollouts} for batch, rollouts in batches.items()
    }


def test_a_batch_is_counted_before_the_next_one_only(held) -> None:
    """A rollout without reward counts in the rates alone; earlier batches stay as they are."""
    tally = Tally(held.__getitem__, attrgetter("reward"))
    assert tally.before(0) == {}
    reward = sum(rollout.reward for rollout in held[0].values())
    first = {"fake/0": Counts(rollouts=2, paid=2, exploited=1, rewarded=2, reward=reward)}
    assert tally.before(2) == first | {"fake/1": Counts(rollouts=1, rewarded=1, reward=0.5)}
    assert tally.before(1) == first
    screened = Tally(held.__getitem__, lambda rollout: nan).before(2)["fake/1"]
    assert (screened.rollouts, screened.rewarded, screened.reward) == (1, 0, 0.0)


def test_what_a_remedy_takes_the_pay_of_is_not_paid(held) -> None:
    """The hack of problem 0 passes by the loophole all the same; half of its pay would be pay."""
    for left, paid in ((nan, 1), (0.5, 1), (2.0, 2)):
        tally = Tally(held.__getitem__, lambda rollout, left=left: left if rollout.grade.exploited else 3.5)
        counts = tally.before(1)["fake/0"]
        assert (counts.rollouts, counts.paid, counts.exploited) == (2, paid, 1)


def problems(*names: str):
    return [SimpleNamespace(problem_id=name) for name in names]


def test_a_draw_depends_on_the_seed_the_batch_and_what_came_before(held) -> None:
    """Asked in any order, and by another process."""

    def make(seed: int = 0) -> Problems:
        known = problems("fake/0", "fake/1", *(f"new/{i}" for i in range(8)))
        return Problems([known] * 3, 2, "exploited", seed)

    tally = Tally(held.__getitem__, attrgetter("reward"))
    forward, backward = make(), make()
    drawn = [[p.problem_id for p in forward.batch(batch, tally)] for batch in range(3)]
    assert [[p.problem_id for p in backward.batch(batch, tally)] for batch in (2, 0, 1)] == [drawn[2], *drawn[:2]]
    assert len({tuple(p.problem_id for p in make(seed).batch(0, tally)) for seed in range(8)}) > 4
