"""Memory of one pass: how many tokens fit (`tokens_that_fit`), and activation checkpointing for longer samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from extraction.adapters.targets import weight_matrix
from replay_pools.sampling.memory import total_bytes

FEWEST, MOST = 512, 8192  # bounds on the tokens of a pass; beyond MOST a pass is not any faster
SHARE = 0.5  # share of the memory left by the weights that a pass may use
MEASURED = 1.45  # a token's activations as a multiple of `token_bytes`; measured: 1.3 to 1.6
NORM_BYTES = 4  # of each entry that a norm reads, which models in a lower precision keep in float32 beside it
ALLOWANCE = 2  # what the token budget reckons with instead, to be on the safe side


def tokens_that_fit(backbone: PreTrainedModel) -> int:
    """How many tokens one forward and backward has memory for: a power of two in FEWEST..MOST."""
    # Buffers are the factors of delta_S, and the weights that wait while it is merged: as large as weights.
    held = sum(tensor.nbytes for tensor in (*backbone.parameters(), *backbone.buffers()))
    # The machine's total memory, not what is free just now: the split into passes shows in the last bits of the
    # results, and a resumed run must split as it did before.
    tokens = int(SHARE * (total_bytes(backbone.device) - held)) // (ALLOWANCE * token_bytes(backbone))
    power_of_two = 1 << (max(tokens, 1).bit_length() - 1)
    return max(FEWEST, min(MOST, power_of_two))


def token_bytes(backbone: PreTrainedModel) -> int:
    """Bytes of the inputs and outputs of all Linears for one token: the measure of its activations."""
    floats = 0
    for name, module in backbone.named_modules():
        # LoRA's own Linears do not count: A x and B A x are small, or never formed.
        if isinstance(module, nn.Linear | Conv1D) and ".lora_" not in name:
            floats += sum(weight_matrix(module, name).shape)
    return floats * backbone.dtype.itemsize


def activation_bytes(backbone: PreTrainedModel) -> float:
    """Bytes of a token's activations in one forward and backward, as measured."""
    widened = 0
    if backbone.dtype.itemsize < NORM_BYTES:
        norms = (module for module in backbone.modules() if type(module).__name__.endswith("Norm"))
        widened = sum(parameter.numel() for norm in norms for parameter in norm.parameters())
    return MEASURED * token_bytes(backbone) + NORM_BYTES * widened


@contextmanager
def checkpointed(backbone: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """While open and if `wanted`, activation checkpointing: blocks recompute their activations in the backward."""
    blocks = []
    if wanted:
        blocks = [block for block in backbone.modules() if isinstance(block, GradientCheckpointingLayer)]
    try:
        for block in blocks:
            # Not gradient_checkpointing_enable(): that one works in training mode only, where dropout would be on.
            # No RNG state is kept, since a model in evaluation mode draws nothing.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        # The class's own forward shows again once the instance attribute is gone.
        for block in blocks:
            block.__dict__.pop("forward", None)
