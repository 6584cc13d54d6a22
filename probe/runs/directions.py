"""Directions of the arms: extracted at the start and, on request, every `refresh_every` steps of a training.

`ArmDirections` makes the `Measure`s of a run: every arm under every loss variant with its directions {module: (k, r)}.

A refresh (`RefreshedMeasures`) extracts from the same pairs with the same settings at the coordinates of the deployed
policy (without its quarantine). It writes `directions/step_NNNNNN.safetensors` in the run, which a resumed run reads.
All ranks extract, since a sharded base needs them all, and then use rank 0's directions. Every record has the age of
its directions and their overlap with the first ones,

    overlap = mean over modules of  ||V V_0^T||_F^2 / k         1 = the same subspaces; Haar directions: k / r

the mean squared cosine of the principal angles (with the smaller k of the two).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from extraction.adapters.frames import Frames
from extraction.directions import Directions, load_directions, save_directions
from extraction.library import DirectionLibrary, source_identity
from extraction.pairs import selected_pairs
from extraction.stacks import Stacks
from extraction.words import Basis, Normaliser
from probe.records.run import DIRECTIONS_DIR
from probe.runs.trusted import subspaces, uniform
from probe.settings.arms import Arm, DirectionKind, Subspace, get_arm
from probe.settings.loss import LossSettings
from probe.settings.run import StepConfig, normaliser
from probe.settings.training import InterventionConfig
from probe.step.distributed import SOLO, World
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import file_sha256, read_sealed
from replay_pools.policy.load import Policy

CARD_SCHEMA = 4


class ArmDirections:
    """Directions by basis, kind and normaliser; arms and loss variants share equal ones.

    Args:
        config: arms, loss variants, projection, extraction (or the direction file that replaces it) and seed matter.
        policy: renders the pairs.
        frames: frames of the policy at the start, by basis.
        cache_dir: cache of pair gradients.
        say: called with what is computed and what comes from the cache.
    """

    def __init__(
        self,
        config: StepConfig,
        policy: Policy,
        frames: Mapping[Basis, Frames],
        cache_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._policy, self._frames = config, policy, frames
        self._cache_dir, self._say = cache_dir, say
        self._subspaces: dict[Subspace, Mapping[str, Tensor]] = {}
        self._libraries: dict[tuple[Basis, Normaliser], DirectionLibrary] = {}
        self._vectors: dict[tuple[Basis, Normaliser, DirectionKind], Mapping[str, Tensor]] = {}  # on the device

    def library(self, basis: Basis, objective: LossSettings) -> DirectionLibrary:
        """Return the directions of a basis under the normaliser of an objective."""
        key = basis, normaliser(objective)
        if key not in self._libraries:
            self._libraries[key] = self._new(self._frames[basis], key[1])
        return self._libraries[key]

    def extract(self, arm: Arm, objective: LossSettings, frames: Frames) -> Directions:
        """Extract the arm's directions in frames of the current policy, without this object's caches."""
        return self._new(frames, normaliser(objective)).get(arm.directions)

    def measures(self) -> list[Measure]:
        """Make the measures of every arm under every loss variant."""
        projection = self._config.intervention.projection
        return [
            Measure(
                condition=name,
                arm=arm,
                vectors=self._along(arm.basis, arm.directions, objective),
                side=projection.side or arm.side,
                overshoot=projection.overshoot,
                target=projection.target,
                dose=self._along(arm.basis, "v_hack", objective) if arm.dosed and arm.onto is None else None,
                onto=None if arm.onto is None else self._onto(arm.onto),
                onto_dose=self._onto("clean") if arm.dosed and arm.onto is not None else None,
            )
            for name, objective in self._config.objectives().items()
            for arm in map(get_arm, self._config.intervention.arms)
        ]

    def _new(self, frames: Frames, weights: Normaliser) -> DirectionLibrary:
        # Pairs and rollouts share the normaliser, so that directions and gradients belong to the same loss.
        intervention = self._config.intervention
        return DirectionLibrary(
            self._policy,
            frames,
            intervention.extraction,
            weights,
            cache_dir=self._cache_dir,
            seed=self._config.seed,
            v_hack=intervention.v_hack,
            say=self._say,
        )

    def _onto(self, kind: Subspace) -> Mapping[str, Tensor]:
        """Return {module: (K, d_out)} of the arms `trusted`."""
        if kind == "haar":
            return uniform(self._onto("clean"), self._config.seed)
        if kind not in self._subspaces:
            intervention = self._config.intervention
            pairs = [pair for pair in selected_pairs(intervention.extraction) if not pair.held_out]
            self._subspaces[kind] = subspaces(kind, self._policy, self._frames["lora"], pairs, intervention.trusted)
        return self._subspaces[kind]

    def _along(self, basis: Basis, kind: DirectionKind, objective: LossSettings) -> Mapping[str, Tensor]:
        """Return {module: (k, r)} on the policy's device."""
        key = basis, normaliser(objective), kind
        if key not in self._vectors:
            self._vectors[key] = Stacks.of(self.library(basis, objective).get(kind).to(self._policy.device).vectors)
        return self._vectors[key]


def card_path(directions_path: Path) -> Path:
    """Return the path of `NAME.card.json` for `NAME.safetensors`."""
    return directions_path.with_suffix(".card.json")


def read_card(path: Path) -> dict[str, Any]:
    """Read the card of the direction file `path`.

    Raises:
        InputError: no such file, no card, or a card of another schema or another file.
    """
    if not path.is_file():
        raise InputError(path, expected="a direction file", found="no such file", fix="run probe extract")
    where = card_path(path)
    if not where.is_file():
        fix = "ask for it where the file comes from, or run probe extract again"
        raise InputError(where, expected="the card of the direction file", found="no such file", fix=fix)
    card = read_sealed(where, CARD_SCHEMA, "run probe extract again")
    # A card left by an earlier extraction describes other vectors.
    actual = file_sha256(path)
    if card.get("sha256") != actual:
        raise InputError(
            path,
            expected=f"the file of its card, sha256 {card.get('sha256')}",
            found=actual,
            fix="card and file are of different extractions: run probe extract again",
        )
    return card


def directions_source(intervention: InterventionConfig) -> dict[str, str]:
    """Return `source_identity` of a run's directions; InputError for a file that does not match its card."""
    if intervention.v_hack is not None:
        path = Path(intervention.v_hack)
        # Reading the file refuses a path that is no file; "" cannot even have a card.
        if path.is_file() and card_path(path).is_file():
            read_card(path)
    return source_identity(intervention.extraction, intervention.v_hack)


@final
class RefreshedMeasures:
    """The measure of a training at every step.

    Args:
        directory: the run.
        start: the measure with the first directions.
        extract: returns directions of the arm's kind at the current coordinates.
        updater: the policy's updater.
        every: steps between refreshes; None = never.
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
        """Return the measure of a step, with directions at most `every` - 1 steps old."""
        since = 0 if self._every is None else step - step % self._every
        if since != self._newest[0]:
            self._newest = since, self._at(since, step)
        return [replace(self._newest[1], age=step - since)]

    def _at(self, since: int, step: int) -> Measure:
        path = self._directory / f"step_{since:06d}.safetensors"
        if not self._world.on_main(path.is_file):
            assert since == step, "a refresh that was missed"
            with self._updater.deployed():
                extracted = self._extract()
            if self._world.is_main:
                save_directions(path, extracted)
            # Wait until rank 0 has written the file that every rank reads below.
            self._world.gather(None)
        vectors = Stacks.of(load_directions(path).to(self._updater.trained.model.device).vectors)
        return replace(self._start, vectors=vectors, overlap=overlap(vectors, self._start.vectors))


def overlap(vectors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float | None:
    """Return the mean squared cosine of the principal angles, over modules {module: (k, r)} with directions in both.

    None if there is no such module.
    """
    overlaps = []
    for module, V in vectors.items():
        if (smaller := min(len(V), len(start.get(module, ())))) > 0:
            overlaps.append(float((V.double() @ start[module].double().T).square().sum()) / smaller)
    return sum(overlaps) / len(overlaps) if overlaps else None
