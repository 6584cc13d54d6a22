"""Log-probabilities and hidden states of completions: forward passes alone, split as those of the gradients are.

Shapes: G samples, T tokens, N completion tokens of the batch, d the hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.adapters import Coordinates
from extraction.attention import attending
from extraction.batch import Batch
from extraction.logprobs import CHUNK_SIZE, ChosenLogprobs, completion_states, scatter_tokens, split_model
from extraction.passes import Agree, completion_numbers, planned, zeros
from extraction.rows import make_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """A forward of G samples without gradients."""

    token_logprobs: Tensor  # (G, T), 0 off the completion
    states: Tensor  # (N, d) hidden states that predict the completion tokens, sample after sample


@torch.no_grad()
def score(
    coordinates: Coordinates, batch: Batch, *, tokens_per_batch: int | None = None, agree: Agree = int
) -> TokenScores:
    """Score every completion token; arguments and errors as `extraction.passes.planned`."""
    backbone, head = split_model(coordinates.model)
    token_logprobs = zeros(backbone, *batch.ids.shape)
    numbers = completion_numbers(batch)
    parts: list[tuple[Tensor, Tensor]] = []
    with planned(coordinates, batch, tokens_per_batch, agree) as plan:
        for samples, counts in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            completion = batch.completion_mask[rows.samples]
            with attending(backbone, plan.layout):
                states = completion_states(coordinates.model, rows)
            if not counts:
                continue
            logprobs = ChosenLogprobs.apply(states, rows.targets, head, CHUNK_SIZE)
            token_logprobs[rows.samples] = scatter_tokens(logprobs, completion)
            parts.append((numbers[rows.samples][completion], states))
    order = torch.cat([index for index, _ in parts]).argsort()
    return TokenScores(token_logprobs=token_logprobs, states=torch.cat([own for _, own in parts])[order])
