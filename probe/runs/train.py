"""`probe train`: load the policy, assemble the run, and hand live groups to the steps of `probe replay`.

    config -> policy -> Setup (directions, measures, what trains)
           -> problems, engine -> LiveSource; MixedSource with a teacher or a past self; `remedied`,
                                  `surprising`; PrefetchedSource, ahead
           -> run_steps, with an Evaluator before every step

`config.json` is written before any number is computed, and holds all that shapes the numbers: `train` with its settings
repeats the run.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from extraction.adapters.interface import Coordinates
from extraction.selection import selected_pairs
from probe.records.records import StepRecord
from probe.records.run import ADAPTER_DIR, OWN_POOLS, PAST_SELF_DIR, ROLLOUTS_DIR
from probe.records.timings import Timings
from probe.runs.activations import ActivationRemedy
from probe.runs.assemble import assemble, configured_adapter, configured_policy
from probe.runs.control import TrainingState
from probe.runs.directions import directions_source
from probe.runs.evaluations import Evaluator, FrozenBatch
from probe.runs.heldout import HeldOut, eval_settings, hold_out
from probe.runs.known_answers import check_pay
from probe.runs.loop import Setup, run_steps
from probe.runs.resume import is_complete, open_run
from probe.runs.sources.guests import Guest, MixedSource, PastRollouts, Teacher, same_prompt, taught_problems
from probe.runs.sources.live import LiveSource
from probe.runs.sources.past import AheadEngine, Background, PastSelf, PastWeights, PrefetchedSource
from probe.runs.sources.problems import FixedProblems, PrioritisedProblems, Problems, Tally, choose_problems
from probe.runs.sources.rewards import PAYS, AppliedRemedy, check_payable, check_returning, remedied, surprising
from probe.runs.sources.served import PushedEngine, configured_connection, forget_adapter
from probe.settings.loss import check_recorded
from probe.settings.run import TrainConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import GroupSource, RolloutKey
from replay_pools.engines import Engine
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
from replay_pools.sampling import LocalEngine
from replay_pools.serving.engine import connect
from replay_pools.vocabulary import check_imported

Reward = Callable[[RolloutKey, Rollout], float]  # nan: none
Sampling = Callable[[], AbstractContextManager[object]]  # open while the policy samples


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
    config, rollouts, timings = inputs.config, inputs.config.rollouts, Timings()
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
    if (start := configured_adapter(config.model)) is not None:
        # The adapter that is written is nothing without it, and the original may change or go while the run goes on.
        world.on_main(partial(copy_adapter, start, directory / ADAPTER_DIR / START))
    setup = assemble(
        config,
        policy,
        directory,
        out_dir / "cache",
        num_steps=config.steps,
        timings=timings,
        say=say,
        world=world,
    )
    _run(inputs, policy, setup, directory, url, done, timings, say)


def _run(
    inputs: "TrainingInputs",
    policy: Policy,
    setup: Setup,
    directory: Path,
    url: str | None,
    done: Sequence[StepRecord],
    timings: Timings,
    say: Callable[[str], None],
) -> None:
    """Sample, step and evaluate from the first step that is not done."""
    config, rollouts, world, training = inputs.config, inputs.config.rollouts, inputs.world, setup.training
    assert training is not None
    coordinates = setup.bases.coordinates[0]
    pairs = selected_pairs(config.intervention.extraction)
    held_out = [pair for pair in pairs if pair.held_out]
    frozen = FrozenBatch(policy, coordinates, held_out, setup.measures(0)[0].vectors) if held_out else None
    activations = None
    if config.remedy is not None and config.remedy.traits.changes_activations:
        others = [pair for pair in pairs if not pair.held_out]
        activations = ActivationRemedy(config.remedy, policy, coordinates, others)
        setup = replace(setup, in_update=activations.in_update)
    if rollouts.prefetch:
        training.past = PastWeights(coordinates, prefetch=rollouts.prefetch, iterations=rollouts.iterations)
    if rollouts.past_self is not None:
        training.past_self = PastSelf(coordinates, every=rollouts.past_self.every, past=training.past)

    @contextmanager
    def sampling() -> Iterator[None]:
        """While open, the policy samples: its forward is lean, and has the remedy that sampling has."""
        remedied = nullcontext() if activations is None else activations.in_sampling()
        with coordinates.lean_forward(), remedied:
            yield

    # The ranks of a machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers, code_rule=rollouts.code_rule, cpu_s=rollouts.cpu_limit) as grader,
        _open_engine(config, policy, coordinates, directory, url) as engine,
    ):
        origin = f", from adapter {config.model.adapter}" if config.model.adapter else ""
        arm = config.intervention.arms[0]
        say(f"policy {config.model.name}{origin}, arm {arm}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            if world.is_main:
                # Problems come back batch after batch; each is checked once.
                distinct = {problem.problem_id: problem for problem in chain(inputs.held_out, inputs.problems.listed)}
                canary(grader, distinct.values())
                say(check_pay(config, grader, inputs.problems.listed, engine.chat))
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
        sampler, every = inputs.held_out_sampler(maker), config.evaluation.every
        evaluator = Evaluator(directory, sampler, training.updater, frozen, every, say, world)
        # A server samples without the model here, which a step may use at the same time.
        samples_here = sampling if rollouts.engine == "local" else nullcontext
        with _open_source(inputs, maker, training, directory, samples_here) as (source, finish_pools):

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
        if config.objective.lacks_divisor:
            limit = config.rollouts.sampler.max_new_tokens
            config = replace(config, objective=replace(config.objective, max_completion_length=limit))
        self.config, self.world = config, world
        self.counts = [config.rollouts.counts(step) for step in range(0, config.steps, config.rollouts.iterations)]
        self.teacher = _open_teacher(config, out_dir)
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
        rollouts, evaluation = self.config.rollouts, self.config.evaluation
        return HeldOut(
            maker,
            self.held_out,
            eval_settings(evaluation.modes, rollouts.mode, without_hint=evaluation.without_hint),
            env=rollouts.env,
            group=evaluation.rollouts_per_problem,
            seed=self.config.seed,
            world=self.world,
        )

    def _problems(self, directory: Path) -> tuple[Problems, list[Problem]]:
        rollouts, seed = self.config.rollouts, self.config.seed
        environment = get_environment(rollouts.env)
        splits = environment.problems("train"), environment.problems("eval")
        left, held_out = hold_out(*splits, self.config.evaluation.num_problems)
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
        problems = [next(drawn[teaches]) for teaches in is_taught]
        if self.config.objective.reward == "surprise":
            check_returning(problems)
        return FixedProblems(problems), held_out


def _open_teacher(config: TrainConfig, out_dir: Path) -> Pool | None:
    rollouts = config.rollouts
    if rollouts.teacher is None:
        return None
    pool = open_pool(resolve_pool(rollouts.teacher.pool, out_dir))
    # Records name a rollout by its pool: two pools of one name could not be kept apart.
    if pool.name in OWN_POOLS:
        expected = f"a name other than {' and '.join(OWN_POOLS)}, those of the run's own pools"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    reads_labels = config.remedy is not None and config.remedy.traits.has_oracle
    check_imported(pool, str(config.model.name))
    check_payable(pool, pay=rollouts.pay, reads_labels=reads_labels)
    check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
    return pool


@contextmanager
def _open_engine(
    config: TrainConfig, policy: Policy, coordinates: Coordinates, directory: Path, url: str | None
) -> Iterator[Engine]:
    """The engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` where a `url` is given.

    Adapters for the server are written to `adapters/` in the run and removed at the end.
    """
    rollouts = config.rollouts
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
    base = connect(configured_connection(url, rollouts), policy, served_model=rollouts.served_model)
    for leftover in [*(directory / "adapters").glob("*")]:  # of a run that was killed
        forget_adapter(base, leftover)
        shutil.rmtree(leftover)
    with closing(PushedEngine(base, coordinates, directory / "adapters", adapter=adapter)) as engine:
        yield engine


class _Sampled:
    """The groups of one training that one maker samples.

    Args:
        maker: samples and grades.
        past: the policy as it was, where some rollouts are its.
        sampling: open while the policy samples.

    Attributes:
        live: the groups as the policy samples them, in the pool of the run.
        past_self: those of the policy as it was, in a pool beside it; None without any.
        groups: what the steps read: `live` with rollouts of the past self and of the teacher, after the remedy.
    """

    def __init__(
        self, inputs: TrainingInputs, maker: RolloutMaker, past: PastSelf | None, directory: Path, sampling: Sampling
    ) -> None:
        config, rollouts = inputs.config, inputs.config.rollouts
        remedy, taught_prompt, prompted = None, same_prompt, maker
        paid = PAYS[rollouts.pay]
        self._reward: Reward = lambda key, rollout: paid(rollout) if rollout.labelled else math.nan
        if config.remedy is not None:
            remedy = AppliedRemedy(config.remedy, seed=config.seed, chat=maker.engine.chat, pay=rollouts.pay)
            self._reward, taught_prompt = remedy.reward, remedy.taught_prompt
            if config.remedy.sampling_instruction is not None:
                prompted = replace(maker, instruction=config.remedy.sampling_instruction)
        self._inputs, self._maker = inputs, prompted
        header = self._header(rollouts.group)
        self.live = self._pool(directory / ROLLOUTS_DIR, header, config.seed, sampling)
        guests: list[Guest] = []
        self.past_self = None
        if past is not None:
            assert rollouts.past_self is not None

            @contextmanager
            def sampling_past() -> Iterator[None]:
                # Weights that are put in place are those that the lean forward has to see.
                with past.restored(), sampling():
                    yield

            numbers = [number for _, number in inputs.counts]
            header = self._header(max(numbers))
            steps = f"as it was after the newest multiple of {rollouts.past_self.every} steps"
            header["policy"] = header["policy"] | {"adapter": f"{header['policy']['adapter']}, {steps}"}
            # With the noise of the policy's own rollouts, near policies would give the same completions.
            seed = derive_seed(PAST_SELF_DIR, config.seed)
            self.past_self = self._pool(directory / PAST_SELF_DIR, header, seed, sampling_past, self.live.tally)
            guests.append(PastRollouts(self.past_self, numbers, group=rollouts.group))
        if inputs.teacher is not None:
            numbers = [number for number, _ in inputs.counts]
            guests.append(Teacher(inputs.teacher, numbers, seed=config.seed, taught_prompt=taught_prompt))
        groups: GroupSource = MixedSource(self.live, guests, reward=self._reward) if guests else self.live
        if remedy is not None:
            groups = remedied(groups, remedy)
        self.groups = surprising(groups, self.live.counts) if config.objective.reward == "surprise" else groups

    def finish(self, batches: int) -> None:
        """Complete the pools of the run with their first so many batches: those that a step trained on."""
        self._inputs.problems.finish(batches)
        self.live.finish(batches)
        if self.past_self is not None:
            self.past_self.finish(batches)

    def _pool(
        self, directory: Path, header: dict[str, Any], seed: int, sampling: Sampling, tally: Tally | None = None
    ) -> LiveSource:
        rollouts = self._inputs.config.rollouts
        return LiveSource(
            directory,
            header=header,
            maker=self._maker,
            problems=self._inputs.problems,
            seed=seed,
            iterations=rollouts.iterations,
            refills=rollouts.refills,
            reward=self._reward,
            sampling=sampling,
            tally=tally,
            world=self._inputs.world,
        )

    def _header(self, group: int) -> dict[str, Any]:
        """The header of a pool with groups of at most `group` rollouts on the problems of the run."""
        rollouts, problems, maker = self._inputs.config.rollouts, self._inputs.problems, self._maker
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
def _open_source(
    inputs: TrainingInputs, maker: RolloutMaker, training: TrainingState, directory: Path, sampling: Sampling
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """(the groups that the steps read, what completes the pools of the run with their first so many batches)."""
    sampled, past, pushed = (
        _Sampled(inputs, maker, training.past_self, directory, sampling),
        training.past,
        maker.engine,
    )
    if past is None:
        yield sampled.groups, sampled.finish
        return
    with ExitStack() as stack:
        background = None
        if isinstance(pushed, PushedEngine):
            engine = AheadEngine(pushed)
            ahead = _Sampled(inputs, replace(maker, engine=engine), None, directory, sampling)
            background = Background(ahead.groups, engine, pushed, iterations=past.iterations)
            stack.enter_context(closing(background))
        prefetched = PrefetchedSource(sampled.groups, past, background, sampled.finish)
        yield prefetched, prefetched.finish
