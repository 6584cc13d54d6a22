"""`score`: log-probabilities and hidden states of completions, from forward passes without gradients.

The passes are split as those of `extraction.gradients` are, since the split shows in the last bits of the results.

Shapes: G samples, T tokens, N completion tokens of the batch, d the hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.adapters.interface import Coordinates
from extraction.attention import attending
from extraction.batch import Batch
from extraction.logprobs import CHUNK_SIZE, ChosenLogprobs, completion_states, scatter_tokens, split_model
from extraction.pass_plan import Agree, completion_numbers, planned, zeros
from extraction.rows import make_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What a forward of G samples gives."""

    token_logprobs: Tensor  # (G, T), 0 outside of the completion
    states: Tensor  # (N, d) hidden states that predict the completion tokens, sample after sample


@torch.no_grad()
def score(
    coordinates: Coordinates, batch: Batch, *, tokens_per_batch: int | None = None, agree: Agree = int
) -> TokenScores:
    """The log-probability of every completion token, and the hidden state that predicts it.

    Args:
        coordinates: the adapted model, scored with its adapter as it stands.
        batch: on the model's device.
        tokens_per_batch: tokens in one pass; None is what fits the machine's memory.
        agree: see `extraction.pass_plan.planned`.

    Raises:
        InputError: `tokens_per_batch` is below 1, or the model cannot be scored (`completion_logprobs`).
    """
    backbone, head = split_model(coordinates.model)
    token_logprobs = zeros(backbone, *batch.ids.shape)
    numbers = completion_numbers(batch)
    token_numbers, token_states = [], []
    with planned(coordinates, batch, tokens_per_batch, agree) as plan:
        for samples, is_needed in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            completion = batch.completion_mask[rows.samples]
            with attending(backbone, plan.layout):
                states = completion_states(coordinates.model, rows)
            # A spare pass runs only so that all processes make the same forwards; its results are known already.
            if not is_needed:
                continue
            logprobs = ChosenLogprobs.apply(states, rows.targets, head, CHUNK_SIZE)
            token_logprobs[rows.samples] = scatter_tokens(logprobs, completion)
            token_numbers.append(numbers[rows.samples][completion])
            token_states.append(states)
    # Passes take samples longest first: put the tokens back in the order of the batch.
    order = torch.cat(token_numbers).argsort()
    return TokenScores(token_logprobs=token_logprobs, states=torch.cat(token_states)[order])
