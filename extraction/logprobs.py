"""Log-probabilities of completion tokens, without logits of any other position.

Shapes: G samples, T tokens, N completion tokens in the whole batch, d the hidden size, v the vocabulary;
r coordinates, k directions, M modules.
Only the N hidden states that predict a completion token meet the head, `chunk_size` of them at a time, and their
logits are computed again in the backward: (chunk_size, v) is the largest tensor with a vocabulary axis.
"""

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from replay_pools.errors import InputError

CHUNK_SIZE = 512

# Options of transformers configurations that change logits outside the head; with other values than these the
# log-probabilities below would silently be those of another model.
# Limit: an architecture that does the same under a name missing here is not noticed.
NEUTRAL_LOGITS = {
    "final_logit_softcapping": None,  # Gemma
    "logit_scale": 1.0,  # Cohere
    "logits_scaling": 1.0,  # Granite
    "lm_head_multiplier": 1.0,  # Falcon-H1
}


def completion_logprobs(
    model: PreTrainedModel | PeftModel,
    ids: Tensor,
    attention_mask: Tensor,
    completion_mask: Tensor,
    *,
    chunk_size: int = CHUNK_SIZE,
) -> Tensor:
    """log p(token | everything before it) of every completion token, sample after sample, (N,).

    Differentiable. The log-softmax is computed in float32 (float64 for a float64 model).

    Args:
        model: a causal language model whose logits are `head(last hidden state)`.
        ids: (G, T), padded on the right.
        attention_mask: (G, T), True on prompt and completion: what the model may look at.
        completion_mask: (G, T), True on completion tokens: what is scored. Never at position 0.
        chunk_size: tokens per block of logits.

    Raises:
        InputError: the model rescales or caps its logits, or has no separate backbone and head.
    """
    backbone, head = split_model(model)
    hidden = backbone(input_ids=ids, attention_mask=attention_mask, use_cache=False).last_hidden_state  # (G, T, d)
    predicting = hidden[:, :-1][completion_mask[:, 1:]]  # (N, d): the state at t - 1 predicts the token at t
    targets = ids[completion_mask]  # (N,)
    chunks = zip(predicting.split(chunk_size), targets.split(chunk_size), strict=True)
    return torch.cat(
        [
            checkpoint(chosen_logprobs, head, states, tokens, use_reentrant=False, preserve_rng_state=False)
            for states, tokens in chunks
        ]
    )


def scatter_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Put (N,) values back where `mask` (G, T) is True, 0 elsewhere, (G, T)."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def chosen_logprobs(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """log softmax(head(hidden))[targets], (n, d) and (n,) -> (n,)."""
    logits = head(hidden)
    logprobs = F.log_softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return logprobs.gather(1, targets[:, None]).squeeze(1)


def split_model(model: PreTrainedModel | PeftModel) -> tuple[nn.Module, nn.Module]:
    """The inner transformer and the head of a causal language model, with whatever adapter is in place."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    assert isinstance(base, PreTrainedModel)
    for option, neutral in NEUTRAL_LOGITS.items():
        value = getattr(base.config, option, neutral)
        if value not in (None, neutral):
            raise InputError(
                f"{type(base).__name__} config {option}",
                expected=f"{neutral}, so that logits are head(hidden state)",
                found=str(value),
                fix="use a model that does not transform its logits",
            )
    head = base.get_output_embeddings()
    if base.base_model is base or head is None:
        raise InputError(type(base).__name__, expected="a causal language model", found="no backbone with a head")
    return base.base_model, head
