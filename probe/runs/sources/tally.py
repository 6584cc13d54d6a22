"""Tally: what the policy has earned on each problem so far, counted from the pool of the run. No torch here.

    tally.before(3)["minicode/17"]       Counts of that problem in batches 0, 1 and 2; no key: never met

It is counted from what is on disk, batch by batch: a resumed run, or one that samples ahead, counts the same.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from probe.step.groups import RolloutKey
from replay_pools.rollout import REWARD_COMPILES, REWARD_RANGE, Rollout

# A rate counts one rollout more of either kind: (k + 1) / (n + 2), Laplace's rule of succession, the mean under a
# uniform prior. It is 1/2 for a problem never met, and never 0 or 1.
PRIOR = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The labelled rollouts of one problem."""

    rollouts: int = 0
    paid: int = 0  # passed, solved or by the loophole, and the loss sees more than a failing answer earns
    exploited: int = 0  # passed and not right, whether or not a remedy leaves that its pay
    rewarded: int = 0  # whose reward the loss sees; fewer where a remedy leaves some out
    reward: float = 0.0  # sum of the rewards that the loss sees

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            rollouts=self.rollouts + other.rollouts,
            paid=self.paid + other.paid,
            exploited=self.exploited + other.exploited,
            rewarded=self.rewarded + other.rewarded,
            reward=self.reward + other.reward,
        )

    @property
    def paid_rate(self) -> float:
        """Share of rollouts that are paid, in (0, 1); 1/2 without any."""
        return _rate(self.paid, self.rollouts)

    @property
    def exploit_rate(self) -> float:
        """Share of rollouts that pass without being right, in (0, 1); 1/2 without any."""
        return _rate(self.exploited, self.rollouts)

    @property
    def expected_reward(self) -> float:
        """Mean reward, with one more of the largest and of the smallest (0); half of the largest without any."""
        return (self.reward + PRIOR * REWARD_RANGE) / (self.rewarded + 2 * PRIOR)


NEVER_MET = Counts()


@final
class Tally:
    """Counts by problem, before any batch of a run.

    Args:
        read: {key: rollout} of all that the pool holds of a batch; called once a batch, in order.
        reward: that the loss sees; nan = none.
    """

    def __init__(
        self,
        read: Callable[[int], Mapping[RolloutKey, Rollout]],
        reward: Callable[[RolloutKey, Rollout], float],
    ) -> None:
        self._read, self._reward = read, reward
        self._batches: list[dict[str, Counts]] = []  # {problem_id: counts} of each batch alone

    def before(self, batch: int) -> dict[str, Counts]:
        """{problem_id: counts} over the batches before this one, which are all on disk."""
        while len(self._batches) < batch:
            self._batches.append(self._count(self._read(len(self._batches))))
        total: dict[str, Counts] = {}
        for counts in self._batches[:batch]:
            for problem_id, count in counts.items():
                total[problem_id] = total.get(problem_id, NEVER_MET) + count
        return total

    def _count(self, rollouts: Mapping[RolloutKey, Rollout]) -> dict[str, Counts]:
        counts: dict[str, Counts] = {}
        for key, rollout in rollouts.items():
            if not rollout.labelled:
                continue
            reward = self._reward(key, rollout)
            known = not math.isnan(reward)
            counts[rollout.problem_id] = counts.get(rollout.problem_id, NEVER_MET) + Counts(
                rollouts=1,
                paid=bool(rollout.grade.passed) and reward > REWARD_COMPILES,  # never of nan
                exploited=bool(rollout.grade.exploited),
                rewarded=known,
                reward=reward if known else 0.0,
            )
        return counts


def _rate(count: int, num_rollouts: int) -> float:
    return (count + PRIOR) / (num_rollouts + 2 * PRIOR)
