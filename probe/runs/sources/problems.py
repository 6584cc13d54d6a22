"""The problems of a training's batches.

    no priority    fixed at the start: all in a random order, then in another one (`choose_problems`)
    a priority     drawn batch by batch, by the policy's results on each problem so far

The second is AlphaStar's prioritised fictitious self-play (Vinyals et al. 2019, Nature 575, 350-354) with problems in
place of opponents. p is the smoothed share of a problem's rollouts that were rewarded (`Tally`; a remedy may take a
reward away). The policy wins against a problem if it is rewarded; a group with all or no rollouts rewarded teaches
nothing:

    variance     p (1 - p)      f_var: prefer problems that are sometimes rewarded, so that groups have a gradient
    hard         1 - p          f_hard: prefer problems that are not rewarded yet
    exploited    e              prefer problems with wrong rollouts that pass (smoothed share): where the policy hacks

A new problem has p = e = 1/2, so that it is likely to be drawn soon.

To add a priority, add its word to `Priority` in `probe.settings.words` and its row to `PRIORITIES`.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import final

from probe.settings.words import Priority
from probe.step.distributed import SOLO, World
from probe.step.groups import RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.rollout import REWARD_COMPILES, REWARD_RANGE, Rollout

# Rates are (k + 1) / (n + 2), Laplace's rule of succession, the mean under a uniform prior: 1/2 for a new problem, and
# never 0 or 1.
PRIOR = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one problem's rollouts."""

    rollouts: int = 0
    paid: int = 0  # passed, and the loss sees more reward than for a failing answer
    exploited: int = 0  # passed and wrong, even if a remedy takes the reward away
    rewarded: int = 0  # with a reward in the loss; a remedy may leave some out
    reward: float = 0.0  # sum of the rewards in the loss

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.__dataclass_fields__})

    def rate(self, count: int) -> float:
        """Return a count as a smoothed share of rollouts, in (0, 1); 1/2 without rollouts."""
        return (count + PRIOR) / (self.rollouts + 2 * PRIOR)

    @property
    def expected_reward(self) -> float:
        """Mean reward, smoothed by one largest and one smallest (0) reward."""
        return (self.reward + PRIOR * REWARD_RANGE) / (self.rewarded + 2 * PRIOR)


NEVER_MET = Counts()
PRIORITIES: Mapping[Priority, Callable[[Counts], float]] = {
    "variance": lambda counts: counts.rate(counts.paid) * (1 - counts.rate(counts.paid)),
    "hard": lambda counts: 1 - counts.rate(counts.paid),
    "exploited": lambda counts: counts.rate(counts.exploited),
}


@final
class Tally:
    """The counts {problem_id: `Counts`} before any batch of a run.

    They are counted on disk, batch by batch, so that a resumed run, or one that samples ahead, gets the same counts.

    Args:
        read: returns {key: rollout} of a batch in the pool; called once a batch, in order.
        reward: reward that the loss sees; nan = none.
    """

    def __init__(self, read: Callable[[int], Mapping[RolloutKey, Rollout]], reward: Callable[[Rollout], float]) -> None:
        self._read, self._reward = read, reward
        self._before: dict[int, dict[str, Counts]] = {0: {}}  # by batch; a thread that samples ahead fills it, too

    def before(self, batch: int) -> Mapping[str, Counts]:
        """Return the counts over the batches before this one, which are all on disk; new problems have no key."""
        for done in range(len(self._before) - 1, batch):
            counted: dict[str, Counts] = {}
            for rollout in self._read(done).values():
                counted[rollout.problem_id] = counted.get(rollout.problem_id, NEVER_MET) + self._of(rollout)
            total = self._before[done]
            sums = {name: total.get(name, NEVER_MET) + counts for name, counts in counted.items()}
            self._before[done + 1] = total | sums
        return self._before[batch]

    def _of(self, rollout: Rollout) -> Counts:
        reward = self._reward(rollout)
        known = not math.isnan(reward)
        return Counts(
            rollouts=1,
            paid=bool(rollout.grade.passed) and reward > REWARD_COMPILES,  # False for nan
            exploited=bool(rollout.grade.exploited),
            rewarded=known,
            reward=reward if known else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of every batch of a run.

    With a priority, a batch is drawn without replacement: each draw takes a remaining problem with a probability
    proportional to its weight. Draws depend only on the seed, the batch and the tally before it, so that a resumed run
    repeats them.
    """

    candidates: Sequence[Sequence[Problem]]  # of every batch: its problems, or those that they are drawn from
    width: int  # problems of a batch
    priority: Priority | None = None
    seed: int = 0  # of the draws
    world: World = SOLO  # rank 0 counts and draws for all

    def __post_init__(self) -> None:
        """Refuse no more candidates than problems of a batch, which would then take all of them."""
        if self.priority is not None and (fewest := min(map(len, self.candidates))) <= self.width:
            expected = f"more problems than the {self.width} of a batch, which would take all whatever their weights"
            fix = "train on more problems, or on fewer prompts a step"
            raise InputError("rollouts.prioritise", expected=expected, found=str(fewest), fix=fix)

    @property
    def num_batches(self) -> int:
        """The number of batches."""
        return len(self.candidates)

    @property
    def listed(self) -> Sequence[Problem]:
        """Problems for the pool's header: all of the batches, or all candidates of draws."""
        listed = list(chain(*self.candidates))
        return listed if self.priority is None else [*{problem.problem_id: problem for problem in listed}.values()]

    def batch(self, batch: int, tally: Tally) -> Sequence[Problem]:
        """Return the problems of a batch; `tally` counts the run's pool, which holds all earlier batches."""
        if (priority := self.priority) is None:
            return self.candidates[batch]
        by_name = {problem.problem_id: problem for problem in self.candidates[batch]}

        def drawn() -> list[str]:
            counts, generator = tally.before(batch), random.Random(f"prioritise/{self.seed}/{batch}")
            return draw({name: counts.get(name, NEVER_MET) for name in by_name}, priority, self.width, generator)

        return [by_name[name] for name in self.world.on_main(drawn)]


def draw(candidates: Mapping[str, Counts], priority: Priority, width: int, generator: random.Random) -> list[str]:
    """Draw `width` different problems one by one, each in proportion to its weight among the remaining ones."""
    left, drawn = {name: PRIORITIES[priority](counts) for name, counts in candidates.items()}, []
    for _ in range(width):
        (name,) = generator.choices([*left], [*left.values()])
        drawn.append(name)
        del left[name]
    return drawn


def choose_problems(
    problems: Sequence[Problem], *, batches: int, prompts_per_step: int, seed: int
) -> list[list[Problem]]:
    """Return the problems of every batch: all problems in a random order, then in another one, and so on.

    The order of an epoch depends on (seed, epoch) alone, so that a longer run begins like a shorter one.
    """
    order: list[Problem] = []
    epoch = 0
    while len(order) < batches * prompts_per_step:
        order += random.Random(f"train/{seed}/{epoch}").sample(list(problems), len(problems))
        epoch += 1
    return [order[batch * prompts_per_step :][:prompts_per_step] for batch in range(batches)]
