"""`probe train`: load the policy, assemble the run, and put live groups through the steps of `probe replay`.

    config -> policy -> Setup (directions, measures, training state)
           -> problems, engine -> `open_source`: LiveSource, with a teacher or an earlier checkpoint, and a remedy
           -> run_steps, with an Evaluator before every step

`config.json` is written before any number is computed and holds everything that affects the numbers: `train` with its
settings repeats the run.
"""

import math
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from extraction.adapters.trained import Trained
from extraction.pairs import selected_pairs
from probe.records.records import StepRecord
from probe.records.run import ADAPTER_DIR, IN_TRAINING
from probe.runs.activations import activation_edits, edited
from probe.runs.assemble import assemble, configured_adapter
from probe.runs.evaluations import Evaluator, FrozenBatch
from probe.runs.known_answers import check_pay
from probe.runs.loop import Setup, run_steps
from probe.runs.monitors import open_monitor
from probe.runs.sources.past import PastWeights
from probe.runs.sources.sampled import open_source
from probe.runs.sources.served import PushedEngine, unload_adapter
from probe.runs.training_inputs import TrainingInputs
from probe.settings.run import TrainConfig
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import field_errors, refuse
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
        url: of the server that samples; None: this process does. A run may be continued with a server at another place.
        say: gets one line of progress at a time.
        world: all ranks.

    Raises:
        InputError: wrong or contradicting settings, problems, model or directions, or a directory with another run.
    """
    inputs = TrainingInputs(config, out_dir, say, world)
    config, rollouts = inputs.config, inputs.config.rollouts
    world.check_size(rollouts.prompts_per_step, "one a group of a step (rollouts.prompts_per_step)")
    if url is not None:
        adapter, earlier = config.model.adapter, rollouts.earlier_checkpoint
        refuse([*field_errors(
            (world.size > 1, "--url", "one process", world.size),
            (adapter, "--url", "no model.adapter: a server samples without it", adapter),
            (earlier, "--url", "no rollouts.earlier_checkpoint: a server holds only the current policy", "one"),
        )])  # fmt: skip
    # The number of ranks is part of the run, because sums over ranks round differently; so is who samples.
    served = {} if url is None else {"engine": "server"}
    if (done := inputs.begin(directory, {"ranks": world.size, **served})) is None:
        return
    if (start := configured_adapter(config.model)) is not None:
        # The trained adapter needs this copy, because the original may change or disappear.
        source, scale = start
        world.on_main(partial(copy_adapter, source, directory / ADAPTER_DIR / START, scale))
    _run(inputs, assemble(inputs, directory, config.steps), directory, url, done)


def _run(inputs: TrainingInputs, setup: Setup, directory: Path, url: str | None, done: Sequence[StepRecord]) -> None:
    """Sample, step and evaluate from the first remaining step."""
    config, policy, world, training = inputs.config, inputs.policy, inputs.world, setup.training
    rollouts, timings, arm = config.rollouts, inputs.timings, config.intervention.arms[0]
    assert training is not None
    trained = training.updater.trained
    held_out = [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]
    frozen = FrozenBatch(policy, trained, held_out, setup.measures(0)[0].vectors) if held_out else None
    setup = replace(setup, in_update=partial(edited, activation_edits(config, policy)))
    with timings.phase("monitor"):
        monitor = open_monitor(config, policy, setup.bases, inputs.out_dir)
    if rollouts.prefetch or rollouts.earlier_checkpoint is not None:
        training.past = PastWeights(trained, rollouts)
    adapter, name = config.model.adapter, f"{IN_TRAINING}arm {arm}, seed {config.seed}"  # in the pools' headers
    name += f", from {adapter}" if adapter else ""
    # Ranks of one machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers, code_rule=rollouts.grading_rule, cpu_s=rollouts.cpu_limit) as grader,
        _open_engine(config, policy, trained, directory, url, name) as engine,
    ):
        origin = f", from adapter {adapter}" if adapter else ""
        inputs.say(f"policy {config.model.name}{origin}, arm {arm}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            if world.is_main:
                # First, because the worker of the canary's last submissions then also grades the rollouts.
                inputs.say(check_pay(config, grader, inputs.listed, engine.chat))
                # Problems repeat over batches; check each once.
                problems = chain(inputs.held_out, inputs.listed)
                canary(grader, {problem.problem_id: problem for problem in problems}.values())
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
        evaluator = Evaluator(inputs, directory, maker, training.updater, frozen, monitor)
        # A server has its own weights; a step may use the model here at the same time.
        lean = trained.folded if url is None else nullcontext
        with open_source(inputs, maker, training.past, directory, lean, monitor) as (source, finish_pools):

            def before_step(num_done: int, last: bool) -> None:
                training.logprob = evaluator(num_done, last)
                # Finish the pools before `run_steps` writes the run's manifest, which hashes theirs.
                if last:
                    finish_pools(math.ceil(num_done / rollouts.iterations))

            run_steps(inputs, directory, source, setup, done, before_step)


def _open_engine(
    config: TrainConfig, policy: Policy, trained: Trained, directory: Path, url: str | None, name: str
) -> AbstractContextManager[Engine]:
    """Open the engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` with a `url`.

    Adapters for the server are written to `adapters/` in the run and removed at the end.
    """
    if url is None:
        return nullcontext(LocalEngine(replace(policy, adapter=name)))
    server = Server(url=url, timeout_s=config.rollouts.server_timeout_s)
    base = connect(server, policy, served_model=config.rollouts.served_model)
    for leftover in [*(directory / "adapters").glob("*")]:  # of a run that was killed
        unload_adapter(base, leftover)
        shutil.rmtree(leftover)
    return closing(PushedEngine(base, trained, directory / "adapters", adapter=name))
