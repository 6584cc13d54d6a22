"""Directions of the arms: extracted at the start and, on request, every `refresh_every` steps of a training.

`arm_measures` makes the `Measure`s of a run: every arm under every loss variant with its directions {module: (k, r)}.

A refresh (`refreshed_measures`) extracts from the same pairs at the coordinates of the deployed policy (without its
quarantine) and writes `directions/step_NNNNNN.safetensors`, which a resumed run reads. All ranks extract, since a
sharded base needs them all, and use rank 0's directions. Records have their age and their overlap with the first ones,

    overlap = mean over modules of  ||V V_0^T||_F^2 / k         1 = the same subspaces; Haar directions: k / r

the mean squared cosine of the principal angles (with the smaller k of the two).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from extraction.adapters.frames import Frames
from extraction.directions import Directions, load_directions, save_directions
from extraction.library import DirectionLibrary, source_identity
from extraction.pairs import selected_pairs
from extraction.settings import Basis, Normaliser
from extraction.stacks import Stacks
from probe.records.run import DIRECTIONS_DIR
from probe.settings.arms import DirectionKind, Subspace, get_arm
from probe.settings.training import InterventionConfig
from probe.settings.verbs import StepConfig, normaliser
from probe.step.distributed import SOLO, World
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import file_sha256, read_sealed
from replay_pools.policy.load import Policy

CARD_SCHEMA = 4
Libraries = Callable[[Basis, Normaliser], DirectionLibrary]


def arm_measures(
    config: StepConfig,
    policy: Policy,
    frames: Mapping[Basis, Frames],
    cache_dir: Path,
    say: Callable[[str], None],
) -> tuple[list[Measure], Libraries]:
    """Make the measures of every arm under every loss variant; arms and loss variants share equal directions.

    Args:
        config: arms, loss variants, projection, extraction (or the direction file that replaces it) and seed matter.
        frames: of the policy at the start.
        say: called with notes on the pairs, and with what of the cache is damaged.

    Returns:
        The measures, and a function that returns the library of a basis and normaliser.
    """
    intervention = config.intervention

    @cache
    def library(basis: Basis, weights: Normaliser) -> DirectionLibrary:
        # Pairs and rollouts share the normaliser, so that directions and gradients belong to the same loss.
        return DirectionLibrary(
            policy,
            frames[basis],
            intervention.extraction,
            weights,
            cache_dir=cache_dir,
            seed=config.seed,
            v_hack=intervention.v_hack,
            say=say,
        )

    @cache
    def along(basis: Basis, weights: Normaliser, kind: DirectionKind) -> Mapping[str, Tensor]:
        return Stacks.of(library(basis, weights).get(kind).to(policy.device).vectors)

    @cache
    def onto(kind: Subspace) -> Mapping[str, Tensor]:
        from probe.runs.trusted import subspaces, uniform

        if kind == "haar":
            return uniform(onto("clean"), config.seed)
        pairs = [pair for pair in selected_pairs(intervention.extraction) if not pair.held_out]
        return subspaces(kind, policy, frames["lora"], pairs, intervention.trusted_rank)

    projection, measures = intervention.projection, []
    for name, objective in config.objectives().items():
        weights = normaliser(objective)
        for arm in map(get_arm, intervention.arms):
            measure = Measure(
                condition=name,
                arm=arm,
                vectors=along(arm.basis, weights, arm.directions),
                side=projection.side or arm.side,
                overshoot=projection.overshoot,
                target=projection.target,
            )
            if arm.onto is not None:
                measure = replace(measure, onto=onto(arm.onto), onto_dose=onto("clean") if arm.dosed else None)
            elif arm.dosed:
                measure = replace(measure, dose=along(arm.basis, weights, "v_hack"))
            measures.append(measure)
    return measures, library


def card_path(directions_path: Path) -> Path:
    """Return the path of `NAME.card.json` for `NAME.safetensors`."""
    return directions_path.with_suffix(".card.json")


def read_card(path: Path) -> dict[str, Any]:
    """Read the card of the direction file `path`.

    Raises:
        InputError: no card, or a card of another schema or another file.
    """
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
    if intervention.v_hack is not None and card_path(path := Path(intervention.v_hack)).is_file():
        read_card(path)
    return source_identity(intervention.extraction, intervention.v_hack)


def refreshed_measures(
    directory: Path,
    start: Measure,
    extract: Callable[[Frames], Directions],
    updater: Updater,
    every: int | None,
    world: World = SOLO,
) -> Callable[[int], list[Measure]]:
    """Return a function from a step to its measure, with directions at most `every` - 1 steps old.

    Args:
        directory: the run.
        start: the measure with the first directions.
        extract: returns directions of the arm's kind in the current frames.
        every: steps between refreshes; None = never.
    """
    trained, first = updater.trained, replace(start, overlap=1.0)

    @lru_cache(1)
    def read(path: Path) -> Measure:
        vectors = Stacks.of(load_directions(path).to(trained.model.device).vectors)
        return replace(start, vectors=vectors, overlap=overlap(vectors, start.vectors))

    def measures(step: int) -> list[Measure]:
        age = step if every is None else step % every
        path = directory / DIRECTIONS_DIR / f"step_{step - age:06d}.safetensors"
        if age == step:
            return [replace(first, age=age)]
        if not world.on_main(path.is_file):
            assert age == 0, "a refresh that was missed"
            with updater.deployed(), trained.folded():
                extracted = extract(trained.frames())
            if world.is_main:
                save_directions(path, extracted)
            # Wait until rank 0 has written the file that every rank reads below.
            world.gather(None)
        return [replace(read(path), age=age)]

    return measures


def overlap(vectors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float | None:
    """Return the mean squared cosine of the principal angles, over modules {module: (k, r)} with directions in both.

    None if there is no such module.
    """
    overlaps = []
    for module, V in vectors.items():
        if (smaller := min(len(V), len(start.get(module, ())))) > 0:
            overlaps.append(float((V.double() @ start[module].double().T).square().sum()) / smaller)
    return sum(overlaps) / len(overlaps) if overlaps else None
