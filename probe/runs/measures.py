"""What every step of a run is measured with: the policy in each basis, the directions of each arm, each made once."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from torch import Tensor

from extraction.adapters.coordinates import Coordinates
from extraction.directions import Directions
from extraction.library import DirectionLibrary, ExtractionSettings, attach_basis
from extraction.vocabulary import Basis, LossType
from probe.objective.objective import Objective
from probe.records.timings import Timings
from probe.runs.config import GateConfig, ModelConfig
from probe.settings.arms import Arm, DirectionKind
from probe.step.distributed import SOLO, World
from probe.step.sharding import shard_base
from probe.step.step import Measure
from replay_pools.errors import InputError
from replay_pools.policy import Policy


def attach_bases(
    policy: Policy,
    arms: Sequence[Arm],
    config: ModelConfig,
    cache_dir: Path,
    timings: Timings,
    world: World = SOLO,
) -> dict[Basis, Coordinates]:
    """One adapted copy of the policy for each basis; the copies share the weights, which are sharded where asked.

    Raises:
        InputError: several bases on a base that is to be sharded.
    """
    names: list[Basis] = list(dict.fromkeys(arm.basis for arm in arms))
    if config.shard_base != world.shards_base:
        raise ValueError(f"shard_base: expected {config.shard_base}, as configured, of the world, {world}")
    if world.shards_base and len(names) > 1:
        raise InputError("--shard-base", expected="arms of one basis", found=", ".join(names))
    shared = {id(tensor): tensor for tensor in (*policy.model.parameters(), *policy.model.buffers())}
    models = [policy.model, *(copy.deepcopy(policy.model, dict(shared)) for _ in names[1:])]
    bases: dict[Basis, Coordinates] = {}
    for basis, model in zip(names, models, strict=True):
        with timings.phase(basis) as phase, world.main_first():
            bases[basis] = attach_basis(
                replace(policy, model=model),
                basis,
                cache_dir=cache_dir,
                lora_rank=config.lora_rank,
                svd_rank=config.svd_rank,
                svd_storage=config.svd_storage,
            )
            if basis == "svd":
                phase.used_cache(misses=bases[basis].cache_misses())
    if world.shards_base:
        assert world.device is not None
        shard_base(bases[names[0]].model, world.device)
    return bases


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionSettings:
    """Where directions come from."""

    extraction: ExtractionSettings  # the normaliser apart, which is that of the condition
    v_hack: str | None  # direction file; None extracts
    seed: int  # of the random controls


class ArmDirections:
    """Directions by basis, kind and normaliser, each made once: arms and conditions that agree share the tensors."""

    def __init__(
        self,
        settings: DirectionSettings,
        policy: Policy,
        bases: Mapping[Basis, Coordinates],
        cache_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._policy, self._bases, self._cache_dir, self._say = settings, policy, bases, cache_dir, say
        self._libraries: list[DirectionLibrary] = []  # the cached ones; `extract` makes a new one each time
        self._cached_library = cache(self._shared_library)
        self._cached_vectors = cache(self._vectors)

    def library(self, basis: Basis, objective: Objective) -> DirectionLibrary:
        """The directions of a basis under the normaliser of an objective."""
        return self._cached_library(basis, objective.loss_type, objective.max_completion_length)

    def cache_misses(self) -> int:
        """How many sets of pair gradients were measured, because the cache did not hold them."""
        return sum(library.cache_misses for library in self._libraries)

    def extract(self, arm: Arm, objective: Objective) -> Directions:
        """The arm's directions, extracted anew at the coordinates as they are."""
        return self._library(arm.basis, objective.loss_type, objective.max_completion_length).get(arm.directions)

    def measures(self, conditions: Mapping[str, Objective], arms: Sequence[Arm], gate: GateConfig) -> list[Measure]:
        """Every arm under every condition."""
        return [
            Measure(
                condition=name,
                arm=arm,
                vectors=self._cached_vectors(
                    arm.basis, arm.directions, objective.loss_type, objective.max_completion_length
                ),
                gate=gate.gate or arm.gate,
                overshoot=gate.overshoot,
                preserve_magnitude=gate.preserve_magnitude,
                target=gate.target,
            )
            for name, objective in conditions.items()
            for arm in arms
        ]

    def _shared_library(self, basis: Basis, loss_type: LossType, max_completion_length: int | None) -> DirectionLibrary:
        library = self._library(basis, loss_type, max_completion_length)
        self._libraries.append(library)
        return library

    def _library(self, basis: Basis, loss_type: LossType, max_completion_length: int | None) -> DirectionLibrary:
        """Pairs and rollouts have the normaliser in common, so that directions and gradients are of the same loss."""
        settings = self._settings
        return DirectionLibrary(
            self._policy,
            self._bases[basis],
            replace(settings.extraction, loss_type=loss_type, max_completion_length=max_completion_length),
            cache_dir=self._cache_dir,
            seed=settings.seed,
            v_hack=None if settings.v_hack is None else Path(settings.v_hack),
            say=self._say,
        )

    def _vectors(
        self, basis: Basis, kind: DirectionKind, loss_type: LossType, max_completion_length: int | None
    ) -> Mapping[str, Tensor]:
        """{module: (k, r)} on the policy's device."""
        found = self._cached_library(basis, loss_type, max_completion_length).get(kind)
        return found.to(self._policy.device).vectors
