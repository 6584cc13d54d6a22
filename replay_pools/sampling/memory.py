"""Memory of sampling: what a row takes, and how many rows are sampled together.

A row's keys and values are those of its prompt and of all tokens that it may get; windows of attention are not taken
into account.
"""

from collections.abc import Iterator, Sequence

import psutil
import torch
from transformers import PreTrainedConfig, PreTrainedModel

SHARE = 0.5  # of the memory left by the weights; the rest is for what a step keeps, and for activations
LAW_BYTES = 44  # of an entry of the vocabulary while a token is drawn: logits, their sorted copy with indices, sums


def cache_numbers(config: PreTrainedConfig) -> int:
    """How many numbers a cache keeps of one position of one row: keys and values of all layers."""
    config = config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", 0)  # none: a recurrence, whose state does not grow
    if heads == 0:
        return 0
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size


def row_bytes(model: PreTrainedModel, positions: int) -> int:
    """Bytes of a row of so many positions: its cache, and the law of its next token."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return positions * cache_numbers(model.config) * model.dtype.itemsize + vocabulary * LAW_BYTES


def default_budget(model: PreTrainedModel) -> int:
    """Bytes that sampling may take beside the weights."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    # The machine's total memory, not what is free just now: the split into batches shows in the last bits of the
    # log-probabilities, and a resumed run must split as it did before.
    return int(SHARE * (total_bytes(model.device) - weights))


def split(model: PreTrainedModel, lengths: Sequence[int], num_new: int, budget: int) -> Iterator[list[int]]:
    """The rows in batches that fit the budget, longest prompts first; a row that does not fit is a batch by itself.

    Args:
        model: its shapes are read.
        lengths: of the prompt of every row.
        num_new: the largest number of tokens that a row gets.
        budget: bytes.

    Yields:
        Indices of rows.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        # All rows are as long as the first one, with which they are padded.
        fitting = max(1, budget // row_bytes(model, lengths[order[0]] + num_new - 1))
        yield order[:fitting]
        order = order[fitting:]


def total_bytes(device: torch.device) -> int:
    """The total memory of `device`: of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
