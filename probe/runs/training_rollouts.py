"""Where the groups of a training run come from: its problems, a teacher's pool, the engine, and the live source.

training_problems     which problems each batch trains on, and those held out for evaluation
guest_counts          how many rollouts of a group are a teacher's or the past self's, by batch
open_teacher          the pool whose rollouts take the place of some live ones
open_engine           what samples: the policy in this process, or a server that is given its adapter
open_source           the groups that `probe.runs.loop.run_steps` reads: live ones, those of guests among them, after a
                      remedy; sampled ahead of their steps where the settings ask for it
"""

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from extraction.adapters.interface import Coordinates
from probe.records.run import OWN_POOLS, PAST_SELF_DIR, ROLLOUTS_DIR
from probe.runs.assemble import Assembly
from probe.runs.heldout import hold_out
from probe.runs.remedies import AppliedRemedy, RemediedSource
from probe.runs.sources.live import LiveSource
from probe.runs.sources.mixed import Guest, MixedSource, PastRollouts, Teacher, same_prompt, taught_problems
from probe.runs.sources.prefetch import AheadEngine, Background, PrefetchedSource
from probe.runs.sources.problems import FixedProblems, PrioritisedProblems, Problems, check_width, choose_problems
from probe.runs.sources.rewards import PAYS, SurpriseSource, check_payable
from probe.runs.sources.served import PushedEngine, forget_adapter
from probe.settings.loss import check_recorded
from probe.settings.rollouts import RolloutConfig
from probe.settings.run import RunConfig
from probe.settings.training import EvaluationConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import GroupSource, RolloutKey
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.grading.grade import Grader
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool, open_pool, resolve_pool
from replay_pools.rollout import Rollout
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


def guest_counts(config: RunConfig) -> list[tuple[int, int]]:
    """(rollouts of a teacher, rollouts of the past self) in a group, by batch; shares are those of its first step."""
    rollouts, steps = rollouts_of(config), config.steps
    assert steps is not None
    return [rollouts.counts(step) for step in range(0, steps, rollouts.iterations)]


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
    trained, known = left[:wanted], left[:wanted]
    if teacher is not None:
        known = taught_problems(trained, teacher)
    is_taught = [taught > 0 for taught, _ in guest_counts(config)]
    if rollouts.prioritise is None:
        num_taught = sum(is_taught)
        taught = iter(choose_problems(known, batches=num_taught, prompts_per_step=width, seed=config.seed))
        plain = iter(choose_problems(trained, batches=batches - num_taught, prompts_per_step=width, seed=config.seed))
        return FixedProblems([next(taught if teaches else plain) for teaches in is_taught]), held_out
    candidates = [known if teaches else trained for teaches in is_taught]
    for problems in (known, trained):
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
        InputError: no such pool, a pool with the name of the run's own, one whose rollouts cannot be paid beside the
            policy's, or one whose sampler changed the distribution (temperature, top_p, top_k) where the objective
            compares with recorded log-probabilities.
    """
    teacher = rollouts_of(config).teacher
    if teacher is None:
        return None
    pool = open_pool(resolve_pool(teacher.pool, out_dir))
    # Records name a rollout by its pool, so that two pools of one name could not be told apart.
    if pool.name in OWN_POOLS:
        expected = f"a name other than {' and '.join(OWN_POOLS)}, those of the run's own pools"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    reads_labels = config.remedy is not None and config.remedy.traits.has_oracle
    check_payable(pool, pay=rollouts_of(config).pay, reads_labels=reads_labels)
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
    for leftover in [*directory.glob("*")]:
        forget_adapter(base, leftover)
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
    config: RunConfig, directory: Path, maker: RolloutMaker, assembly: Assembly, problems: Problems
) -> LiveSource:
    """The groups of the run at `directory`, sampled from the policy as it is and written to its pool."""
    header = _header(config, maker, problems, rollouts_of(config).group)
    sampling = partial(_sampling, config, assembly)
    return _source(config, directory / ROLLOUTS_DIR, header, maker, assembly, problems, sampling)


def make_past_source(
    config: RunConfig, directory: Path, maker: RolloutMaker, assembly: Assembly, problems: Problems, live: LiveSource
) -> LiveSource | None:
    """The rollouts of the policy as it was, on the problems of `live`, in a pool beside its; None without any.

    A group of its pool has as many rollouts as a group of the run takes in that batch. Their noise is not that of the
    policy's own rollouts: with the same noise, near policies would give the same completions.
    """
    settings = rollouts_of(config).past_self
    if settings is None:
        return None
    assert assembly.training is not None
    past = assembly.training.past_self
    assert past is not None
    header = _header(config, maker, problems, max(number for _, number in guest_counts(config)))
    adapter = f"{header['policy']['adapter']}, as it was after the newest multiple of {settings.every} steps"
    header |= {"policy": header["policy"] | {"adapter": adapter}}

    @contextmanager
    def sampling() -> Iterator[None]:
        # Weights that are put in place are those that the lean forward has to see.
        with past.restored(), _sampling(config, assembly):
            yield

    return _source(config, directory / PAST_SELF_DIR, header, maker, assembly, problems, sampling, live)


def make_source(
    config: RunConfig, live: LiveSource, past: LiveSource | None, maker: RolloutMaker, teacher: Pool | None
) -> GroupSource:
    """The groups that the steps read: those of `live`, with rollouts of `past` and the teacher, after the remedy."""
    remedy, counts, group = _remedy(config, maker), guest_counts(config), rollouts_of(config).group
    guests: list[Guest] = []
    if past is not None:
        guests.append(PastRollouts(past, [number for _, number in counts], group=group))
    if teacher is not None:
        taught_prompt = same_prompt if remedy is None else remedy.taught_prompt
        numbers = [number for number, _ in counts]
        guests.append(Teacher(teacher, numbers, seed=config.seed, taught_prompt=taught_prompt))
    source: GroupSource = live
    if guests:
        source = MixedSource(live, guests, reward=_reward(config, maker))
    if remedy is not None:
        source = RemediedSource(source, remedy)
    return SurpriseSource(source, live.counts) if config.objective.reward == "surprise" else source


def _source(
    config: RunConfig,
    directory: Path,
    header: dict[str, Any],
    maker: RolloutMaker,
    assembly: Assembly,
    problems: Problems,
    sampling: Callable[[], AbstractContextManager[object]],
    beside: LiveSource | None = None,
) -> LiveSource:
    """Sampled groups in the pool at `directory`, with problems and a noise that fit to those of a source beside it."""
    rollouts = rollouts_of(config)
    return LiveSource(
        directory,
        header=header,
        maker=_instructed(config, maker),
        problems=problems,
        seed=config.seed if beside is None else derive_seed(directory.name, config.seed),
        iterations=rollouts.iterations,
        refills=rollouts.refills,
        world=assembly.world,
        reward=_reward(config, maker),
        sampling=sampling,
        tally=None if beside is None else beside.tally,
    )


def _header(config: RunConfig, maker: RolloutMaker, problems: Problems, group: int) -> dict[str, Any]:
    """The header of a pool with groups of at most `group` rollouts on the problems of the run."""
    rollouts = rollouts_of(config)
    plan = PoolPlan(
        env=rollouts.env,
        split="train",
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=problems.num_batches * problems.width,
        group=group,
        seed=config.seed,
        steps_per_batch=rollouts.prompts_per_step,
    )
    return pool_header(maker.engine, plan, maker.sampler, maker.grader, problems.listed)


def _instructed(config: RunConfig, maker: RolloutMaker) -> RolloutMaker:
    """`maker` with the line that a remedy adds to the prompts of the policy."""
    return maker if config.remedy is None else replace(maker, instruction=config.remedy.sampling_instruction)


def _sampling(config: RunConfig, assembly: Assembly) -> AbstractContextManager[None]:
    """Open while the policy samples. A server samples without the model here, which a step may use at the same time."""
    return nullcontext() if rollouts_of(config).engine == "server" else _sampling_here(assembly)


@contextmanager
def _sampling_here(assembly: Assembly) -> Iterator[None]:
    """While open, the policy in this process samples: its forward is lean, and has the remedy that sampling has."""
    remedied = nullcontext() if assembly.activations is None else assembly.activations.in_sampling()
    with assembly.coordinates.lean_forward(), remedied:
        yield


def _reward(config: RunConfig, maker: RolloutMaker) -> Callable[[RolloutKey, Rollout], float]:
    """The reward of a rollout as it is paid, after the remedy; nan = none."""
    remedy, paid = _remedy(config, maker), PAYS[rollouts_of(config).pay]
    if remedy is not None:
        return remedy.reward
    return lambda key, rollout: paid(rollout) if rollout.labelled else math.nan


@contextmanager
def open_source(
    config: RunConfig,
    directory: Path,
    maker: RolloutMaker,
    assembly: Assembly,
    problems: Problems,
    teacher: Pool | None,
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """(the groups that the steps read, what completes the pools of the run at `directory` with their first so many
    batches: those that a step trained on).
    """
    live = make_live_source(config, directory, maker, assembly, problems)
    past_self = make_past_source(config, directory, maker, assembly, problems, live)
    source = make_source(config, live, past_self, maker, teacher)
    past = None if assembly.training is None else assembly.training.past

    def finish(batches: int) -> None:
        problems.finish(batches)
        live.finish(batches)
        if past_self is not None:
            past_self.finish(batches)

    if past is None:
        yield source, finish
    elif isinstance(pushed := maker.engine, PushedEngine):
        engine = AheadEngine(pushed)
        ahead_maker = replace(maker, engine=engine)
        ahead_live = make_live_source(config, directory, ahead_maker, assembly, problems)
        ahead = make_source(config, ahead_live, None, ahead_maker, teacher)
        with closing(Background(ahead, engine, pushed, iterations=past.iterations)) as background:
            prefetched = PrefetchedSource(source, past, background, finish)
            yield prefetched, prefetched.finish
    else:
        prefetched = PrefetchedSource(source, past, None, finish)
        yield prefetched, prefetched.finish


def _remedy(config: RunConfig, maker: RolloutMaker) -> AppliedRemedy | None:
    """The remedy of the run; None for a run without one."""
    if config.remedy is None:
        return None
    return AppliedRemedy(config.remedy, seed=config.seed, chat=maker.engine.chat, pay=rollouts_of(config).pay)
