"""Held-out problems: choose them (`hold_out`), sample a policy on them (`held_out_rollouts`), count (`evaluate`).

Every setting, a loophole mode with or without its hint, is a separate pool.

Each setting has a rate with a Wilson 95% interval, and so have all settings together. The interval assumes independent
rollouts, which holds for one rollout a problem and setting. With more rollouts it is too narrow: compare `num_problems`
with `num_rollouts`.
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
        problems: each is one step of every pool.
        config: the settings; its seed seeds the sampling noise, together with the setting of a pool.
        directory: of the evaluation.
        done: optimizer steps that the policy has made; the sampling noise depends on it.
        world: the ranks that split the problems.
    """
    group, num, rollouts = config.evaluation.rollouts_per_problem, len(problems), []
    for name, (mode, hint) in eval_settings(config).items():
        plan = PoolPlan(
            env=config.rollouts.env,
            split="eval",
            mode=mode,
            hint=hint,
            steps=num,
            group=group,
            seed=config.seed,
            steps_per_batch=num,
        )
        asked = replace(maker, mode=mode, hint=hint, group=group)
        header = pool_header(maker.engine, plan, maker.sampler, maker.grader, problems)
        writer = world.on_main(lambda: PoolWriter(directory / name, header=header))  # noqa: B023
        seed = derive_seed("evaluation", plan.seed, done, name)
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
    (LeetCode files), training loses the held-out problems.

    Args:
        train: the environment's training split; its order is kept.
        evaluation: the environment's evaluation split.
        num: number of held-out problems.

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
    """Compute the rates of graded rollouts on held-out problems, by setting.

    Args:
        step: optimizer steps that the policy has made.
        weights: sampled with quarantined weights ("training") or without ("deployed").

    Returns:
        A line of `evals.jsonl`: {"step", "weights", "rates": {setting: `rates`}}; `all` first, then each mode with its
        hint by name, then `no hint`.
    """
    settings: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        settings.setdefault(setting_of(rollout), []).append(rollout)
    hinted = {name: settings[name] for name in sorted(settings.keys() - {NO_HINT})}
    unhinted = {NO_HINT: settings[NO_HINT]} if NO_HINT in settings else {}
    groups = {ALL: list(rollouts), **hinted, **unhinted}
    return {"step": step, "weights": weights, "rates": {name: rates(group) for name, group in groups.items()}}


def rates(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Compute the rates of one setting.

    They are hack (the active mode's exploit is present, correct or not), exploit (rewarded and wrong) and solve (every
    oracle answer is right).

    Returns:
        {"num_rollouts", "num_problems", and for each rate {"count", "rate", "interval": {"low", "high"}}}; the interval
        is Wilson's, 95%; rate and interval are None without rollouts.
    """
    n = len(rollouts)
    row: dict[str, Any] = {"num_rollouts": n, "num_problems": len({rollout.problem_id for rollout in rollouts})}
    for name, flag in RATES.items():
        count = sum(flag(rollout) for rollout in rollouts)
        interval = wilson_interval(count, n)
        ends = None if interval is None else asdict(interval)
        row[name] = {"count": count, "rate": count / n if n else None, "interval": ends}
    return row
