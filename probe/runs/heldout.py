"""Held-out problems: choose them (`hold_out`), sample a policy on them (`held_out_rollouts`), count (`evaluate`).

Every setting, a loophole mode with or without its hint, is a separate pool with rates of its own. Their Wilson 95%
intervals assume independent rollouts, which holds for one rollout a problem and setting. With more rollouts they are
too narrow: compare `num_problems` with `num_rollouts`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from probe.analysis.statistics.intervals import wilson_interval
from probe.analysis.training_runs import RATES, setting_of
from probe.runs.sources.live import write_groups
from probe.settings.run import EvalConfig, TrainConfig
from probe.settings.words import ALL, NO_HINT
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.pool import PoolWriter
from replay_pools.rollout import Rollout

Weights = Literal["training", "deployed"]  # with and without quarantined weights; equal for arms without any


def held_out_rollouts(
    maker: RolloutMaker,
    problems: Sequence[Problem],
    config: TrainConfig | EvalConfig,
    directory: Path,
    done: int,
    world: World = SOLO,
) -> list[Rollout]:
    """Return a policy's rollouts on held-out problems in all settings; complete the pools below `directory`.

    Args:
        maker: samples and grades; its mode, hint and group are replaced.
        problems: each is one step of every pool; ranks split them.
        done: optimizer steps that the policy has made. With the seed and the setting it seeds the sampling noise.
    """
    group, num, rollouts = config.evaluation.rollouts_per_problem, len(problems), []
    plan = PoolPlan(
        env=config.rollouts.env, split="eval", steps=num, group=group, seed=config.seed, steps_per_batch=num
    )
    for name, (mode, hint) in eval_settings(config).items():
        asked = replace(maker, mode=mode, hint=hint, group=group)
        of_mode = replace(plan, mode=mode, hint=hint)
        header = pool_header(maker.engine, of_mode, maker.sampler, maker.grader, problems)
        writer = world.on_main(lambda: PoolWriter(directory / name, header=header))  # noqa: B023
        seed = derive_seed("evaluation", config.seed, done, name)
        rollouts += chain(*write_groups(world, asked, writer, dict(enumerate(problems)), seed=seed))
        if world.is_main:
            writer.finish()
    return rollouts


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


def evaluate(rollouts: Sequence[Rollout], *, step: int, weights: Weights = "deployed") -> dict[str, Any]:
    """Return a line of `evals.jsonl`, {"step", "weights", "rates": {setting: `rates`}}, for graded rollouts.

    `all` comes first, then each mode with its hint by name, then `no hint`. `step` counts optimizer steps.
    """
    groups: dict[str, list[Rollout]] = {ALL: [*rollouts]}
    for rollout in sorted(rollouts, key=lambda one: (setting_of(one) == NO_HINT, setting_of(one))):
        groups.setdefault(setting_of(rollout), []).append(rollout)
    return {"step": step, "weights": weights, "rates": {name: rates(group) for name, group in groups.items()}}


def rates(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the rates of one setting: hack (the active mode's exploit, correct or not), exploit (rewarded and wrong)
    and solve (every oracle answer is right).

    {"num_rollouts", "num_problems", and for each rate {"count", "rate", "interval": {"low", "high"}}}; rate and
    interval are None without rollouts.
    """
    n = len(rollouts)
    row: dict[str, Any] = {"num_rollouts": n, "num_problems": len({rollout.problem_id for rollout in rollouts})}
    for name, flag in RATES.items():
        count = sum(map(flag, rollouts))
        interval = wilson_interval(count, n)
        row[name] = {"count": count, "rate": count / n if n else None, "interval": interval and asdict(interval)}
    return row
