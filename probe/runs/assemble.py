"""Assembly of a run: from settings and a policy to everything that its steps need.

    policy -> its frames in the bases of the arms -> directions of every arm -> measures, references, training state

`probe replay` and `probe train` pass the result to `probe.runs.loop.run_steps`; they differ in the source of groups.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import extraction.adapters.delta_s  # noqa: F401 (teaches peft the adapters of `probe train`)
from extraction.adapters.frames import Frames, lora_frames, svd_frames
from extraction.adapters.trained import Trained
from extraction.directions import Directions
from extraction.words import Basis
from probe.objective.credit import planning_tokens
from probe.runs.control import TrainingState
from probe.runs.directions import Libraries, arm_measures, refreshed_measures
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import Pieces
from probe.runs.loop import Setup
from probe.settings.arms import get_arm
from probe.settings.run import ReplayConfig, StepConfig, normaliser
from probe.settings.training import ModelConfig
from probe.step.bases import Bases
from probe.step.distributed import SOLO, shard_base
from probe.step.reference import References
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.policy.load import Policy, load_policy, scaled_adapter

if TYPE_CHECKING:
    from probe.runs.inputs import Inputs


def configured_policy(model: ModelConfig, cache_dir: Path, *, device: str | None = None) -> Policy:
    """Load the policy of the table `model`, with its adapter: any of peft's, or one of `probe train`.

    `device` replaces the model's. InputError as in `load_policy`.
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
    """Return (directory, scale) of the adapter of the table `model`; None without one."""
    return None if model.adapter is None else scaled_adapter(str(model.name), model.adapter)


def steps_apart(config: StepConfig) -> bool:
    """Return True if ranks split the steps of a run; False if they split the rollouts of each step.

    Steps are independent while weights are frozen. A sharded base needs all ranks in every forward.
    """
    return not config.trains and not config.model.shard_base


def assemble(inputs: "Inputs[Any]", directory: Path, num_steps: int) -> Setup:
    """Make the frames of the policy, the directions of the arms and, if weights move, the training state.

    A learning rate decays over the run's `num_steps`. InputError for anything wrong with the pairs or directions.
    """
    config, policy, world = inputs.config, inputs.policy, inputs.world
    arms = [get_arm(name) for name in config.intervention.arms]
    conditions = config.objectives()
    frames: dict[Basis, Frames] = {}
    used: dict[Basis, None] = dict.fromkeys(arm.basis for arm in arms)
    for basis in used:
        with inputs.timings.phase(basis), world.main_first():
            frames[basis] = configured_frames(policy, basis, config.model, inputs.cache)
    if world.shards_base:
        assert world.device is not None
        shard_base(policy.model, world.device)
        frames = {basis: read.to(world.device) for basis, read in frames.items()}
    adapted = next(iter(frames.values())).adapted
    if adapted is not None and adapted.caution:
        inputs.say(adapted.caution)
    # A sharded base needs all ranks in every forward; otherwise the first rank fills the caches that the others read.
    in_turn = nullcontext() if world.shards_base else world.main_first()
    with inputs.timings.phase("directions"), in_turn:
        start, library = arm_measures(config, policy, frames, inputs.cache, inputs.say)
        # In a training, products with the first pair gradients would be stale after the first step.
        grams = _grams(directory, library, start, config) if isinstance(config, ReplayConfig) else {}
    training, trained, refreshed = None, None, None
    if config.trains:
        trained = Trained(policy.model, frames[arms[0].basis])
        control, objective = config.control, conditions[config.primary]
        updater = Updater(trained, arms[0], config.optimizer, num_steps, config.intervention.projection.target)
        training = TrainingState(updater, References(trained, ema_decay=control.ema_decay), objective, control)

        def extract(current: Frames) -> Directions:
            return library(arms[0].basis, normaliser(objective)).at(current).get(arms[0].directions)

        every = config.intervention.refresh_every
        refreshed = refreshed_measures(directory, start[0], extract, updater, every, world)
    pieces = Pieces(policy.tokenizer)
    return Setup(
        bases=Bases(
            model=policy.model,
            frames=frames,
            trained=trained,
            tokens_per_batch=config.intervention.extraction.tokens_per_batch,
            world=SOLO if steps_apart(config) else world,
        ),
        conditions=conditions,
        measures=refreshed or (lambda step: start),
        planning=lambda ids: planning_tokens([pieces(token) for token in ids], config.planning_phrases),
        pad_id=policy.pad_id,
        grams=grams,
        pieces=pieces,
        training=training,
    )


def _grams(
    directory: Path, libraries: Libraries, start: Sequence[Measure], config: StepConfig
) -> dict[Basis, GramRecorder]:
    """Make a recorder for each basis, with the directions of its control arms."""
    # Along the directions of the first loss variant. One with another normaliser has others: these products do not
    # reproduce its cosines, and its analysis says so (`Analysis.reproduced`).
    weights = normaliser(next(iter(config.objectives().values())))
    grams: dict[Basis, GramRecorder] = {}
    used: dict[Basis, None] = dict.fromkeys(measure.arm.basis for measure in start)
    for basis in used:
        library, of_basis = libraries(basis, weights), [one for one in start if one.arm.basis == basis]
        controls = {one.arm.name: one.vectors for one in of_basis if one.arm.directions != "v_hack"}
        grams[basis] = GramRecorder(directory, library.pair_gradients, library.v_hack, controls, basis=basis)
    return grams


def configured_frames(policy: Policy, basis: Basis, config: ModelConfig, cache_dir: Path) -> Frames:
    """Make the frames of the policy in a basis, by the table `model`."""
    named = {"model_id": policy.base_model, "start_adapter": policy.adapter_sha}
    if basis == "lora":
        return lora_frames(policy.model, config.targets, rank=config.lora_rank, **named)
    return svd_frames(policy.model, config.targets, rank=config.svd_rank, cache_dir=cache_dir / "svd", **named)
