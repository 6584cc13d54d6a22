"""The numerical noise of the cosines: per-sample cosines of a few rollouts, again in the next higher precision.

The copy in higher precision has the SAME (rounded) weights and the same basis, so that the two differ by the rounding
of forward and backward alone. The effect of rounding the weights themselves is not measured.
"""

import copy
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from probe.settings.words import HIGHER
from probe.step.bases import Bases
from probe.step.groups import GroupSource
from probe.step.projection import sample_cosines
from probe.step.step import Measure


def dtype_noise(
    bases: Bases, measures: Sequence[Measure], source: GroupSource, num_rollouts: int, pad_id: int
) -> dict[str, Any]:
    """The noise floor of the per-sample cosines with every arm's directions, on the first rollouts of the run.

    Args:
        bases: the model's coordinates, in one basis or two.
        measures: of the first step: the directions of every arm.
        source: the groups of the run.
        num_rollouts: how many rollouts are scored again.
        pad_id: the token that pads a batch.

    Returns:
        `dtype`, `reference` (the higher one), `rollouts`, and for each basis the `median` and `max` absolute
        difference of `cos_S_nll` between the two (`cos_S_contrib` differs by as much).

    Raises:
        KeyError: a float64 model, which has no higher precision.
    """
    dtype = bases.coordinates[0].model.dtype
    reference: torch.dtype = getattr(torch, HIGHER[str(dtype).removeprefix("torch.")])
    groups = _first_rollouts(source, num_rollouts)
    differences: dict[str, list[float]] = {coordinates.basis: [] for coordinates in bases.coordinates}
    for coordinates in bases.coordinates:
        higher = copy.deepcopy(coordinates)
        higher.model.to(reference)
        # Conditions with the same directions share the tensors: each set is compared once.
        vectors = {}
        for measure in measures:
            if measure.arm.basis == coordinates.basis:
                vectors[id(measure.vectors)] = measure.vectors
        for prompts, completions in groups:
            batch = make_batch(prompts, completions, pad_id).to(bases.device)
            size = bases.tokens_per_batch
            low = per_sample_gradients(coordinates, batch, tokens_per_batch=size).gradients
            high = per_sample_gradients(higher, batch, tokens_per_batch=size).gradients
            for directions in vectors.values():
                differences[coordinates.basis] += _cosine_differences(low, high, directions)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "reference": str(reference).removeprefix("torch."),
        "rollouts": sum(len(prompts) for prompts, _ in groups),
        **{basis: {"median": median(errors), "max": max(errors)} for basis, errors in differences.items() if errors},
    }


def _first_rollouts(source: GroupSource, num_rollouts: int) -> list[tuple[list[list[int]], list[list[int]]]]:
    """(prompts, completions) of the run's first rollouts as token ids, one pair for each step."""
    groups, step = [], 0
    while num_rollouts > 0 and step < source.num_steps:
        of_step = source.groups(step)
        prompts = [ids for group in of_step for ids in group.prompt_ids][:num_rollouts]
        completions = [ids for group in of_step for ids in group.completion_ids][:num_rollouts]
        groups.append((prompts, completions))
        num_rollouts, step = num_rollouts - len(prompts), step + 1
    return groups


def _cosine_differences(
    low: Mapping[str, Tensor], high: Mapping[str, Tensor], vectors: Mapping[str, Tensor]
) -> list[float]:
    """|difference| of every sample's cosine; samples without gradient, whose cosine is nan, are left out."""
    difference = (sample_cosines(low, vectors).cos.double() - sample_cosines(high, vectors).cos.double()).abs()
    return difference[~difference.isnan()].tolist()
