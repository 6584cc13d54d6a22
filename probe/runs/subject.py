"""What is trained, and along which directions: all that a training run makes from the policy before its first step."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from extraction.adapters.coordinates import Coordinates
from extraction.pairs import load_pairs
from probe.objective.credit import PLANNING_PHRASES
from probe.records.records import DEFAULT_CONDITION
from probe.records.timings import Timings
from probe.runs.control import Control
from probe.runs.frozen_batch import FrozenBatch
from probe.runs.loop import Setup, TokenAttribution
from probe.runs.measures import ArmDirections, DirectionSettings, attach_bases
from probe.runs.pieces import Pieces
from probe.runs.planning import PlanningMarker
from probe.runs.refresh import RefreshedMeasures
from probe.runs.train_config import TrainConfig
from probe.runs.training import Training
from probe.settings.arms import get_arm
from probe.step.distributed import World
from probe.step.optimizer import Decay, Stepper
from probe.step.passes import Bases
from probe.step.reference import References
from probe.step.update import Updater
from replay_pools.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One policy in training, in one arm."""

    policy: Policy
    coordinates: Coordinates
    training: Training
    measures: RefreshedMeasures
    frozen: FrozenBatch | None
    world: World

    def setup(self, config: TrainConfig) -> Setup:
        """What every step is evaluated with."""
        return Setup(
            bases=Bases(
                coordinates=[self.coordinates],
                tokens_per_batch=config.intervention.extraction.tokens_per_batch,
                world=self.world,
            ),
            conditions={DEFAULT_CONDITION: config.objective},
            measures=self.measures,
            planning=PlanningMarker(self.policy.tokenizer, PLANNING_PHRASES),
            pad_id=self.policy.pad_id,
            references=self.training.references,
            gram=None,  # inner products with pair gradients of the start would be stale from the second step on
            dtype_noise=None,
            tokens=self._tokens(config),
            world=self.world,
        )

    def _tokens(self, config: TrainConfig) -> TokenAttribution | None:
        """Of the arm's own directions, as they are in each step."""
        if config.token_attribution == 0:
            return None
        arm, pieces = config.intervention.arm, Pieces(self.policy.tokenizer)
        return TokenAttribution(condition=DEFAULT_CONDITION, arm=arm, steps=config.token_attribution, pieces=pieces)


def make_subject(
    config: TrainConfig,
    policy: Policy,
    directory: Path,
    cache_dir: Path,
    timings: Timings,
    say: Callable[[str], None],
    world: World,
) -> Subject:
    """Adapt the policy in the arm's basis, get the arm's directions at the start, and make what trains it."""
    arm, intervention = get_arm(config.intervention.arm), config.intervention
    bases = attach_bases(policy, [arm], config.model, cache_dir, timings, world)
    coordinates = bases[arm.basis]
    in_turn = nullcontext() if world.shards_base else world.main_first()
    with timings.phase("directions") as phase, in_turn:
        settings = DirectionSettings(extraction=intervention.extraction, v_hack=intervention.v_hack, seed=config.seed)
        directions = ArmDirections(settings, policy, bases, cache_dir, say)
        (start,) = directions.measures({DEFAULT_CONDITION: config.objective}, [arm], intervention.gate)
        pairs = [pair for pair in load_pairs(intervention.extraction.pairs) if pair.held_out]
        frozen = FrozenBatch(policy, coordinates, pairs, start.vectors) if pairs else None
        phase.used_cache(misses=directions.cache_misses())
    updater = Updater(_stepper(config, coordinates), arm, intervention.gate.target)
    control = config.control
    references = References(coordinates, ema_decay=control.ema_decay, ema_every=control.ema_every)
    return Subject(
        policy=policy,
        coordinates=coordinates,
        training=Training(updater, references, Control(config.objective, control)),
        measures=RefreshedMeasures(
            directory,
            start,
            lambda: directions.extract(arm, config.objective),
            updater,
            intervention.refresh_every,
            world,
        ),
        frozen=frozen,
        world=world,
    )


def _stepper(config: TrainConfig, coordinates: Coordinates) -> Stepper:
    optimizer = config.optimizer
    return Stepper(
        coordinates,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        decay=Decay(warmup_steps=optimizer.warmup_steps, steps=optimizer.steps),
    )
