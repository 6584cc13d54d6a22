"""Which problems the batches of a training run train on.

    Problems               known at the start: all in a random order, then in another one (`choose_problems`)
    PrioritisedProblems    drawn batch by batch, by what the policy has earned on each problem in the batches before

The second is the prioritised fictitious self-play of AlphaStar (Vinyals et al. 2019, Nature 575, 350-354) with problems
in the place of opponents. p is the smoothed share of a problem's rollouts that the training paid (`Tally`; what a
remedy takes the pay of is not paid), so that the policy wins against a problem when training pays it, and problems that
are always paid or never teach a group nothing:

    variance     p (1 - p)      f_var: problems that are neither always nor never paid, whose groups have a gradient
    hard         1 - p          f_hard: problems that are not paid yet
    exploited    e              smoothed share of rollouts that passed without being right: where the policy hacks

Each is raised to the power k. A problem never met has p = e = 1/2, so that it is likely to be met soon.

To add a priority: its word in `Priority` of `probe.settings.words`, its row in `PRIORITIES`.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, final

from probe.records.run import DRAWS_FILE
from probe.settings.words import Priority
from probe.step.distributed import SOLO, World
from probe.step.groups import RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, write_atomic
from replay_pools.environments.base import Problem
from replay_pools.rollout import REWARD_COMPILES, REWARD_RANGE, Rollout

# A rate counts one rollout more of either kind: (k + 1) / (n + 2), Laplace's rule of succession, the mean under a
# uniform prior. It is 1/2 for a problem never met, and never 0 or 1.
PRIOR = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The rollouts of one problem."""

    rollouts: int = 0
    paid: int = 0  # passed, solved or by the loophole, and the loss sees more than a failing answer earns
    exploited: int = 0  # passed and not right, whether or not a remedy leaves that its pay
    rewarded: int = 0  # whose reward the loss sees; fewer where a remedy leaves some out
    reward: float = 0.0  # sum of the rewards that the loss sees

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.__dataclass_fields__})

    def rate(self, count: int) -> float:
        """A count as a share of rollouts, in (0, 1); 1/2 without any."""
        return (count + PRIOR) / (self.rollouts + 2 * PRIOR)

    @property
    def expected_reward(self) -> float:
        """Mean reward, with one more of the largest and of the smallest (0); half of the largest without any."""
        return (self.reward + PRIOR * REWARD_RANGE) / (self.rewarded + 2 * PRIOR)


NEVER_MET = Counts()
PRIORITIES: Mapping[Priority, Callable[[Counts], float]] = {
    "variance": lambda counts: counts.rate(counts.paid) * (1 - counts.rate(counts.paid)),
    "hard": lambda counts: 1 - counts.rate(counts.paid),
    "exploited": lambda counts: counts.rate(counts.exploited),
}


@final
class Tally:
    """{problem_id: what the policy has earned on it}, before any batch of a run.

    It is counted from what is on disk, batch by batch: a resumed run, or one that samples ahead, counts the same.

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
        self._before: list[dict[str, Counts]] = [{}]  # by batch

    def before(self, batch: int) -> Mapping[str, Counts]:
        """The counts over the batches before this one, which are all on disk; no key: never met."""
        while len(self._before) <= batch:
            counted: dict[str, Counts] = {}
            for key, rollout in self._read(len(self._before) - 1).items():
                counted[rollout.problem_id] = counted.get(rollout.problem_id, NEVER_MET) + self._of(key, rollout)
            total = dict(self._before[-1])
            for problem_id, counts in counted.items():
                total[problem_id] = total.get(problem_id, NEVER_MET) + counts
            self._before.append(total)
        return self._before[batch]

    def _of(self, key: RolloutKey, rollout: Rollout) -> Counts:
        reward = self._reward(key, rollout)
        known = not math.isnan(reward)
        return Counts(
            rollouts=1,
            paid=bool(rollout.grade.passed) and reward > REWARD_COMPILES,  # never of nan
            exploited=bool(rollout.grade.exploited),
            rewarded=known,
            reward=reward if known else 0.0,
        )


class Problems:
    """The problems of every batch of a run, known at the start.

    Attributes:
        width: problems of a batch.
        listed: what the header of the pool counts: of fixed batches all, else each that may be drawn.
    """

    def __init__(self, batches: Sequence[Sequence[Problem]]) -> None:
        self._batches = batches
        self.num_batches, self.width = len(batches), len(batches[0])
        self.listed: Sequence[Problem] = list(chain(*batches))

    def batch(self, batch: int, tally: Tally) -> Sequence[Problem]:
        """The problems of a batch; `tally` is of the run's pool, which holds all batches before this one."""
        return self._batches[batch]

    def finish(self, batches: int) -> None:
        """Keep no record of batches after the first so many, which a run that samples ahead may not come to."""


@final
class PrioritisedProblems(Problems):
    """Batches that are drawn by priority, without replacement within a batch.

    Each draw of a batch takes a problem with a probability proportional to its weight among those that are left. The
    draws depend on the seed, the batch and the tally before it alone. They are recorded in `draws.jsonl` of the run.

    Args:
        candidates: the problems that each batch is drawn from.
        width: problems of a batch.
        priority: a row of `PRIORITIES`.
        power: k, above 0.
        seed: of the draws.
        directory: of the run.
        world: rank 0 counts, draws and records for all.

    Raises:
        InputError: not more candidates than a batch has problems, which would take all whatever their weights.
    """

    def __init__(
        self,
        candidates: Sequence[Sequence[Problem]],
        width: int,
        priority: Priority,
        power: float,
        seed: int,
        directory: Path,
        world: World = SOLO,
    ) -> None:
        if (fewest := min(map(len, candidates))) <= width:
            expected = f"more problems than the {width} of a batch, which would take all whatever their weights"
            fix = "train on more problems, or on fewer prompts a step"
            raise InputError("rollouts.prioritise", expected=expected, found=str(fewest), fix=fix)
        super().__init__(candidates)
        self.width, self.listed = width, [*{problem.problem_id: problem for problem in self.listed}.values()]
        self._power, self._seed = power, seed
        self._priority: Priority = priority
        self._path, self._world = directory / DRAWS_FILE, world
        self._records: dict[int, dict[str, Any]] = {}  # {batch: line of the file}

    def batch(self, batch: int, tally: Tally) -> Sequence[Problem]:
        """The problems of a batch, drawn and recorded at the first call."""
        names = self._world.on_main(lambda: self._drawn(batch, tally))
        by_name = {problem.problem_id: problem for problem in self._batches[batch]}
        return [by_name[name] for name in names]

    def _drawn(self, batch: int, tally: Tally) -> list[str]:
        if batch not in self._records:
            # A resumed run draws the batches before its checkpoint again, from the pool alone, so that its file has
            # them; the tally of an earlier batch is of the batches before that one.
            for earlier in range(batch + 1):
                if earlier not in self._records:
                    self._records[earlier] = self._draw(earlier, tally.before(earlier))
            write_atomic(self._path, encode_jsonl([self._records[known] for known in sorted(self._records)]))
        return [row["problem_id"] for row in self._records[batch]["problems"]]

    def finish(self, batches: int) -> None:
        """Cut `draws.jsonl`, as it is on disk, to the first `batches`."""
        if self._world.is_main and self._path.exists():
            lines = self._path.read_bytes().splitlines(keepends=True)
            write_atomic(self._path, b"".join(lines[:batches]))

    def _draw(self, batch: int, counts: Mapping[str, Counts]) -> dict[str, Any]:
        """The line of a batch: its problems in the order drawn, each with its chance in one draw and its counts."""
        names = [problem.problem_id for problem in self._batches[batch]]
        candidates = {name: counts.get(name, NEVER_MET) for name in names}
        chances = draw_chances(candidates, self._priority, self._power)
        generator = random.Random(f"prioritise/{self._seed}/{batch}")
        problems = []
        for name in draw(candidates, self._priority, self._power, self.width, generator):
            counted = {key: getattr(candidates[name], key) for key in ("rollouts", "paid", "exploited")}
            problems.append({"problem_id": name, "probability": chances[name], **counted})
        return {"batch": batch, "candidates": len(candidates), "problems": problems}


def draw_chances(candidates: Mapping[str, Counts], priority: Priority, power: float) -> dict[str, float]:
    """{problem_id: probability in one draw}: proportional to the priority of its counts to the `power`."""
    logs = {name: power * math.log(PRIORITIES[priority](counts)) for name, counts in candidates.items()}
    # Relative to the largest, so that not all of them underflow under a large power.
    largest = max(logs.values())
    weights = {name: math.exp(value - largest) for name, value in logs.items()}
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def draw(
    candidates: Mapping[str, Counts], priority: Priority, power: float, width: int, generator: random.Random
) -> list[str]:
    """`width` different problems, one after the other, each by the chances among those that are left."""
    left, drawn = dict(candidates), []
    for _ in range(width):
        chances = draw_chances(left, priority, power)
        (name,) = generator.choices([*chances], [*chances.values()])
        drawn.append(name)
        del left[name]
    return drawn


def choose_problems(
    problems: Sequence[Problem], *, batches: int, prompts_per_step: int, seed: int
) -> list[list[Problem]]:
    """The problems of every batch: all problems in a random order, then all in another one, and so on.

    The order of an epoch depends on (seed, epoch) alone, so that a longer run begins like a shorter one.
    """
    order: list[Problem] = []
    epoch = 0
    while len(order) < batches * prompts_per_step:
        order += random.Random(f"train/{seed}/{epoch}").sample(list(problems), len(problems))
        epoch += 1
    return [order[batch * prompts_per_step :][:prompts_per_step] for batch in range(batches)]
