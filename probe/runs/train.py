"""`probe train`: load the policy, assemble the run, and put live groups through the steps of `probe replay`.

    config -> policy -> Setup (directions, measures, training state)
           -> problems, engine -> LiveSource, with a teacher or an earlier checkpoint; `remedied`, `surprising`;
                                  PastSource
           -> run_steps, with an Evaluator before every step

`config.json` is written before any number is computed and holds everything that affects the numbers: `train` with its
settings repeats the run.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from extraction.adapters.trained import Trained
from extraction.selection import selected_pairs
from probe.records.records import StepRecord
from probe.records.run import ADAPTER_DIR, IN_TRAINING
from probe.runs.activations import activation_remedy
from probe.runs.assemble import assemble, configured_adapter
from probe.runs.evaluations import Evaluator, FrozenBatch
from probe.runs.heldout import HeldOut
from probe.runs.known_answers import check_pay
from probe.runs.loop import Setup, run_steps
from probe.runs.monitors import open_monitor
from probe.runs.sources.past import PastWeights
from probe.runs.sources.sampled import Sampling, open_source
from probe.runs.sources.served import PushedEngine, unload_adapter
from probe.runs.training_inputs import TrainingInputs
from probe.settings.run import TrainConfig
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import InputError
from replay_pools.engines import Engine
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.adapters import START, copy_adapter
from replay_pools.policy.load import Policy
from replay_pools.sampling import LocalEngine
from replay_pools.serving import Server, connect


def train(
    config: TrainConfig,
    directory: Path,
    *,
    out_dir: Path,
    url: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    world: World = SOLO,
) -> None:
    """Run or resume a training in `directory`, with caches in `out_dir`/cache. All ranks call this.

    Args:
        directory: of the run; one that holds some of its steps is continued, one of another run is refused.
        out_dir: root of what is written; pools are looked up in it.
        url: of the server that samples, with `rollouts.engine` "server". It is no setting of the run, which may be
            continued with a server at another place.
        say: gets one line of progress at a time.
        world: all ranks.

    Raises:
        InputError: wrong or contradicting settings, problems, model or directions, or a directory with another run.
    """
    inputs = TrainingInputs(config, out_dir, say, world)
    config, rollouts = inputs.config, inputs.config.rollouts
    world.check_size(rollouts.prompts_per_step, "one a group of a step (rollouts.prompts_per_step)")
    if rollouts.engine == "server" and world.size > 1:
        raise InputError("rollouts.engine server", expected="one process", found=str(world.size))
    # The number of ranks is part of the run, because sums over ranks round differently.
    if (done := inputs.begin(directory, {"ranks": world.size})) is None:
        return
    if (start := configured_adapter(config.model)) is not None:
        # The trained adapter needs this copy, because the original may change or disappear.
        source, scale = start
        world.on_main(partial(copy_adapter, source, directory / ADAPTER_DIR / START, scale))
    _run(inputs, assemble(inputs, directory, config.steps), directory, url, done)


def _run(inputs: TrainingInputs, setup: Setup, directory: Path, url: str | None, done: Sequence[StepRecord]) -> None:
    """Sample, step and evaluate from the first remaining step."""
    config, policy, world, training = inputs.config, inputs.policy, inputs.world, setup.training
    rollouts, timings, say = config.rollouts, inputs.timings, inputs.say
    assert training is not None
    trained = training.updater.trained
    held_out = [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]
    frozen = FrozenBatch(policy, trained, held_out, setup.measures(0)[0].vectors) if held_out else None
    setup, sampling = _with_remedy(config, policy, setup)
    with timings.phase("monitor"):
        monitor = open_monitor(config, policy, setup.bases, inputs.out_dir)
    if rollouts.prefetch or rollouts.earlier_checkpoint is not None:
        every = None if rollouts.earlier_checkpoint is None else rollouts.earlier_checkpoint.every
        training.past = PastWeights(trained, prefetch=rollouts.prefetch, iterations=rollouts.iterations, every=every)
    # Ranks of one machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers, code_rule=rollouts.grading_rule, cpu_s=rollouts.cpu_limit) as grader,
        _open_engine(config, policy, trained, directory, url) as engine,
    ):
        origin = f", from adapter {config.model.adapter}" if config.model.adapter else ""
        arm = config.intervention.arms[0]
        say(f"policy {config.model.name}{origin}, arm {arm}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            _check_grader(inputs, grader, engine)
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
        sampler = HeldOut(maker, inputs.held_out, config, world)
        evaluator = Evaluator(inputs, directory, sampler, training.updater, frozen, monitor)
        with open_source(inputs, maker, training.past, directory, sampling, monitor) as (source, finish_pools):

            def before_step(num_done: int, last: bool) -> None:
                training.logprob = evaluator(num_done, last)
                # Finish the pools before `run_steps` writes the run's manifest, which hashes theirs.
                if last:
                    finish_pools(math.ceil(num_done / rollouts.iterations))

            run_steps(inputs, directory, source, setup, done, before_step)


def _with_remedy(config: TrainConfig, policy: Policy, setup: Setup) -> tuple[Setup, Sampling]:
    """Return (the setup with a remedy's activations in the update, a context for sampling)."""
    trained = setup.bases.trained
    assert trained is not None
    activations = activation_remedy(config, policy)
    if activations is not None:
        setup = replace(setup, in_update=activations.in_update)
    if config.rollouts.engine == "server":
        # A server samples; a step may use the local model at the same time.
        return setup, nullcontext

    @contextmanager
    def sampling() -> Iterator[None]:
        """Make the policy's forward lean, with the remedy of sampling, while open."""
        remedied = nullcontext() if activations is None else activations.in_sampling()
        with trained.folded(), remedied:
            yield

    return setup, sampling


def _check_grader(inputs: TrainingInputs, grader: Grader, engine: Engine) -> None:
    """Grade the known answers of every problem and report their rewards; all ranks get rank 0's limits."""
    if inputs.world.is_main:
        # First, because the worker of the canary's last submissions then also grades the rollouts.
        inputs.say(check_pay(inputs.config, grader, inputs.problems.listed, engine.chat))
        # Problems repeat over batches; check each once.
        distinct = {problem.problem_id: problem for problem in chain(inputs.held_out, inputs.problems.listed)}
        canary(grader, distinct.values())
    grader.limits = inputs.world.broadcast(grader.limits)


@contextmanager
def _open_engine(
    config: TrainConfig, policy: Policy, trained: Trained, directory: Path, url: str | None
) -> Iterator[Engine]:
    """The engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` with a `url`.

    Adapters for the server are written to `adapters/` in the run and removed at the end.
    """
    rollouts = config.rollouts
    # Name of the policy in the pools' headers.
    adapter = f"{IN_TRAINING}arm {config.intervention.arms[0]}, seed {config.seed}"
    if config.model.adapter is not None:
        adapter += f", from {config.model.adapter}"
    if (rollouts.engine == "server") != (url is not None):
        actual = f"engine {rollouts.engine}, url {'none' if url is None else 'given'}"
        raise InputError("rollouts.engine", expected="server with --url, local without", found=actual)
    if url is None:
        yield LocalEngine(replace(policy, adapter=adapter))
        return
    server = Server(url=url, timeout_s=rollouts.server_timeout_s)
    base = connect(server, policy, served_model=rollouts.served_model)
    for leftover in [*(directory / "adapters").glob("*")]:  # of a run that was killed
        unload_adapter(base, leftover)
        shutil.rmtree(leftover)
    with closing(PushedEngine(base, trained, directory / "adapters", adapter=adapter)) as engine:
        yield engine
