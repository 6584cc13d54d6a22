"""Training of `probe train`: load the policy, assemble the run, and hand live groups to the steps of `probe replay`.

    config -> policy -> Assembly (directions, measures, what trains)
           -> problems, engine -> LiveSource; MixedSource with a teacher or a past self; RemediedSource with a remedy;
                                  SurpriseSource; PrefetchedSource, ahead   (probe.runs.training_rollouts)
           -> run_steps, with an Evaluator before every step

`config.json` is written before any number is computed, and holds all that shapes the numbers: `train` with its settings
repeats the run.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from probe.records.run import ADAPTER_DIR
from probe.records.timings import Timings
from probe.runs.assemble import Assembly, assemble
from probe.runs.directions import directions_source
from probe.runs.footprint import run_footprint
from probe.runs.heldout import HeldOut, eval_settings
from probe.runs.loop import run_steps
from probe.runs.policies import configured_adapter, configured_policy
from probe.runs.preview import Preview, make_preview
from probe.runs.resume import is_complete, open_run
from probe.runs.training_evals import Evaluator
from probe.runs.training_rollouts import (
    arm_of,
    evaluation_of,
    make_maker,
    open_engine,
    open_source,
    open_teacher,
    rollouts_of,
    training_problems,
)
from probe.settings.run import RunConfig
from probe.step.distributed import SOLO, World
from replay_pools.environments.base import Problem
from replay_pools.errors import InputError
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.adapters import START, adapter_sha, copy_adapter
from replay_pools.pool import Pool


def train(
    config: RunConfig,
    directory: Path,
    *,
    out_dir: Path,
    url: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    world: World = SOLO,
) -> None:
    """Run (or resume) a training run into `directory`; caches live under `out_dir`/cache. All ranks call this.

    Args:
        directory: of the run; one that holds some of its steps is continued, one of another run is refused.
        out_dir: root of what is written; pools are looked up in it.
        url: of the server that samples, with `rollouts.engine` "server". It is no setting of the run, which may be
            continued with a server at another place.
        say: gets one line of progress at a time.
        world: all ranks.

    Raises:
        InputError: settings, problems, model or directions that are wrong or do not fit together, or a directory that
            holds another run.
    """
    config = _resolved(config)
    _check_world(config, world)
    timings = Timings()
    teacher = open_teacher(config, out_dir)
    problems, held_out = training_problems(config, teacher, directory, world)
    with timings.phase("load"):
        device = world.loads_on(config.model.device)
        policy = configured_policy(config.model, out_dir / "cache", device=device)
    record = _record(config, teacher)
    # The number of ranks is part of the run: sums over ranks round differently, which shows in the last bits.
    record |= {"model": policy.base_model, "base_weights_sha256": policy.base_weights_sha, "ranks": world.size}
    done = world.on_main(lambda: open_run(directory, record))
    if world.on_main(partial(is_complete, directory)):
        say(f"{directory} is complete; nothing to do")
        return
    world.on_main(partial(_keep_start, config, directory))
    assert config.steps is not None
    assembly = assemble(
        config,
        policy,
        directory,
        out_dir / "cache",
        num_steps=config.steps,
        timings=timings,
        say=say,
        world=world,
    )
    training = assembly.training
    assert training is not None
    # The ranks of a machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    rollouts = rollouts_of(config)
    with (
        Grader(workers=workers, code_rule=rollouts.code_rule, cpu_s=rollouts.cpu_limit) as grader,
        open_engine(config, policy, assembly.coordinates, directory, url) as engine,
    ):
        start = f", from adapter {config.model.adapter}" if config.model.adapter else ""
        say(f"policy {config.model.name}{start}, arm {arm_of(config)}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            if world.is_main:
                # Problems come back batch after batch; each is checked once.
                distinct = {problem.problem_id: problem for problem in chain(held_out, problems.listed)}
                canary(grader, distinct.values())
            grader.limits = world.broadcast(grader.limits)
        if world.is_main:
            timings.write_start(directory)
        maker = make_maker(config, engine, grader)
        evaluator = _evaluator(config, directory, maker, assembly, held_out, say)
        with open_source(config, directory, maker, assembly, problems, teacher) as (source, finish_pools):

            def before_step(num_done: int, last: bool) -> None:
                training.logprob = evaluator(num_done, last)
                # The manifest of the run hashes those of the pools: they are finished before `run_steps` writes it.
                if last:
                    finish_pools(math.ceil(num_done / rollouts.iterations))

            run_steps(
                directory,
                source,
                assembly.setup,
                done=done,
                timings=timings,
                training=training,
                checkpoints=config.checkpoints,
                before_step=before_step,
                say=say,
            )


def preview(config: RunConfig, directory: Path, *, out_dir: Path) -> Preview:
    """What `train` with the same arguments would sample and need, in one process; loads no weights, writes nothing.

    Raises:
        InputError: what `train` refuses before it loads the policy.
    """
    config = _resolved(config)
    teacher = open_teacher(config, out_dir)
    problems, held_out = training_problems(config, teacher, directory)
    rollouts, evaluation, steps = rollouts_of(config), evaluation_of(config), config.steps
    assert steps is not None
    settings = eval_settings(evaluation.modes, rollouts.mode, without_hint=evaluation.without_hint)
    num_samples = rollouts.prompts_per_step * rollouts.group
    sampled = problems.num_batches * num_samples
    evaluated = len(held_out) * evaluation.rollouts_per_problem * len(settings)
    # An evaluation before every so many steps and one after the last, which are one where they fall together.
    times = len({*range(0, steps, evaluation.every), steps})
    return make_preview(
        directory,
        _record(config, teacher),
        {
            "steps": steps,
            "rollouts in training": sampled,
            "evaluations": times,
            "rollouts in an evaluation": evaluated,
            "completion tokens at most": (sampled + times * evaluated) * rollouts.sampler.max_new_tokens,
        },
        run_footprint(config, str(config.model.name), num_samples=num_samples),
    )


def _check_world(config: RunConfig, world: World) -> None:
    """Refuse a number of ranks that does not divide the groups of a step, and ranks beside a server."""
    world.check_size(rollouts_of(config).prompts_per_step, "one a group of a step (rollouts.prompts_per_step)")
    if rollouts_of(config).engine == "server" and world.size > 1:
        raise InputError("rollouts.engine server", expected="one process", found=str(world.size))


def _resolved(config: RunConfig) -> RunConfig:
    """The configuration with the divisor of dr_grpo filled in: the sampler's limit of tokens, where none is given."""
    objective = config.objective
    if not objective.lacks_divisor:
        return config
    limit = rollouts_of(config).sampler.max_new_tokens
    return replace(config, objective=replace(objective, max_completion_length=limit))


def _record(config: RunConfig, teacher: Pool | None) -> dict[str, Any]:
    """All of `config.json` that is known before the policy is loaded: no weights and no number of ranks."""
    start = configured_adapter(config.model)
    return {
        "settings": asdict(config),
        "pools": [] if teacher is None else [teacher.identity()],
        "directions": directions_source(config.intervention),
        "adapter_sha256": None if start is None else adapter_sha(start),
    }


def _keep_start(config: RunConfig, directory: Path) -> None:
    """Copy the adapter that the training starts from into the one that it will write, which is nothing without it.

    Before the first step: the original may change or go while the run goes on.
    """
    start = configured_adapter(config.model)
    if start is not None:
        copy_adapter(start, directory / ADAPTER_DIR / START)


def _evaluator(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    held_out: Sequence[Problem],
    say: Callable[[str], None],
) -> Evaluator:
    """What evaluates the policy on the held-out problems as the settings ask for."""
    evaluation, rollouts = evaluation_of(config), rollouts_of(config)
    settings = eval_settings(evaluation.modes, rollouts.mode, without_hint=evaluation.without_hint)
    sampled = HeldOut(
        maker,
        held_out,
        settings,
        env=rollouts.env,
        group=evaluation.rollouts_per_problem,
        seed=config.seed,
        world=assembly.world,
    )
    training = assembly.training
    assert training is not None
    return Evaluator(
        directory,
        sampled,
        training.updater,
        assembly.frozen,
        every=evaluation.every,
        say=say,
        world=assembly.world,
    )
