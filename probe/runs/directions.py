"""What every step of a run is measured along: the policy in each basis, and the directions of each arm.

Directions are made once at the start. In a run that trains they may be extracted again every so many steps. A refresh
extracts from the same pairs with the same settings at the coordinates of the deployed policy (without its
quarantine), and leaves `directions/step_NNNNNN.safetensors` in the run: a resumed run reads what it finds there. All
ranks extract, since a sharded base needs them all; what rank 0 found counts, on all of them. Every
record carries the age of its directions and their overlap with those of the start,

    overlap = mean over modules of  ||V V_0^T||_F^2 / k         1 = the same subspaces; Haar directions: k / r

the mean squared cosine of the principal angles (k of the smaller of the two).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import final

from torch import Tensor

from extraction.adapters.interface import Coordinates
from extraction.angles import principal_angles
from extraction.directions import Directions, load_directions, save_directions
from extraction.library import DirectionLibrary, attach_basis
from extraction.words import Basis, Normaliser
from probe.records.run import DIRECTIONS_DIR
from probe.records.timings import Timings
from probe.settings.arms import Arm, DirectionKind
from probe.settings.intervention import GateConfig, InterventionConfig
from probe.settings.loss import LossSettings
from probe.settings.model import ModelConfig
from probe.settings.run import normaliser
from probe.step.distributed import SOLO, World, shard_base
from probe.step.step import Measure
from probe.step.update import Updater
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
        raise InputError("model.shard_base", expected="arms of one basis", found=", ".join(names))
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


class ArmDirections:
    """Directions by basis, kind and normaliser, each made once: arms and conditions that agree share the tensors."""

    def __init__(
        self,
        intervention: InterventionConfig,
        seed: int,
        policy: Policy,
        bases: Mapping[Basis, Coordinates],
        cache_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self._intervention, self._seed, self._policy, self._bases = intervention, seed, policy, bases
        self._cache_dir, self._say = cache_dir, say
        self._libraries: list[DirectionLibrary] = []  # the cached ones; `extract` makes a new one each time
        self._cached_library = cache(self._shared_library)
        self._cached_vectors = cache(self._vectors)

    def library(self, basis: Basis, objective: LossSettings) -> DirectionLibrary:
        """The directions of a basis under the normaliser of an objective."""
        return self._cached_library(basis, normaliser(objective))

    def extract(self, arm: Arm, objective: LossSettings) -> Directions:
        """The arm's directions, extracted anew at the coordinates as they are."""
        return self._library(arm.basis, normaliser(objective)).get(arm.directions)

    def measures(self, conditions: Mapping[str, LossSettings], arms: Sequence[Arm], gate: GateConfig) -> list[Measure]:
        """Every arm under every condition."""
        return [
            Measure(
                condition=name,
                arm=arm,
                vectors=self._cached_vectors(arm.basis, arm.directions, normaliser(objective)),
                gate=gate.gate or arm.gate,
                overshoot=gate.overshoot,
                preserve_magnitude=gate.preserve_magnitude,
                target=gate.target,
            )
            for name, objective in conditions.items()
            for arm in arms
        ]

    def cache_misses(self) -> int:
        """How many sets of pair gradients were measured, because the cache did not hold them."""
        return sum(library.cache_misses for library in self._libraries)

    def _shared_library(self, basis: Basis, weights: Normaliser) -> DirectionLibrary:
        library = self._library(basis, weights)
        self._libraries.append(library)
        return library

    def _library(self, basis: Basis, weights: Normaliser) -> DirectionLibrary:
        """Pairs and rollouts have the normaliser in common, so that directions and gradients are of the same loss."""
        file = self._intervention.v_hack
        return DirectionLibrary(
            self._policy,
            self._bases[basis],
            self._intervention.extraction,
            weights,
            cache_dir=self._cache_dir,
            seed=self._seed,
            v_hack=None if file is None else Path(file),
            say=self._say,
        )

    def _vectors(self, basis: Basis, kind: DirectionKind, weights: Normaliser) -> Mapping[str, Tensor]:
        """{module: (k, r)} on the policy's device."""
        return self._cached_library(basis, weights).get(kind).to(self._policy.device).vectors


@final
class RefreshedMeasures:
    """The one measure of a training run at every step.

    Args:
        directory: of the run.
        start: with the directions of the start.
        extract: directions of the arm's kind at the coordinates as they are.
        updater: of the policy.
        every: steps; None = never.
        world: the ranks.
    """

    def __init__(
        self,
        directory: Path,
        start: Measure,
        extract: Callable[[], Directions],
        updater: Updater,
        every: int | None,
        world: World = SOLO,
    ) -> None:
        self._directory, self._start, self._extract = directory / DIRECTIONS_DIR, start, extract
        self._updater, self._every, self._world = updater, every, world
        self._newest = 0, replace(start, overlap=1.0)  # (step of extraction, measure)

    def __call__(self, step: int) -> list[Measure]:
        """The measure of a step, with directions that are at most `every` - 1 steps old."""
        since = 0 if self._every is None else step - step % self._every
        if since != self._newest[0]:
            self._newest = since, self._at(since, step)
        return [replace(self._newest[1], age=step - since)]

    def _at(self, since: int, step: int) -> Measure:
        path = self._directory / f"step_{since:06d}.safetensors"
        if not self._world.on_main(path.is_file):
            assert since == step, "a refresh that was missed"
            with self._updater.deployed():
                found = self._extract()
            if self._world.is_main:
                save_directions(path, found)
            self._world.gather(None)  # the file is there
        vectors = load_directions(path).to(self._updater.coordinates.model.device).vectors
        return replace(self._start, vectors=vectors, overlap=overlap(vectors, self._start.vectors))


def overlap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float | None:
    """Mean squared cosine of the principal angles, over modules with directions in both; None without any."""
    shared = [module for module in a if module in b and min(len(a[module]), len(b[module]))]
    found = [principal_angles(a[module], b[module]).overlap for module in shared]
    return sum(found) / len(found) if found else None
