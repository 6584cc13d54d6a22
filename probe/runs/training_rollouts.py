"""Where the groups of a training run come from: its problems, a teacher's pool, the engine, and the live source.

training_problems     which problems each batch trains on, and those held out for evaluation
open_teacher          the pool whose rollouts take the place of some live ones in the first batches
open_engine           what samples: the policy in this process, or a server that is given its adapter
open_source           the groups that `probe.runs.loop.run_steps` reads: live ones, a teacher's among them, a remedy;
                      sampled ahead of their steps where the settings ask for it
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from extraction.adapters.interface import Coordinates
from probe.records.run import ROLLOUTS_DIR
from probe.runs.assemble import Assembly
from probe.runs.heldout import hold_out
from probe.runs.live import LiveSource
from probe.runs.mixed import MixedSource, same_prompt, taught_problems
from probe.runs.prefetch import AheadEngine, Background, PrefetchedSource
from probe.runs.problems import FixedProblems, PrioritisedProblems, Problems, check_width, choose_problems
from probe.runs.remedies import AppliedRemedy, RemediedSource
from probe.runs.served import PushedEngine
from probe.settings.loss import check_recorded
from probe.settings.rollouts import RolloutConfig
from probe.settings.run import RunConfig
from probe.settings.training import EvaluationConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import GroupSource, stored_reward
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import PoolPlan, RolloutMaker, pool_header
from replay_pools.grading.grade import Grader
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool, open_pool, resolve_pool
from replay_pools.sampling.engines import Engine, LocalEngine
from replay_pools.serving.connection import Connection
from replay_pools.serving.engine import ServerEngine, connect


def rollouts_of(config: RunConfig) -> RolloutConfig:
    """The `rollouts` table; `RunConfig` refuses a training run without one, so that it is never None here."""
    assert config.rollouts is not None
    return config.rollouts


def evaluation_of(config: RunConfig) -> EvaluationConfig:
    """The `evaluation` table, which every training run has."""
    assert config.evaluation is not None
    return config.evaluation


def arm_of(config: RunConfig) -> str:
    """The arm that is trained; a training run has exactly one."""
    return config.intervention.arms[0]


def training_problems(
    config: RunConfig, teacher: Pool | None, directory: Path, world: World = SOLO
) -> tuple[Problems, list[Problem]]:
    """The problems of every batch, and the held-out problems.

    A batch has `prompts_per_step` problems, and as many again for each refill. The batches that the teacher's rollouts
    take part in are drawn from the problems that its pool has rollouts for.

    Args:
        directory: of the run; nothing is read from it or written to it here.

    Raises:
        InputError: the environment has too few problems, or the teacher knows none of them.
    """
    rollouts, steps = rollouts_of(config), config.steps
    assert steps is not None
    environment = get_environment(rollouts.env)
    left, held_out = hold_out(
        environment.problems("train"), environment.problems("eval"), evaluation_of(config).num_problems
    )
    wanted = rollouts.num_problems or len(left)
    if wanted > len(left):
        actual = f"{len(left)} that are not held out"
        raise InputError("rollouts.num_problems", expected=f"{wanted} problems to train on", found=actual)
    batches = steps // rollouts.iterations
    width = rollouts.prompts_per_step * (1 + rollouts.refills)
    trained, known, num_taught = left[:wanted], list[Problem](), 0
    if teacher is not None and rollouts.teacher is not None:
        known = taught_problems(trained, teacher)
        num_taught = min(rollouts.teacher.num_batches(rollouts.iterations), batches)
    if rollouts.prioritise is None:
        taught = choose_problems(known, batches=num_taught, prompts_per_step=width, seed=config.seed)
        plain = choose_problems(trained, batches=batches - num_taught, prompts_per_step=width, seed=config.seed)
        return FixedProblems([*taught, *plain]), held_out
    candidates = [known] * num_taught + [trained] * (batches - num_taught)
    for problems in candidates:
        check_width(problems, width)
    prioritised = PrioritisedProblems(
        candidates,
        width=width,
        priority=rollouts.prioritise,
        power=rollouts.prioritise_power,
        seed=config.seed,
        directory=directory,
        world=world,
    )
    return prioritised, held_out


def open_teacher(config: RunConfig, out_dir: Path) -> Pool | None:
    """The pool of `rollouts.teacher`; None for a run without a teacher.

    Raises:
        InputError: no such pool, a pool with the name of the run's own, or one whose sampler changed the distribution
            (temperature, top_p, top_k) where the objective compares with recorded log-probabilities.
    """
    teacher = rollouts_of(config).teacher
    if teacher is None:
        return None
    pool = open_pool(resolve_pool(teacher.pool, out_dir))
    # Records name a rollout by its pool, so that two pools of one name could not be told apart.
    if pool.name == ROLLOUTS_DIR:
        expected = f"a name other than {ROLLOUTS_DIR}, that of the run's own pool"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
    return pool


@contextmanager
def open_engine(
    config: RunConfig, policy: Policy, coordinates: Coordinates, directory: Path, url: str | None
) -> Iterator[Engine]:
    """The engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` where a `url` is given.

    Args:
        directory: of the run; adapters for the server are written to `adapters/` in it and removed at the end.

    Raises:
        InputError: a server without `url` or a `url` without a server, or a server that does not serve this model.
    """
    # What the headers of the pools call the policy.
    adapter = f"in training: arm {arm_of(config)}, seed {config.seed}"
    if config.model.adapter is not None:
        adapter += f", from {config.model.adapter}"
    if (rollouts_of(config).engine == "server") != (url is not None):
        actual = f"engine {rollouts_of(config).engine}, url {'given' if url else 'none'}"
        raise InputError("rollouts.engine", expected="server with --url, local without", found=actual)
    if url is None:
        yield LocalEngine(replace(policy, adapter=adapter))
        return
    base = connect(Connection(url=url), policy, served_model=rollouts_of(config).served_model)
    _forget_leftovers(base, directory / "adapters")
    with closing(PushedEngine(base, coordinates, directory / "adapters", adapter=adapter)) as engine:
        yield engine


def _forget_leftovers(base: ServerEngine, directory: Path) -> None:
    """Rid the server and the disk of the adapters that a killed run has left in `directory`."""
    leftovers = [*directory.glob("*")]
    loaded = base.adapters() if leftovers else set[str]()
    for leftover in leftovers:
        if leftover.name in loaded:
            base.unload(leftover.name)
        shutil.rmtree(leftover)


def make_maker(config: RunConfig, engine: Engine, grader: Grader) -> RolloutMaker:
    """What samples and grades one group: `rollouts.group` completions of a problem in `rollouts.mode`."""
    rollouts = rollouts_of(config)
    return RolloutMaker(
        engine=engine,
        sampler=rollouts.sampler,
        grader=grader,
        mode=rollouts.mode,
        hint=rollouts.hint,
        group=rollouts.group,
    )


def make_live_source(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    problems: Problems,
) -> LiveSource:
    """The groups of the run, sampled from the policy as it is and written to the pool at `directory`."""
    rollouts, remedy = rollouts_of(config), _remedy(config, maker)
    if config.remedy is not None:
        maker = replace(maker, instruction=config.remedy.sampling_instruction)
    plan = PoolPlan(
        env=rollouts.env,
        split="train",
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=problems.num_batches * problems.width,
        group=rollouts.group,
        seed=config.seed,
        steps_per_batch=rollouts.prompts_per_step,
    )
    return LiveSource(
        directory,
        header=pool_header(maker.engine, plan, maker.sampler, maker.grader, problems.listed),
        maker=maker,
        problems=problems,
        seed=config.seed,
        iterations=rollouts.iterations,
        refills=rollouts.refills,
        world=assembly.world,
        reward=stored_reward if remedy is None else remedy.reward,
        # A server samples: the model in this process must stay as it is, which a step may be using at the same time.
        sampling=partial(_sampling_here, assembly) if rollouts.engine == "local" else nullcontext,
    )


@contextmanager
def _sampling_here(assembly: Assembly) -> Iterator[None]:
    """While open, the policy in this process samples: its forward is lean, and has the remedy that sampling has."""
    remedied = nullcontext() if assembly.activations is None else assembly.activations.in_sampling()
    with assembly.coordinates.lean_forward(), remedied:
        yield


def make_source(config: RunConfig, live: LiveSource, maker: RolloutMaker, teacher: Pool | None) -> GroupSource:
    """The groups that the steps read: those of `live`, with the teacher's rollouts in them, after the remedy."""
    remedy, settings = _remedy(config, maker), rollouts_of(config).teacher
    source: GroupSource = live
    if teacher is not None and settings is not None:
        source = MixedSource(
            live,
            teacher,
            num_teacher=settings.num_rollouts(rollouts_of(config).group),
            num_batches=settings.num_batches(rollouts_of(config).iterations),
            seed=config.seed,
            taught_prompt=same_prompt if remedy is None else remedy.taught_prompt,
        )
    return source if remedy is None else RemediedSource(source, remedy)


@contextmanager
def open_source(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    problems: Problems,
    teacher: Pool | None,
) -> Iterator[tuple[GroupSource, Callable[[], None]]]:
    """(the groups that the steps read, what completes the pool of the run at `directory` after the last step)."""

    def sources(maker: RolloutMaker) -> tuple[LiveSource, GroupSource]:
        live = make_live_source(config, directory, maker, assembly, problems)
        return live, make_source(config, live, maker, teacher)

    live, source = sources(maker)
    past = None if assembly.training is None else assembly.training.past
    if past is None:
        yield source, live.finish
    elif isinstance(pushed := maker.engine, PushedEngine):
        engine = AheadEngine(pushed)
        _, ahead = sources(replace(maker, engine=engine))
        with closing(Background(ahead, engine, pushed, iterations=past.iterations)) as background:
            prefetched = PrefetchedSource(source, past, background, live.finish)
            yield prefetched, prefetched.finish
    else:
        prefetched = PrefetchedSource(source, past, None, live.finish)
        yield prefetched, prefetched.finish


def _remedy(config: RunConfig, maker: RolloutMaker) -> AppliedRemedy | None:
    """The remedy of the run; None for a run without one."""
    return None if config.remedy is None else AppliedRemedy(config.remedy, seed=config.seed, chat=maker.engine.chat)
