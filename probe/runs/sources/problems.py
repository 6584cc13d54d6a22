"""The problems of a run: held out, and of a training's batches.

    no priority    fixed at the start: all in a random order, then in another one (`choose_problems`)
    a priority     drawn batch by batch, by the policy's results on each problem so far (`draw`)

The second is AlphaStar's prioritised fictitious self-play (Vinyals et al. 2019, Nature 575, 350-354) with problems in
place of opponents. p is the smoothed share of a problem's rollouts that were rewarded (a remedy may take a reward
away), e the smoothed share of wrong ones that pass:

    variance     p (1 - p)      f_var: prefer problems that are sometimes rewarded, so that groups have a gradient
    hard         1 - p          f_hard: prefer problems that are not rewarded yet
    exploited    e              prefer problems on which the policy hacks

A new problem has p = e = 1/2, so that it is likely to be drawn soon.

To add a priority, add its word to `Priority` in `probe.settings.words` and its row to `PRIORITIES`.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

from probe.settings.verbs import EvalConfig, TrainConfig
from probe.settings.words import Priority
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.rollout import REWARD_COMPILES, REWARD_RANGE, Rollout

# Rates are (k + 1) / (n + 2), Laplace's rule of succession, the mean under a uniform prior: 1/2 for a new problem, and
# never 0 or 1.
PRIOR = 1
PRIORITIES: Mapping[Priority, Callable[[float, float], float]] = {
    "variance": lambda p, e: p * (1 - p),
    "hard": lambda p, e: 1 - p,
    "exploited": lambda p, e: e,
}


class Counts(NamedTuple):
    """Counts of one problem's rollouts."""

    rollouts: int = 0
    paid: int = 0  # passed, and the loss sees more reward than for a failing answer
    exploited: int = 0  # passed and wrong, even if a remedy takes the reward away
    rewarded: int = 0  # with a reward in the loss; a remedy may leave some out
    reward: float = 0.0  # sum of the rewards in the loss

    @property
    def rates(self) -> tuple[float, float]:
        """The smoothed shares (p, e) of paid and of exploited rollouts, in (0, 1)."""
        p, e = ((count + PRIOR) / (self.rollouts + 2 * PRIOR) for count in (self.paid, self.exploited))
        return p, e

    @property
    def expected_reward(self) -> float:
        """Mean reward, smoothed by one largest and one smallest (0) reward."""
        return (self.reward + PRIOR * REWARD_RANGE) / (self.rewarded + 2 * PRIOR)


def counted(
    before: Mapping[str, Counts], rollouts: Iterable[Rollout], reward: Callable[[Rollout], float]
) -> dict[str, Counts]:
    """Add the rollouts of a batch to {problem_id: counts}; `reward` is the one that the loss sees, nan = none."""
    batch: dict[str, Counts] = {}
    for rollout in rollouts:
        name, grade, value = rollout.problem_id, rollout.grade, reward(rollout)
        is_paid, known = bool(grade.passed) and value > REWARD_COMPILES, not math.isnan(value)
        row = 1, is_paid, bool(grade.exploited), known, value if known else 0.0
        batch[name] = Counts._make(map(add, batch.get(name, Counts()), row))
    return {**before} | {
        name: Counts._make(map(add, before.get(name, Counts()), counts)) for name, counts in batch.items()
    }


def draw(
    problems: Sequence[Problem],
    counts: Mapping[str, Counts],
    priority: Priority,
    width: int,
    generator: random.Random,
) -> list[Problem]:
    """Draw `width` different problems one by one, each in proportion to its weight among the remaining ones."""
    rates = [counts.get(problem.problem_id, Counts()).rates for problem in problems]
    left, drawn = {i: PRIORITIES[priority](p, e) for i, (p, e) in enumerate(rates)}, []
    for _ in range(width):
        (i,) = generator.choices([*left], [*left.values()])
        drawn.append(problems[i])
        del left[i]
    return drawn


def problems_of(config: TrainConfig | EvalConfig) -> tuple[list[Problem], list[Problem]]:
    """Return (problems to train on, held-out problems) of a run's environment; InputError as `hold_out`."""
    environment = get_environment(config.rollouts.env)
    return hold_out(environment.problems("train"), environment.problems("eval"), config.evaluation.num_problems)


def eval_settings(config: TrainConfig | EvalConfig) -> dict[str, tuple[str, bool]]:
    """Return {pool: (mode, hint)}: every mode with its hint, and if asked for the training's mode without it."""
    evaluation, mode = config.evaluation, config.rollouts.mode
    settings = {name: (name, True) for name in evaluation.modes or (mode,)}
    return settings | {f"{mode}-no-hint": (mode, False)} if evaluation.without_hint else settings


def hold_out(train: Sequence[Problem], evaluation: Sequence[Problem], num: int) -> tuple[list[Problem], list[Problem]]:
    """Return disjoint (training problems, `num` held-out problems).

    The choice depends on the hashes of the problem ids alone. So all arms, seeds and steps share the held-out problems
    and can be paired by problem, and a smaller choice is a subset of a larger one. If both splits are the same list
    (LeetCode files), training loses the held-out problems and keeps its order.

    Raises:
        InputError: fewer than `num` problems, or none left for training.
    """
    ranked = sorted(evaluation, key=lambda problem: hashlib.sha256(problem.problem_id.encode()).digest())
    held_out = ranked[:num]
    names = {problem.problem_id for problem in held_out}
    left = [problem for problem in train if problem.problem_id not in names]
    if not 0 < len(held_out) == num or not left:
        counts = f"{len(evaluation)}, with {len(left)} of {len(train)} left to train on"
        raise InputError("held-out problems", expected=f"{num} or more problems, and others to train on", found=counts)
    return left, held_out


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
