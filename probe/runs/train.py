"""`probe train`, assembled: policy -> coordinates -> directions -> live groups -> the very steps of `probe replay`.

Everything that shapes the numbers is written to `config.json` first; `train(config)` from that file repeats the run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from extraction.adapters.interface import Coordinates
from extraction.library import source_identity
from probe.records.run import ROLLOUTS_DIR
from probe.records.timings import Timings
from probe.runs.assemble import Assembly, assemble
from probe.runs.footprint import run_footprint
from probe.runs.heldout import HeldOut, eval_settings, hold_out
from probe.runs.live import LiveSource, choose_problems
from probe.runs.loop import run_steps
from probe.runs.mixed import MixedSource, taught_problems
from probe.runs.preview import Preview, make_preview
from probe.runs.resume import is_complete, open_run
from probe.runs.served import PushedEngine
from probe.runs.training_evals import Evaluator
from probe.settings.loss import check_recorded
from probe.settings.rollouts import RolloutConfig
from probe.settings.run import RunConfig
from probe.settings.training import EvaluationConfig
from probe.step.distributed import SOLO, World
from replay_pools.engines import Engine, LocalEngine
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import PoolPlan, RolloutMaker, pool_header
from replay_pools.grading.grade import Grader, canary
from replay_pools.policy import Policy, load_policy
from replay_pools.pool import Pool, open_pool, resolve_pool
from replay_pools.serving.connection import Connection
from replay_pools.serving.engine import connect


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
        url: of the server that samples, where the settings say so; where it runs is no part of the run.

    Raises:
        InputError: anything wrong with the settings, problems, model or directions.
    """
    config = _resolved(config)
    _check_world(config, world)
    timings = Timings()
    teacher = _teacher(config, out_dir)
    problems, held_out = _problems(config, teacher)
    with timings.phase("load"):
        device = world.loads_on(config.model.device)
        policy = load_policy(str(config.model.name), dtype=config.model.dtype, device=device)
    record = _record(config, teacher)
    record |= {"model": policy.base_model, "base_weights_sha256": policy.base_weights_sha, "ranks": world.size}
    done = world.on_main(lambda: open_run(directory, record))
    if world.on_main(partial(is_complete, directory)):
        say(f"{directory} is complete; nothing to do")
        return
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
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers) as grader,
        _engine(config, policy, assembly.coordinates, directory, url) as engine,
    ):
        say(f"policy {config.model.name}, arm {_arm(config)}; grading under isolation {grader.isolation}")
        with timings.phase("canary"):
            if world.is_main:
                canary(grader, {p.problem_id: p for p in chain(held_out, *problems)}.values())
        if world.is_main:
            timings.write_start(directory)
        maker = _maker(config, engine, grader)
        live = _live_source(config, directory / ROLLOUTS_DIR, maker, assembly, problems)
        evaluator = _evaluator(config, directory, maker, assembly, held_out, say)

        def before_step(num_done: int, last: bool) -> None:
            training.logprob = evaluator(num_done, last)
            if last:
                live.finish()

        run_steps(
            directory,
            live if teacher is None else _mixed_source(config, live, teacher),
            assembly.setup,
            done=done,
            timings=timings,
            training=training,
            checkpoints=config.checkpoints,
            before_step=before_step,
        )


def preview(config: RunConfig, directory: Path, *, out_dir: Path) -> Preview:
    """What `train` with the same arguments would do in one process.

    Raises:
        InputError: what `train` refuses before it loads the policy.
    """
    config = _resolved(config)
    teacher = _teacher(config, out_dir)
    problems, held_out = _problems(config, teacher)
    rollouts, evaluation, steps = _rollouts(config), _evaluation(config), config.steps
    assert steps is not None
    settings = eval_settings(evaluation.modes, rollouts.mode, without_hint=evaluation.without_hint)
    num_samples = rollouts.prompts_per_step * rollouts.group
    sampled = len(problems) * num_samples
    evaluated = len(held_out) * evaluation.rollouts_per_problem * len(settings)
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


def _rollouts(config: RunConfig) -> RolloutConfig:
    """What a training samples; `RunConfig` has refused one without."""
    assert config.rollouts is not None
    return config.rollouts


def _evaluation(config: RunConfig) -> EvaluationConfig:
    assert config.evaluation is not None
    return config.evaluation


def _arm(config: RunConfig) -> str:
    """The one arm of a training."""
    return config.intervention.arms[0]


def _check_world(config: RunConfig, world: World) -> None:
    """InputError where several ranks cannot share out the run."""
    world.check_size(_rollouts(config).prompts_per_step, "one a group of a step (rollouts.prompts_per_step)")
    if _rollouts(config).engine == "server" and world.size > 1:
        raise InputError("rollouts.engine server", expected="one process", found=str(world.size))


def _resolved(config: RunConfig) -> RunConfig:
    """dr_grpo divides by the generation limit, which is the sampler's where none is given."""
    objective = config.objective
    if objective.loss_type != "dr_grpo" or objective.max_completion_length is not None:
        return config
    limit = _rollouts(config).sampler.max_new_tokens
    return replace(config, objective=replace(objective, max_completion_length=limit))


def _teacher(config: RunConfig, out_dir: Path) -> Pool | None:
    """The pool of the teacher, if there is one."""
    teacher = _rollouts(config).teacher
    if teacher is None:
        return None
    pool = open_pool(resolve_pool(teacher.pool, out_dir))
    if pool.name == ROLLOUTS_DIR:  # the records name rollouts by their pool
        expected = f"a name other than {ROLLOUTS_DIR}, that of the run's own pool"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
    return pool


def _problems(config: RunConfig, teacher: Pool | None) -> tuple[list[list[Problem]], list[Problem]]:
    """(training problems of every batch, held-out problems); a teacher teaches on the problems that it knows."""
    rollouts, steps = _rollouts(config), config.steps
    assert steps is not None
    environment = get_environment(rollouts.env)
    left, held_out = hold_out(
        environment.problems("train"), environment.problems("eval"), _evaluation(config).num_problems
    )
    wanted = rollouts.num_problems or len(left)
    if wanted > len(left):
        actual = f"{len(left)} that are not held out"
        raise InputError("rollouts.num_problems", expected=f"{wanted} problems to train on", found=actual)
    batches = steps // rollouts.iterations
    width = rollouts.prompts_per_step * (1 + rollouts.refills)
    taught: list[list[Problem]] = []
    if teacher is not None and rollouts.teacher is not None:
        mixed = min(rollouts.teacher.num_batches(rollouts.iterations), batches)
        known = taught_problems(left[:wanted], teacher)
        taught = choose_problems(known, batches=mixed, prompts_per_step=width, seed=config.seed)
    untaught = batches - len(taught)
    return taught + choose_problems(left[:wanted], batches=untaught, prompts_per_step=width, seed=config.seed), held_out


def _record(config: RunConfig, teacher: Pool | None) -> dict[str, Any]:
    """What `config.json` holds beside the weights and the number of ranks, which shows in the last bits."""
    return {
        "settings": asdict(config),
        "pools": [] if teacher is None else [teacher.identity()],
        "directions": source_identity(config.intervention.extraction, config.intervention.v_hack),
    }


@contextmanager
def _engine(
    config: RunConfig, policy: Policy, coordinates: Coordinates, directory: Path, url: str | None
) -> Iterator[Engine]:
    """What samples from the policy in training, which its pools name so."""
    adapter = f"in training: arm {_arm(config)}, seed {config.seed}"
    if (_rollouts(config).engine == "server") != (url is not None):
        found = f"engine {_rollouts(config).engine}, url {url or 'none'}"
        raise InputError("rollouts.engine", expected="server with --url, local without", found=found)
    if url is None:
        yield LocalEngine(replace(policy, adapter=adapter))
        return
    base = connect(Connection(url=url), policy, served_model=_rollouts(config).served_model)
    with closing(PushedEngine(base, coordinates, directory / "adapters", adapter=adapter)) as engine:
        yield engine


def _maker(config: RunConfig, engine: Engine, grader: Grader) -> RolloutMaker:
    rollouts = _rollouts(config)
    return RolloutMaker(
        engine=engine,
        sampler=rollouts.sampler,
        grader=grader,
        mode=rollouts.mode,
        hint=rollouts.hint,
        group=rollouts.group,
    )


def _live_source(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    problems: Sequence[Sequence[Problem]],
) -> LiveSource:
    rollouts = _rollouts(config)
    plan = PoolPlan(
        env=rollouts.env,
        split="train",
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=sum(map(len, problems)),
        group=rollouts.group,
        seed=config.seed,
        steps_per_batch=rollouts.prompts_per_step,
    )
    return LiveSource(
        directory,
        header=pool_header(maker.engine, plan, maker.sampler, maker.grader, list(chain(*problems))),
        maker=maker,
        coordinates=assembly.coordinates,
        problems=problems,
        seed=config.seed,
        iterations=rollouts.iterations,
        refills=rollouts.refills,
        world=assembly.world,
    )


def _mixed_source(config: RunConfig, live: LiveSource, teacher: Pool) -> MixedSource:
    settings = _rollouts(config).teacher
    assert settings is not None
    num_teacher = settings.num_rollouts(_rollouts(config).group)
    num_batches = settings.num_batches(_rollouts(config).iterations)
    return MixedSource(live, teacher, num_teacher=num_teacher, num_batches=num_batches, seed=config.seed)


def _evaluator(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    held_out: Sequence[Problem],
    say: Callable[[str], None],
) -> Evaluator:
    evaluation, rollouts = _evaluation(config), _rollouts(config)
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
