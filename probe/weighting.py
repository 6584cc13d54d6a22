"""What a condition makes of a step: advantages, normalisers and token credit as numbers.

P groups of a step, G samples in all of them, T tokens, N completion tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.batch import Batch
from probe.credit import cap_credit
from probe.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """One condition on one step."""

    advantages: Tensor  # (G,) A_i
    scale: Tensor  # (G,) A_i w_i
    credit: Tensor | None  # (G, T) c_it; None where it is 1 on every completion token
    token_advantages: Tensor | None  # (N,) A_it before the cap; None for an objective without token credit


def weigh(objective: Objective, rewards: Tensor, batch: Batch, token_logprobs: Tensor, planning: Tensor) -> Weighting:
    """Apply an objective to a step.

    Args:
        rewards: (P, G / P) float64, on the batch's device; (G,) where there is one group.
        token_logprobs: (G, T), of the pass with unit weights.
        planning: (G, T) bool.
    """
    mask = batch.completion_mask
    A = objective.advantages(rewards)
    scale = A * objective.weights(batch.completion_lengths.double())
    if not objective.has_credit:
        return Weighting(advantages=A, scale=scale, credit=None, token_advantages=None)
    credit = objective.credit(token_logprobs, mask, planning, A)
    before = (A[:, None] * credit)[mask]
    if objective.advantage_clip is not None:
        credit = cap_credit(credit, A, clip=objective.advantage_clip)
    neutral = bool((credit == 1)[mask].all())
    return Weighting(advantages=A, scale=scale, credit=None if neutral else credit, token_advantages=before)


def by_credit(weightings: Mapping[str, Weighting]) -> list[tuple[Tensor | None, list[str]]]:
    """(credit, names of its conditions): what needs the same pass together, in order of first appearance."""
    passes: list[tuple[Tensor | None, list[str]]] = []
    for name, weighting in weightings.items():
        same = (names for credit, names in passes if _equal(credit, weighting.credit))
        if (names := next(same, None)) is None:
            passes.append((weighting.credit, [name]))
        else:
            names.append(name)
    return passes


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)
