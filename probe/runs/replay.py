"""`probe replay`: pools -> groups -> the steps of an assembled run -> a run directory.

Everything that shapes the numbers is resolved first and written to `config.json`; `replay(config)` from that file
repeats the run.

Of several ranks each does steps of its own at frozen weights, and the run is that of one process; where weights move or
are sharded, the ranks share out the rollouts of every step, and what they add up differs in the last bits.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from probe.records.timings import Timings
from probe.runs.assemble import assemble, steps_apart
from probe.runs.footprint import run_footprint
from probe.runs.inputs import ReplayInputs
from probe.runs.loop import run_steps
from probe.runs.precision import dtype_noise
from probe.runs.preview import Preview, make_preview
from probe.runs.resume import is_complete, open_run
from probe.settings.loss import check_recorded
from probe.settings.run import RunConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import ReplaySource


def replay(
    config: RunConfig,
    directory: Path,
    *,
    out_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    world: World = SOLO,
) -> None:
    """Run (or resume) a replay into `directory`; caches live under `out_dir`/cache. All ranks of `world` call this.

    Raises:
        InputError: anything wrong with the options, pools, model or directions.
    """
    timings = Timings()
    inputs = ReplayInputs(config, out_dir, say, world.loads_on(config.model.device))
    config, per_pool = inputs.config, inputs.source.per_pool
    source = _source(inputs)
    with timings.phase("load"):
        policy = inputs.policy
    if source.num_left_out:
        say(f"{source.num_steps} groups with {per_pool} rollouts of each pool: {source.num_left_out} are in none")
    if source.num_unlabelled:
        say(f"{source.num_unlabelled} rollouts of the pools have no label and are never drawn: see probe pool regrade")
    if steps_apart(config):
        world.check_size(source.num_steps, "one a step")
        record = inputs.record()
    else:
        world.check_size(per_pool * len(inputs.pools), "one a rollout of a step")
        record = inputs.record() | {"ranks": world.size}
    done = world.on_main(lambda: open_run(directory, record))
    if world.on_main(partial(is_complete, directory)):
        say(f"{directory} is complete; nothing to do")
        return
    assembly = assemble(
        config,
        policy,
        directory,
        out_dir / "cache",
        num_steps=source.num_steps,
        timings=timings,
        say=say,
        world=world,
    )
    setup = assembly.setup
    if config.model.dtype_noise and world.is_main:
        with timings.phase("dtype noise"):
            noise = dtype_noise(setup.bases, setup.measures(0), source, config.model.dtype_noise, policy.pad_id)
        setup = replace(setup, dtype_noise=noise)
    if world.is_main:
        timings.write_start(directory)
    run_steps(
        directory,
        source,
        setup,
        done=done,
        timings=timings,
        training=assembly.training,
        checkpoints=config.checkpoints,
        say=say,
    )


def preview(
    config: RunConfig, directory: Path, *, out_dir: Path, say: Callable[[str], None] = lambda text: None
) -> Preview:
    """What `replay` with the same arguments would do.

    Raises:
        InputError: what `replay` refuses before it loads the policy.
    """
    inputs = ReplayInputs(config, out_dir, say, "cpu")
    config, source = inputs.config, _source(inputs)
    steps = [source.groups(step) for step in range(source.num_steps)]
    groups = [group for step in steps for group in step]
    step_tokens = 0
    for step in steps:
        lengths = [len(ids) for group in step for ids in (*group.prompt_ids, *group.completion_ids)]
        step_tokens = max(step_tokens, sum(lengths))
    num_samples = inputs.source.per_pool * len(inputs.pools)
    return make_preview(
        directory,
        inputs.record_without_weights(),
        {
            "steps": source.num_steps,
            "rollouts": sum(len(group.keys) for group in groups),
            "prompt tokens": sum(len(ids) for group in groups for ids in group.prompt_ids),
            "completion tokens": sum(len(ids) for group in groups for ids in group.completion_ids),
            "cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives()),
        },
        run_footprint(config, inputs.model_name, num_samples=num_samples, step_tokens=step_tokens),
    )


def _source(inputs: ReplayInputs) -> ReplaySource:
    """The groups of the run, checked against what its objectives need of the pools."""
    config = inputs.config
    source = ReplaySource(
        inputs.pools,
        per_pool=inputs.source.per_pool,
        match=inputs.source.match,
        steps=config.steps,
        seed=config.seed,
    )
    inputs.check_tokens()
    inputs.check_pairs()
    samplers = {f"pool {pool.name}": pool.manifest["sampler"] for pool in inputs.pools}
    check_recorded(config.objectives().values(), samplers)
    return source
