"""`probe replay`, assembled: pools -> policy -> coordinates -> directions -> steps -> a run directory.

Everything that shapes the numbers is resolved first and written to `config.json`; `replay(config)` from that file
repeats the run.

Of several ranks each does steps of its own at frozen weights, and the run is that of one process; where weights move or
are sharded, the ranks share out the rollouts of every step, and what they add up differs in the last bits.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from probe.records.records import DEFAULT_CONDITION
from probe.records.timings import Timings
from probe.runs.config import ReplayConfig
from probe.runs.control import Control, ControlConfig
from probe.runs.footprint import footprint
from probe.runs.gram import GramRecorder
from probe.runs.inputs import Inputs
from probe.runs.loop import Setup, TokenAttribution, run_steps
from probe.runs.measures import ArmDirections, DirectionSettings, attach_bases
from probe.runs.opening import is_complete, open_run
from probe.runs.pieces import Pieces
from probe.runs.planning import PlanningMarker
from probe.runs.precision import dtype_noise
from probe.runs.preview import Preview, make_preview
from probe.runs.training import Training
from probe.settings.arms import Arm, get_arm, measured_arm
from probe.step.distributed import SOLO, World
from probe.step.groups import ReplaySource
from probe.step.optimizer import Stepper
from probe.step.passes import Bases
from probe.step.reference import References, check_recorded
from probe.step.update import Updater
from replay_pools.errors import InputError
from replay_pools.policy import Policy


def replay(
    config: ReplayConfig,
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
    arms = _arms(config)
    timings = Timings()
    inputs = Inputs(config, out_dir, say, world.loads_on(config.model.device))
    config = inputs.config
    source = _source(inputs)
    with timings.phase("load"):
        policy = inputs.policy
    if source.num_left_out:
        say(f"{config.source.per_pool} rollouts of each pool a step (--per-pool): {source.num_left_out} are left out")
    if _steps_apart(config):
        world.check_size(source.num_steps, "one a step")
        record = inputs.record()
    else:
        world.check_size(config.source.per_pool * len(inputs.pools), "one a rollout of a step")
        record = inputs.record() | {"ranks": world.size}
    done = world.on_main(lambda: open_run(directory, record))
    if world.on_main(partial(is_complete, directory)):
        say(f"{directory} is complete; nothing to do")
        return
    setup = _setup(config, arms, policy, source, directory, out_dir / "cache", timings, say, world)
    if world.is_main:
        timings.write_start(directory)
    training = _training(config, arms, setup) if config.lr > 0 else None
    run_steps(directory, source, setup, done=done, timings=timings, training=training)


def preview(
    config: ReplayConfig, directory: Path, *, out_dir: Path, say: Callable[[str], None] = lambda text: None
) -> Preview:
    """What `replay` with the same arguments would do.

    Raises:
        InputError: what `replay` refuses before it loads the policy.
    """
    arms = _arms(config)
    inputs = Inputs(config, out_dir, say, "cpu")
    config, source = inputs.config, _source(inputs)
    groups = [group for step in range(source.num_steps) for group in source.groups(step)]
    completions = sum(len(ids) for group in groups for ids in group.completion_ids)
    prompts = sum(len(ids) for group in groups for ids in group.prompt_ids)
    needed = footprint(
        inputs.model_name,
        config.arms,
        config.model,
        num_samples=config.source.per_pool * len(inputs.pools),
        k=config.extraction.k,
        pairs=config.extraction.pairs,
        trains=config.lr > 0,
    )
    return make_preview(
        directory,
        inputs.record_without_weights(),
        {
            "steps": source.num_steps,
            "rollouts": sum(len(group.keys) for group in groups),
            "prompt tokens": prompts,
            "completion tokens": completions,
            "cells (arms x conditions)": len(arms) * len(config.conditions),
        },
        needed,
    )


def _source(inputs: Inputs) -> ReplaySource:
    """The groups of the run, checked against what its objectives need of the pools."""
    config = inputs.config
    source = ReplaySource(
        inputs.pools,
        per_pool=config.source.per_pool,
        match=config.source.match,
        steps=config.source.steps,
        seed=config.seed,
    )
    samplers = {f"pool {pool.name}": pool.manifest["sampler"] for pool in inputs.pools}
    check_recorded([own.objective for own in config.conditions], samplers)
    return source


def _arms(config: ReplayConfig) -> list[Arm]:
    """The arms by name, checked against the other options."""
    arms = [get_arm(name) for name in config.arms]
    if len({arm.name for arm in arms}) != len(arms) or not arms:
        raise InputError("--arm", expected="different arms, at least one", found=",".join(config.arms) or "none")
    if config.lr > 0 and len(arms) > 1:
        raise InputError("--arm", expected="one arm when --lr is above 0", found=",".join(config.arms))
    if config.lr > 0 and len(config.conditions) > 1:
        found = ", ".join(condition.name for condition in config.conditions)
        raise InputError("--condition", expected="one condition when --lr is above 0", found=found)
    if config.token_attribution != 0 and measured_arm(config.arms) is None:
        raise InputError("--token-attribution", expected="an arm that uses v_hack", found=",".join(config.arms))
    return arms


def _steps_apart(config: ReplayConfig) -> bool:
    """Whether the ranks share out the steps, not the rollouts of each: nothing passes from step to step."""
    return config.lr == 0 and not config.model.shard_base


def _training(config: ReplayConfig, arms: Sequence[Arm], setup: Setup) -> Training:
    """Plain AdamW in the one arm under the one condition."""
    updater = Updater(Stepper(setup.bases.coordinates[0], lr=config.lr), arms[0], config.gate.target)
    return Training(updater, setup.references, Control(config.conditions[0].objective, ControlConfig()))


def _setup(
    config: ReplayConfig,
    arms: Sequence[Arm],
    policy: Policy,
    source: ReplaySource,
    directory: Path,
    cache_dir: Path,
    timings: Timings,
    say: Callable[[str], None],
    world: World,
) -> Setup:
    """Adapt the policy in every basis and get the directions of every arm under every condition."""
    conditions = {condition.name: condition.objective for condition in config.conditions}
    bases = attach_bases(policy, arms, config.model, cache_dir, timings, world)
    in_turn = nullcontext() if world.shards_base else world.main_first()
    with timings.phase("directions") as phase, in_turn:
        settings = DirectionSettings(extraction=config.extraction, v_hack=config.v_hack, seed=config.seed)
        directions = ArmDirections(settings, policy, bases, cache_dir, say)
        measures = directions.measures(conditions, arms, config.gate)
        gram = None
        if "svd" in bases:
            own = directions.library("svd", config.conditions[0].objective)
            gram = GramRecorder(directory, own.pair_gradients, own.v_hack)
        phase.used_cache(misses=directions.cache_misses())
    adapted = Bases(
        coordinates=list(bases.values()),
        tokens_per_batch=config.extraction.tokens_per_batch,
        world=SOLO if _steps_apart(config) else world,
    )
    noise = None
    if config.model.dtype_noise and world.is_main:
        with timings.phase("dtype noise"):
            noise = dtype_noise(adapted, measures, source, config.model.dtype_noise, policy.pad_id)
    return Setup(
        bases=adapted,
        conditions=conditions,
        measures=lambda step: measures,
        references=References(adapted.coordinates[0]),
        planning=PlanningMarker(policy.tokenizer, config.planning_phrases),
        pad_id=policy.pad_id,
        gram=gram,
        dtype_noise=noise,
        tokens=_token_attribution(config, policy),
        world=world,
    )


def _token_attribution(config: ReplayConfig, policy: Policy) -> TokenAttribution | None:
    """Of the primary condition (`default`, or else the first), in the arm that stands for vanilla."""
    arm, names = measured_arm(config.arms), [condition.name for condition in config.conditions]
    if config.token_attribution == 0 or arm is None:
        return None
    primary = DEFAULT_CONDITION if DEFAULT_CONDITION in names else names[0]
    pieces = Pieces(policy.tokenizer)
    return TokenAttribution(condition=primary, arm=arm, steps=config.token_attribution, pieces=pieces)
