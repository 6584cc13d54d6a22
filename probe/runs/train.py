"""`probe train`: load the policy, assemble the run, and hand live groups to the steps of `probe replay`.

    config -> policy -> Assembly (directions, measures, what trains)
           -> problems, engine -> LiveSource; MixedSource with a teacher or a past self; RemediedSource with a remedy;
                                  SurpriseSource; PrefetchedSource, ahead
           -> run_steps, with an Evaluator before every step

`config.json` is written before any number is computed, and holds all that shapes the numbers: `train` with its settings
repeats the run.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from extraction.adapters.interface import Coordinates
from extraction.selection import selected_pairs
from probe.records.run import ADAPTER_DIR, OWN_POOLS, PAST_SELF_DIR, ROLLOUTS_DIR
from probe.records.timings import Timings
from probe.runs.activations import ActivationRemedy
from probe.runs.assemble import Assembly, assemble, configured_adapter, configured_policy
from probe.runs.directions import directions_source
from probe.runs.evaluations import Evaluator, FrozenBatch
from probe.runs.heldout import HeldOut, eval_settings, hold_out
from probe.runs.loop import run_steps
from probe.runs.past import PastSelf, PastWeights
from probe.runs.resume import is_complete, open_run
from probe.runs.sources.guests import Guest, MixedSource, PastRollouts, Teacher, same_prompt, taught_problems
from probe.runs.sources.live import LiveSource
from probe.runs.sources.prefetch import AheadEngine, Background, PrefetchedSource
from probe.runs.sources.problems import FixedProblems, PrioritisedProblems, Problems, choose_problems
from probe.runs.sources.rewards import PAYS, AppliedRemedy, RemediedSource, SurpriseSource, check_payable
from probe.runs.sources.served import PushedEngine, forget_adapter
from probe.settings.loss import check_recorded
from probe.settings.rollouts import RolloutConfig
from probe.settings.run import TrainConfig
from probe.settings.training import EvaluationConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import GroupSource, RolloutKey
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.adapters import START, adapter_sha, copy_adapter
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool, open_pool, resolve_pool
from replay_pools.rollout import Rollout
from replay_pools.sampling.engines import Engine
from replay_pools.sampling.sample import LocalEngine
from replay_pools.serving.connection import Connection
from replay_pools.serving.engine import connect


def train(
    config: TrainConfig,
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
    inputs = TrainingInputs(config, out_dir, directory, world)
    config, rollouts, timings = inputs.config, inputs.rollouts, Timings()
    world.check_size(rollouts.prompts_per_step, "one a group of a step (rollouts.prompts_per_step)")
    if rollouts.engine == "server" and world.size > 1:
        raise InputError("rollouts.engine server", expected="one process", found=str(world.size))
    with timings.phase("load"):
        policy = configured_policy(config.model, out_dir / "cache", device=world.loads_on(config.model.device))
    # The number of ranks is part of the run: sums over ranks round differently, which shows in the last bits.
    weights = {"model": policy.base_model, "base_weights_sha256": policy.base_weights_sha, "ranks": world.size}
    done = world.on_main(lambda: open_run(directory, inputs.record() | weights))
    if world.on_main(partial(is_complete, directory)):
        say(f"{directory} is complete; nothing to do")
        return
    world.on_main(partial(_keep_start, config, directory))
    assembly = assemble(
        config,
        policy,
        directory,
        out_dir / "cache",
        num_steps=inputs.steps,
        timings=timings,
        say=say,
        world=world,
    )
    live, training, setup = _Live(inputs, policy, assembly, directory), assembly.training, assembly.setup
    assert training is not None
    if live.activations is not None:
        setup = replace(setup, in_update=live.activations.in_update)
    # The ranks of a machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers, code_rule=rollouts.code_rule, cpu_s=rollouts.cpu_limit) as grader,
        _open_engine(config, rollouts, policy, assembly.coordinates, directory, url) as engine,
    ):
        start = f", from adapter {config.model.adapter}" if config.model.adapter else ""
        arm = config.intervention.arms[0]
        say(f"policy {config.model.name}{start}, arm {arm}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            if world.is_main:
                # Problems come back batch after batch; each is checked once.
                distinct = {problem.problem_id: problem for problem in chain(inputs.held_out, inputs.problems.listed)}
                canary(grader, distinct.values())
            grader.limits = world.broadcast(grader.limits)
        if world.is_main:
            timings.write_start(directory)
        maker = RolloutMaker(
            engine=engine,
            sampler=rollouts.sampler,
            grader=grader,
            mode=rollouts.mode,
            hint=rollouts.hint,
            group=rollouts.group,
        )
        evaluator = Evaluator(
            directory,
            inputs.held_out_sampler(maker),
            training.updater,
            live.frozen,
            inputs.evaluation.every,
            say,
            world,
        )
        with live.source(maker) as (source, finish_pools):

            def before_step(num_done: int, last: bool) -> None:
                training.logprob = evaluator(num_done, last)
                # The manifest of the run hashes those of the pools: they are finished before `run_steps` writes it.
                if last:
                    finish_pools(math.ceil(num_done / rollouts.iterations))

            run_steps(
                directory,
                source,
                setup,
                done=done,
                timings=timings,
                training=training,
                checkpoints=config.checkpoints,
                before_step=before_step,
                say=say,
            )


class TrainingInputs:
    """The problems and the teacher of a training; no weights are loaded.

    Attributes:
        config: the given one with the divisor of dr_grpo filled in: the sampler's limit of tokens, where none is given.
        teacher: the pool of `rollouts.teacher`; None without one.
        problems: of every batch. One has `prompts_per_step`, and as many again for each refill; those that the
            teacher's rollouts take part in are drawn from the problems that its pool has rollouts for.
        held_out: the problems to evaluate on.
        counts: (rollouts of a teacher, rollouts of the past self) in a group, by batch.

    Raises:
        InputError: the environment has too few problems, or the teacher knows none of them; no such pool, a pool with
            the name of the run's own, one whose rollouts cannot be paid beside the policy's, or one whose sampler
            changed the distribution (temperature, top_p, top_k) where the objective compares with recorded
            log-probabilities.
    """

    def __init__(self, config: TrainConfig, out_dir: Path, directory: Path, world: World = SOLO) -> None:
        self.rollouts: RolloutConfig = config.rollouts
        self.evaluation: EvaluationConfig = config.evaluation
        self.steps: int = config.steps
        if config.objective.lacks_divisor:
            limit = self.rollouts.sampler.max_new_tokens
            config = replace(config, objective=replace(config.objective, max_completion_length=limit))
        self.config, self.world = config, world
        self.counts = [self.rollouts.counts(step) for step in range(0, self.steps, self.rollouts.iterations)]
        self.teacher = _open_teacher(config, self.rollouts, out_dir)
        self.problems, self.held_out = self._problems(directory)

    def record(self) -> dict[str, Any]:
        """All of `config.json` that is known before the policy is loaded: no weights and no number of ranks."""
        start = configured_adapter(self.config.model)
        return {
            "settings": asdict(self.config),
            "pools": [] if self.teacher is None else [self.teacher.identity()],
            "directions": directions_source(self.config.intervention),
            "adapter_sha256": None if start is None else adapter_sha(start),
        }

    def held_out_sampler(self, maker: RolloutMaker) -> HeldOut:
        """What samples the policy on the held-out problems, as the settings ask for."""
        return HeldOut(
            maker,
            self.held_out,
            eval_settings(self.evaluation.modes, self.rollouts.mode, without_hint=self.evaluation.without_hint),
            env=self.rollouts.env,
            group=self.evaluation.rollouts_per_problem,
            seed=self.config.seed,
            world=self.world,
        )

    def _problems(self, directory: Path) -> tuple[Problems, list[Problem]]:
        rollouts, seed = self.rollouts, self.config.seed
        environment = get_environment(rollouts.env)
        splits = environment.problems("train"), environment.problems("eval")
        left, held_out = hold_out(*splits, self.evaluation.num_problems)
        wanted = rollouts.num_problems or len(left)
        if wanted > len(left):
            actual = f"{len(left)} that are not held out"
            raise InputError("rollouts.num_problems", expected=f"{wanted} problems to train on", found=actual)
        trained = known = left[:wanted]
        if self.teacher is not None:
            known = taught_problems(trained, self.teacher)
        width = rollouts.prompts_per_step * (1 + rollouts.refills)
        is_taught = [taught > 0 for taught, _ in self.counts]
        if rollouts.prioritise is not None:
            candidates = [known if teaches else trained for teaches in is_taught]
            priority, power = rollouts.prioritise, rollouts.prioritise_power
            return PrioritisedProblems(candidates, width, priority, power, seed, directory, self.world), held_out
        drawn = {}
        for teaches, candidates in ((True, known), (False, trained)):
            batches = is_taught.count(teaches)
            drawn[teaches] = iter(choose_problems(candidates, batches=batches, prompts_per_step=width, seed=seed))
        return FixedProblems([next(drawn[teaches]) for teaches in is_taught]), held_out


def _open_teacher(config: TrainConfig, rollouts: RolloutConfig, out_dir: Path) -> Pool | None:
    if rollouts.teacher is None:
        return None
    pool = open_pool(resolve_pool(rollouts.teacher.pool, out_dir))
    # Records name a rollout by its pool: two pools of one name could not be kept apart.
    if pool.name in OWN_POOLS:
        expected = f"a name other than {' and '.join(OWN_POOLS)}, those of the run's own pools"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    reads_labels = config.remedy is not None and config.remedy.traits.has_oracle
    check_payable(pool, pay=rollouts.pay, reads_labels=reads_labels)
    check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
    return pool


def _keep_start(config: TrainConfig, directory: Path) -> None:
    """Copy the adapter that the training starts from into the one that it will write, which is nothing without it.

    Before the first step: the original may change or go while the run goes on.
    """
    start = configured_adapter(config.model)
    if start is not None:
        copy_adapter(start, directory / ADAPTER_DIR / START)


@contextmanager
def _open_engine(
    config: TrainConfig,
    rollouts: RolloutConfig,
    policy: Policy,
    coordinates: Coordinates,
    directory: Path,
    url: str | None,
) -> Iterator[Engine]:
    """The engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` where a `url` is given.

    Adapters for the server are written to `adapters/` in the run and removed at the end.
    """
    # What the headers of the pools call the policy.
    adapter = f"in training: arm {config.intervention.arms[0]}, seed {config.seed}"
    if config.model.adapter is not None:
        adapter += f", from {config.model.adapter}"
    if (rollouts.engine == "server") != (url is not None):
        actual = f"engine {rollouts.engine}, url {'given' if url else 'none'}"
        raise InputError("rollouts.engine", expected="server with --url, local without", found=actual)
    if url is None:
        yield LocalEngine(replace(policy, adapter=adapter))
        return
    base = connect(Connection(url=url), policy, served_model=rollouts.served_model)
    for leftover in [*(directory / "adapters").glob("*")]:  # of a run that was killed
        forget_adapter(base, leftover)
        shutil.rmtree(leftover)
    with closing(PushedEngine(base, coordinates, directory / "adapters", adapter=adapter)) as engine:
        yield engine


class _Live:
    """The groups of one training.

    Args:
        inputs: problems and teacher.
        policy: renders the pairs.
        assembly: its training gets the past weights that are sampled from.
        directory: of the run.
    """

    def __init__(self, inputs: TrainingInputs, policy: Policy, assembly: Assembly, directory: Path) -> None:
        self._inputs, self._assembly, self._directory = inputs, assembly, directory
        config, rollouts = inputs.config, inputs.rollouts
        pairs = selected_pairs(config.intervention.extraction)
        held_out = [pair for pair in pairs if pair.held_out]
        self.frozen = self.activations = None  # where no pair is held out; where no remedy changes activations
        if held_out:
            self.frozen = FrozenBatch(policy, assembly.coordinates, held_out, assembly.start[0].vectors)
        if config.remedy is not None and config.remedy.traits.changes_activations:
            others = [pair for pair in pairs if not pair.held_out]
            self.activations = ActivationRemedy(config.remedy, policy, assembly.coordinates, others)
        training = assembly.training
        assert training is not None
        self._training = training
        if rollouts.prefetch:
            training.past = PastWeights(
                assembly.coordinates, prefetch=rollouts.prefetch, iterations=rollouts.iterations
            )
        if rollouts.past_self is not None:
            training.past_self = PastSelf(assembly.coordinates, every=rollouts.past_self.every, past=training.past)

    @contextmanager
    def source(self, maker: RolloutMaker) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
        """(the groups that the steps read, what completes the pools of the run with their first so many batches: those
        that a step trained on).
        """
        live = self._live(maker)
        past_self = self._past_self(maker, live)
        source, past = self._mixed(maker, live, past_self), self._training.past

        def finish(batches: int) -> None:
            self._inputs.problems.finish(batches)
            live.finish(batches)
            if past_self is not None:
                past_self.finish(batches)

        if past is None:
            yield source, finish
        elif isinstance(pushed := maker.engine, PushedEngine):
            engine = AheadEngine(pushed)
            ahead_maker = replace(maker, engine=engine)
            ahead = self._mixed(ahead_maker, self._live(ahead_maker), None)
            with closing(Background(ahead, engine, pushed, iterations=past.iterations)) as background:
                prefetched = PrefetchedSource(source, past, background, finish)
                yield prefetched, prefetched.finish
        else:
            prefetched = PrefetchedSource(source, past, None, finish)
            yield prefetched, prefetched.finish

    def _live(self, maker: RolloutMaker) -> LiveSource:
        """The groups of the run, sampled from the policy as it is and written to its pool."""
        header = self._header(maker, self._inputs.rollouts.group)
        return self._sampled(maker, self._directory / ROLLOUTS_DIR, header, self._sampling)

    def _past_self(self, maker: RolloutMaker, live: LiveSource) -> LiveSource | None:
        """The rollouts of the policy as it was, on the problems of `live`, in a pool beside its; None without any.

        Their noise is not that of the policy's own rollouts: with the same noise, near policies would give the same
        completions.
        """
        past = self._training.past_self
        if past is None:
            return None
        header = self._header(maker, max(number for _, number in self._inputs.counts))
        settings = self._inputs.rollouts.past_self
        assert settings is not None
        adapter = f"{header['policy']['adapter']}, as it was after the newest multiple of {settings.every} steps"
        header |= {"policy": header["policy"] | {"adapter": adapter}}

        @contextmanager
        def sampling() -> Iterator[None]:
            # Weights that are put in place are those that the lean forward has to see.
            with past.restored(), self._sampling():
                yield

        return self._sampled(maker, self._directory / PAST_SELF_DIR, header, sampling, live)

    def _mixed(self, maker: RolloutMaker, live: LiveSource, past: LiveSource | None) -> GroupSource:
        """The groups of `live`, with rollouts of `past` and the teacher, after the remedy."""
        inputs, remedy = self._inputs, self._remedy(maker)
        guests: list[Guest] = []
        if past is not None:
            numbers = [number for _, number in inputs.counts]
            guests.append(PastRollouts(past, numbers, group=inputs.rollouts.group))
        if inputs.teacher is not None:
            taught_prompt = same_prompt if remedy is None else remedy.taught_prompt
            numbers = [number for number, _ in inputs.counts]
            guests.append(Teacher(inputs.teacher, numbers, seed=inputs.config.seed, taught_prompt=taught_prompt))
        source: GroupSource = MixedSource(live, guests, reward=self._reward(maker)) if guests else live
        if remedy is not None:
            source = RemediedSource(source, remedy)
        return SurpriseSource(source, live.counts) if inputs.config.objective.reward == "surprise" else source

    def _sampled(
        self,
        maker: RolloutMaker,
        directory: Path,
        header: dict[str, Any],
        sampling: Callable[[], AbstractContextManager[object]],
        beside: LiveSource | None = None,
    ) -> LiveSource:
        """Sampled groups in the pool at `directory`, with problems and a noise that fit to those of a source beside."""
        config, rollouts = self._inputs.config, self._inputs.rollouts
        instruction = None if config.remedy is None else config.remedy.sampling_instruction
        return LiveSource(
            directory,
            header=header,
            maker=maker if instruction is None else replace(maker, instruction=instruction),
            problems=self._inputs.problems,
            seed=config.seed if beside is None else derive_seed(directory.name, config.seed),
            iterations=rollouts.iterations,
            refills=rollouts.refills,
            world=self._inputs.world,
            reward=self._reward(maker),
            sampling=sampling,
            tally=None if beside is None else beside.tally,
        )

    def _header(self, maker: RolloutMaker, group: int) -> dict[str, Any]:
        """The header of a pool with groups of at most `group` rollouts on the problems of the run."""
        rollouts, problems = self._inputs.rollouts, self._inputs.problems
        plan = PoolPlan(
            env=rollouts.env,
            split="train",
            mode=rollouts.mode,
            hint=rollouts.hint,
            steps=problems.num_batches * problems.width,
            group=group,
            seed=self._inputs.config.seed,
            steps_per_batch=rollouts.prompts_per_step,
        )
        return pool_header(maker.engine, plan, maker.sampler, maker.grader, problems.listed)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """While open, the policy samples: its forward is lean, and has the remedy that sampling has.

        A server samples without the model here, which a step may use at the same time.
        """
        if self._inputs.rollouts.engine == "server":
            yield
            return
        remedied = nullcontext() if self.activations is None else self.activations.in_sampling()
        with self._assembly.coordinates.lean_forward(), remedied:
            yield

    def _remedy(self, maker: RolloutMaker) -> AppliedRemedy | None:
        config = self._inputs.config
        if config.remedy is None:
            return None
        chat, pay = maker.engine.chat, self._inputs.rollouts.pay
        return AppliedRemedy(config.remedy, seed=config.seed, chat=chat, pay=pay)

    def _reward(self, maker: RolloutMaker) -> Callable[[RolloutKey, Rollout], float]:
        """The reward of a rollout as it is paid, after the remedy; nan = none."""
        remedy, paid = self._remedy(maker), PAYS[self._inputs.rollouts.pay]
        if remedy is not None:
            return remedy.reward
        return lambda key, rollout: paid(rollout) if rollout.labelled else math.nan
