"""How many tokens one pass may have, and what to do about a sample that has more."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psutil
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from extraction.adapters.targets import weight_matrix

FEWEST, MOST = 512, 8192  # tokens; more than MOST in a pass make nothing faster
SHARE = 0.5  # of the memory that the weights leave
ALLOWANCE = 2  # times the estimate of a token's activations; measured: 1.3 to 1.6


def tokens_that_fit(backbone: PreTrainedModel) -> int:
    """Tokens of one forward and backward for which there is memory: a power of two in FEWEST..MOST.

    A token's activations are estimated as the inputs and outputs of all Linears. What counts is the memory of the
    machine, not what happens to be free: the split into passes shows in the last bits of the results, and a run that is
    resumed must split as it did before.
    """
    weights = sum(parameter.nbytes for parameter in backbone.parameters())
    floats = sum(
        sum(weight_matrix(module, name).shape)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and ".lora_" not in name  # A x and B A x are small or not formed
    )
    bytes_a_token = ALLOWANCE * floats * backbone.dtype.itemsize
    tokens = int(SHARE * (total_bytes(backbone.device) - weights)) // bytes_a_token
    return max(FEWEST, min(MOST, 1 << (max(tokens, 1).bit_length() - 1)))


def total_bytes(device: torch.device) -> int:
    """The memory of `device`."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


@contextmanager
def checkpointed(backbone: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """While open and `wanted`, blocks of the model compute their activations again in the backward.

    transformers' own switch works in training mode alone, where dropout would be on.
    """
    blocks = [block for block in backbone.modules() if wanted and isinstance(block, GradientCheckpointingLayer)]
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)
