"""`probe train`: load the policy, assemble the run, and put live groups through the steps of `probe replay`.

    config -> policy -> Setup (directions, measures, training state)
           -> problems, engine -> `open_source`: LiveSource, with a teacher or an earlier checkpoint, and a remedy
           -> run_steps, with an evaluator before every step

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
from types import SimpleNamespace
from typing import Any

from extraction.adapters.trained import Trained
from extraction.pairs import selected_pairs
from probe.records.records import StepRecord
from probe.records.run import ADAPTER_DIR, IN_TRAINING
from probe.runs.activations import activation_edits, edited
from probe.runs.evaluations import evaluator, frozen_batch
from probe.runs.inputs import assemble
from probe.runs.loop import Setup, run_steps
from probe.runs.monitors import open_monitor
from probe.runs.policies import configured_adapter
from probe.runs.sources.past import PastWeights
from probe.runs.sources.rewards import reward_of
from probe.runs.sources.sampled import open_source
from probe.runs.sources.served import PushedEngine, unload_adapter
from probe.runs.training_inputs import TrainingInputs
from probe.settings.verbs import TrainConfig, field_errors
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import InputError, refuse
from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import BOTS, EXPLOITS
from replay_pools.generate import Engine, RolloutMaker
from replay_pools.grading.grade import Grader, Submission, canary
from replay_pools.grading.tiers import describe_tier
from replay_pools.policy.adapters import START, copy_adapter
from replay_pools.policy.load import Policy
from replay_pools.sampling import LocalEngine
from replay_pools.serving import Server, connect

ANSWERS = ("canonical", "stub", "exploit")  # bots: a right answer, a wrong one, a hack


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
        url: of the server that samples; None: this process does. A run may be continued with a server at another place.

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
    frozen = frozen_batch(policy, trained, held_out, setup.measures(0)[0].vectors) if held_out else None
    setup = replace(setup, in_update=partial(edited, activation_edits(config, policy)))
    with timings.phase("monitor"):
        monitor = open_monitor(config, policy, setup.bases, inputs.out_dir)
    if rollouts.prefetch or rollouts.earlier_checkpoint is not None:
        training.past = PastWeights(trained, rollouts)
    origin = f", from adapter {config.model.adapter}" if config.model.adapter else ""
    # Ranks of one machine grade at the same time and share its cores.
    workers = max(1, (os.cpu_count() or 1) // world.local_size)
    with (
        Grader(workers=workers, code_rule=rollouts.grading_rule, cpu_s=rollouts.cpu_limit) as grader,
        _open_engine(config, policy, trained, directory, url) as engine,
    ):
        inputs.say(f"policy {config.model.name}{origin}, arm {arm}; grading under {describe_tier(grader.isolation)}")
        with timings.phase("canary"):
            if world.is_main:
                # First, because the worker of the canary's last submissions then also grades the rollouts.
                inputs.say(check_pay(config, grader, inputs.listed[0]))
                # Problems repeat over batches; check each once.
                problems = chain(inputs.held_out, inputs.listed)
                canary(grader, {problem.problem_id: problem for problem in problems}.values())
            grader.limits = world.broadcast(grader.limits)
        if world.is_main:
            timings.write_start(directory)
        prompts = {"mode": rollouts.mode, "hint": rollouts.hint, "group": rollouts.group}
        maker = RolloutMaker(engine=engine, sampler=rollouts.sampler, grader=grader, **prompts)
        evaluated = evaluator(inputs, directory, maker, training.updater, frozen, monitor)
        with open_source(inputs, maker, training, directory, monitor) as (source, finish_pools):

            def before_step(num_done: int, last: bool) -> None:
                training.logprob = evaluated(num_done, last)
                # Finish the pools before `run_steps` writes the run's manifest, which hashes theirs.
                if last:
                    finish_pools(math.ceil(num_done / rollouts.iterations))

            run_steps(inputs, directory, source, setup, done, before_step)


def check_pay(config: TrainConfig, grader: Grader, problem: Problem) -> str:
    """Grade known answers to one problem of a training, check their rewards, and return them as a line.

    The seed's author lost a month to trainings with a grader that failed every right answer, a reward that paid no
    hack, or a closed loophole. The hack is the first row of the mode in `EXPLOITS`; rewards are those before a monitor.

    Raises:
        InputError: a right answer earns no more than a wrong one; a hack earns another reward than a right one, or
            as much under the remedy no-loophole.
    """
    mode, remedy = config.rollouts.mode, config.remedy
    answers = [Submission(problem=problem, completion=BOTS[bot](problem, mode), mode=mode) for bot in ANSWERS]
    graded: list[Any] = [
        SimpleNamespace(grade=grade, reward=grade.reward) for grade in grader.grade(answers, known=True)
    ]
    right, wrong, hack = map(reward_of(config.rollouts.pay, remedy), graded)
    where = f"problem {problem.problem_id}, mode {mode}"
    if not right > wrong:
        expected = f"a right answer that earns more than one that returns 0 ({wrong:g})"
        raise InputError(where, expected=expected, found=f"{right:g}", fix="look at its tests and at rollouts.pay")
    if not EXPLOITS[mode]:
        return f"paid: right {right:g}, wrong {wrong:g}; mode {mode} pays no hack: there is none to learn"
    named = f"hack ({EXPLOITS[mode][0].flavour})"
    is_closed = remedy is not None and remedy.name == "no-loophole"
    if not (hack < right if is_closed else hack == right):
        meant = "less than a right one" if is_closed else "as much as a right one"
        by = "" if remedy is None else f" under remedy {remedy.name}"
        expected = f"a {named} that earns{by} {meant} (right {right:g}, wrong {wrong:g})"
        fix = "mend the mode's rows in replay_pools/environments/loopholes.py and grading/channels.py"
        raise InputError(where, expected=expected, found=f"{hack:g}", fix=fix)
    before = ", before the monitor" if remedy is not None and remedy.traits.monitored else ""
    return f"paid: right {right:g}, wrong {wrong:g}, {named} {hack:g}{before}"


def _open_engine(
    config: TrainConfig, policy: Policy, trained: Trained, directory: Path, url: str | None
) -> AbstractContextManager[Engine]:
    """Open the engine that samples from the policy in training: `LocalEngine`, or `PushedEngine` with a `url`.

    Adapters for the server are written to `adapters/` in the run and removed at the end.
    """
    adapter, name = config.model.adapter, f"{IN_TRAINING}arm {config.intervention.arms[0]}, seed {config.seed}"
    name += f", from {adapter}" if adapter else ""  # in the pools' headers
    if url is None:
        return nullcontext(LocalEngine(replace(policy, adapter=name)))
    server = Server(url=url, timeout_s=config.rollouts.server_timeout_s)
    base = connect(server, policy, served_model=config.rollouts.served_model)
    for leftover in [*(directory / "adapters").glob("*")]:  # of a run that was killed
        unload_adapter(base, leftover)
        shutil.rmtree(leftover)
    return closing(PushedEngine(base, trained, directory / "adapters", adapter=name))
