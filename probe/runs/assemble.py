"""Assembly of a run: from settings and a policy to everything that its steps are evaluated with.

    policy -> one adapted copy for each basis -> directions of every arm -> measures, references, what trains

`probe replay` and `probe train` hand its result to `probe.runs.loop.run_steps`; they differ in where groups come from.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import extraction.adapters.delta_s  # noqa: F401 (teaches peft the adapters of `probe train`)
from extraction.adapters.coordinates import attach
from extraction.adapters.interface import Coordinates
from extraction.words import Basis
from probe.objective.credit import planning_tokens
from probe.records.timings import Timings
from probe.runs.control import TrainingState
from probe.runs.directions import ArmDirections, RefreshedMeasures
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import Pieces
from probe.runs.loop import Setup
from probe.settings.arms import Arm, get_arm, measured_arm
from probe.settings.run import ReplayConfig, StepConfig
from probe.settings.training import ModelConfig
from probe.step.bases import Bases
from probe.step.distributed import SOLO, World, shard_base
from probe.step.reference import References
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.errors import InputError
from replay_pools.policy.load import Policy, load_policy, scaled_adapter


def configured_policy(model: ModelConfig, cache_dir: Path, *, device: str | None = None) -> Policy:
    """Load the policy of the table `model`, with its adapter: any of peft's, or one of `probe train`.

    Args:
        model: name, adapter, template, dtype and device.
        cache_dir: of SVDs, which the adapter of a training may be along.
        device: instead of the model's.

    Raises:
        InputError: as of `load_policy`.
    """
    return load_policy(
        str(model.name),
        adapter=model.adapter,
        dtype=model.dtype,
        device=device or model.device,
        svd_cache=cache_dir / "svd",
        template=model.template,
    )


def configured_adapter(model: ModelConfig) -> tuple[Path, float] | None:
    """Directory and scale of the adapter of the table `model`; None without one."""
    return None if model.adapter is None else scaled_adapter(str(model.name), model.adapter)


def steps_apart(config: StepConfig) -> bool:
    """Whether several ranks share out the steps of a run, not the rollouts of each step.

    They can at frozen weights, where no step depends on another; a sharded base needs all ranks in every forward.
    """
    return not config.trains and not config.model.shard_base


def assemble(
    config: StepConfig,
    policy: Policy,
    directory: Path,
    cache_dir: Path,
    *,
    num_steps: int,
    timings: Timings,
    say: Callable[[str], None],
    world: World,
) -> Setup:
    """Adapt the policy in the bases of the arms, get their directions, and make what trains it.

    Args:
        directory: of the run.
        cache_dir: of SVDs and pair gradients.
        num_steps: of the run, over which a learning rate decays.
        timings: take in how long the bases and the directions took.
        say: told of what is made and what is found in the cache.

    Raises:
        InputError: anything wrong with the pairs or directions.
    """
    arms = [get_arm(name) for name in config.intervention.arms]
    conditions, primary = config.objectives(), config.primary
    bases = attach_bases(policy, arms, config.model, cache_dir, timings, world)
    coordinates = next(iter(bases.values()))
    if coordinates.adapted is not None and coordinates.adapted.caution:
        say(coordinates.adapted.caution)
    # A sharded base needs all ranks in every forward; otherwise the first rank fills the caches that the others read.
    in_turn = nullcontext() if world.shards_base else world.main_first()
    with timings.phase("directions"), in_turn:
        directions = ArmDirections(config.intervention, config.seed, policy, bases, cache_dir, say)
        start = directions.measures(conditions, arms, config.intervention.gate)
        # In a training the products with pair gradients of the start would be stale from the second step on.
        grams = _grams(directory, directions, start, config) if isinstance(config, ReplayConfig) else {}
    training = _training(config, coordinates, num_steps) if config.trains else None
    refreshed = None
    if training is not None:
        refreshed = RefreshedMeasures(
            directory,
            start[0],
            lambda: directions.extract(arms[0], conditions[primary]),
            training.updater,
            config.intervention.refresh_every,
            world,
        )
    pieces = Pieces(policy.tokenizer)
    return Setup(
        bases=Bases(
            coordinates=list(bases.values()),
            tokens_per_batch=config.intervention.extraction.tokens_per_batch,
            world=SOLO if steps_apart(config) else world,
        ),
        conditions=conditions,
        measures=refreshed or (lambda step: start),
        references=References(coordinates) if training is None else training.references,
        planning=lambda ids: planning_tokens([pieces(token) for token in ids], config.planning_phrases),
        pad_id=policy.pad_id,
        grams=grams,
        reward_range=config.reward_range,
        attributed=partial(_attributed, config),
        pieces=pieces,
        world=world,
        is_off_policy=config.remedy is not None and config.remedy.is_off_policy,
        training=training,
    )


def _grams(
    directory: Path, directions: ArmDirections, start: Sequence[Measure], config: StepConfig
) -> dict[Basis, GramRecorder]:
    """A recorder for each basis, with the directions of its control arms."""
    bases: list[Basis] = list(dict.fromkeys(measure.arm.basis for measure in start))
    grams: dict[Basis, GramRecorder] = {}
    for basis in bases:
        # Conditions of one pass share their normaliser, and with it the directions: those of any will do.
        library, controls = directions.library(basis, next(iter(config.objectives().values()))), {}
        for measure in start:
            if measure.arm.basis == basis and measure.arm.directions != "v_hack":
                controls[measure.arm.name] = measure.vectors
        grams[basis] = GramRecorder(directory, library.pair_gradients, library.v_hack, controls, basis=basis)
    return grams


def _attributed(config: StepConfig, step: int, measures: Sequence[Measure]) -> Measure | None:
    """The measure whose cosines are split over tokens in a step: of the primary condition, in the measured arm."""
    if config.token_attribution is not None and step >= config.token_attribution:
        return None
    split = config.primary, measured_arm(config.intervention.arms) or config.intervention.arms[0]
    return next(measure for measure in measures if (measure.condition, measure.arm.name) == split)


def copied(policy: Policy) -> Policy:
    """The policy on modules of its own, which an adapter may be put into; the weights are shared."""
    # With its parameters and buffers in the memo, deepcopy copies the modules and keeps the tensors.
    shared = {id(tensor): tensor for tensor in (*policy.model.parameters(), *policy.model.buffers())}
    return replace(policy, model=copy.deepcopy(policy.model, shared))


def configured_basis(policy: Policy, basis: Basis, config: ModelConfig, cache_dir: Path) -> Coordinates:
    """Adapt the policy in place in a basis, as the table `model` says."""
    return attach(
        policy.model,
        basis=basis,
        model_id=policy.base_model,
        cache_dir=cache_dir / "svd",
        rank=config.lora_rank if basis == "lora" else config.svd_rank,
        targets=config.targets,
        start_adapter=policy.adapter_sha,
    )


def attach_bases(
    policy: Policy,
    arms: Sequence[Arm],
    config: ModelConfig,
    cache_dir: Path,
    timings: Timings,
    world: World = SOLO,
) -> dict[Basis, Coordinates]:
    """One adapted copy of the policy for each basis of the arms; the copies share the weights.

    Raises:
        InputError: several bases on a base that is to be sharded.
    """
    names: list[Basis] = list(dict.fromkeys(arm.basis for arm in arms))
    if config.shard_base != world.shards_base:
        raise ValueError(f"shard_base: expected {config.shard_base}, as configured, of the world, {world}")
    if world.shards_base and len(names) > 1:
        raise InputError("model.shard_base", expected="arms of one basis", found=", ".join(names))
    policies = [policy] + [copied(policy) for _ in names[1:]]
    bases: dict[Basis, Coordinates] = {}
    for basis, own in zip(names, policies, strict=True):
        with timings.phase(basis), world.main_first():
            bases[basis] = configured_basis(own, basis, config, cache_dir)
    if world.shards_base:
        assert world.device is not None
        shard_base(bases[names[0]].model, world.device)
    return bases


def _training(config: StepConfig, coordinates: Coordinates, num_steps: int) -> TrainingState:
    """AdamW in the one arm under the one condition, with the references and controllers."""
    control, intervention = config.control, config.intervention
    arm, target = get_arm(intervention.arms[0]), intervention.gate.target
    updater = Updater(coordinates, arm, config.optimizer, num_steps, target)
    references = References(coordinates, ema_decay=control.ema_decay, ema_every=control.ema_every)
    return TrainingState(updater, references, config.objectives()[config.primary], control)
