"""Forward passes of a batch: how it is split, in how much memory, with the model frozen; and `score`, which makes them.

    def run(rows, is_needed):                   one forward (and backward) of `rows`
        ...

    each_pass(model, batch, run)

Shapes: G samples, T tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from extraction.adapters.frames import Frames
from extraction.attention import attending, by_rotation, packs
from extraction.batch import Batch, Rows, make_rows, plan_passes, sharing
from extraction.logprobs import completion_logprobs, frozen, scatter_tokens, split_model
from extraction.settings import Layout
from replay_pools.policy.load import batch_bytes

# The number of passes that this process needs -> the number that every process makes; `int` for a single process.
Agree = Callable[[int], int]


def each_pass(
    model: PreTrainedModel | PeftModel,
    batch: Batch,
    run: Callable[[Rows, bool], object],
    *,
    tokens_per_batch: int | None = None,
    agree: Agree = int,
    share: bool = False,
    frames: Iterable[Frames] = (),
) -> None:
    """Call `run(rows, is_needed)` for every pass of `batch`, with the model frozen.

    Args:
        model: runs with whatever adapter it has.
        batch: on the model's device.
        run: makes the forward, and a backward if it wants one; ignores the results of a pass that is not needed.
        tokens_per_batch: most tokens in one pass; None is what fits the machine's memory. A longer sample is alone in
            its pass, with activation checkpointing.
        agree: maps this process's number of passes to the number that all processes make, since collectives in a model
            with sharded weights need the same. Spare passes repeat the first.
        share: one copy of a prompt for all of its samples, if the model allows that.
        frames: also in memory.

    Raises:
        InputError: the model cannot be scored (`completion_logprobs`).
    """
    backbone, _ = split_model(model)
    with frozen(model):
        layout = "padded" if not packs(backbone) else "shared" if share else "packed"
        budget = tokens_that_fit(backbone, frames) if tokens_per_batch is None else tokens_per_batch
        for samples, is_needed in make_plan(backbone, batch, layout, budget, agree):
            rows = make_rows(batch, layout, samples)
            is_too_long = int(batch.lengths[samples].max()) > budget
            with attending(backbone, layout), checkpointed(backbone, is_too_long):
                run(rows, is_needed)


def make_plan(
    backbone: PreTrainedModel, batch: Batch, layout: Layout, budget: int, agree: Agree
) -> list[tuple[list[int], bool]]:
    """Split `batch` into passes of at most `budget` tokens each: (samples, is_needed), spare ones last."""
    parts = sharing(batch, budget) if layout == "shared" else [[sample] for sample in range(len(batch))]
    lengths, own_lengths = batch.lengths.tolist(), (batch.lengths - batch.prompt_lengths).tolist()
    sizes = [lengths[part[0]] + sum(own_lengths[sample] for sample in part[1:]) for part in parts]
    passes = [
        [sample for number in numbers for sample in parts[number]] for numbers in plan_passes(sizes, budget, layout)
    ]
    passes = [part for samples in passes for part in by_rotation(backbone, samples, lengths)]
    return [(samples, True) for samples in passes] + [(passes[0], False)] * (agree(len(passes)) - len(passes))


def zeros(backbone: PreTrainedModel, *shape: int) -> Tensor:
    """Return zeros on the model's device, in at least float32."""
    return torch.zeros(*shape, dtype=torch.promote_types(backbone.dtype, torch.float32), device=backbone.device)


FEWEST, MOST = 512, 8192  # bounds on the tokens of a pass; beyond MOST a pass is not any faster
ALLOWANCE = 2  # a token's activations as a multiple of `token_bytes`: 1.3 to 1.6 were measured


def tokens_that_fit(backbone: PreTrainedModel, frames: Iterable[Frames] = ()) -> int:
    """Return how many tokens one forward and backward has memory for, with `frames`: a power of two, FEWEST..MOST."""
    # Frames are as large as weights, and so are the buffers of delta_S, which may be the very tensors of frames.
    tensors = [*backbone.parameters(), *backbone.buffers()]
    tensors += [tensor for read in frames for frame in read.values() for tensor in frame.tensors()]
    held = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
    tokens = batch_bytes(backbone.device, held) // (ALLOWANCE * token_bytes(backbone))
    power_of_two = 1 << (max(tokens, 1).bit_length() - 1)
    return max(FEWEST, min(MOST, power_of_two))


def token_bytes(backbone: PreTrainedModel) -> int:
    """Return the bytes of the inputs and outputs of all Linears for one token, as a measure of its activations."""
    floats = 0
    for name, module in backbone.named_modules():
        # LoRA's own Linears do not count: A x and B A x are small, or never formed.
        if isinstance(module, nn.Linear) and ".lora_" not in name:
            floats += module.in_features + module.out_features  # a quantised weight has another shape
        elif isinstance(module, Conv1D):
            floats += sum(module.weight.shape)
    return floats * backbone.dtype.itemsize


@contextmanager
def checkpointed(backbone: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """While open and if `wanted`, activation checkpointing: blocks recompute their activations in the backward."""
    blocks = []
    if wanted:
        blocks = [block for block in backbone.modules() if isinstance(block, GradientCheckpointingLayer)]
    try:
        for block in blocks:
            # gradient_checkpointing_enable() works in training mode only, where dropout would be on.
            # No RNG state is kept, since a model in evaluation mode draws nothing.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        # The class's own forward shows again once the instance attribute is gone.
        for block in blocks:
            block.__dict__.pop("forward", None)


@torch.no_grad()
def score(
    model: PreTrainedModel | PeftModel, batch: Batch, *, tokens_per_batch: int | None = None, agree: Agree = int
) -> Tensor:
    """Compute the log-probability of every scored token, (G, T); 0 elsewhere.

    Args:
        model: scored with whatever adapter it has.
        batch: on the model's device.
        tokens_per_batch: tokens in one pass; None is what fits the machine's memory.
        agree: see `each_pass`.

    Raises:
        InputError: the model cannot be scored (`completion_logprobs`).
    """
    token_logprobs = zeros(split_model(model)[0], *batch.ids.shape)

    def run(rows: Rows, is_needed: bool) -> None:
        logprobs = completion_logprobs(model, rows)
        if is_needed:
            token_logprobs[rows.samples] = scatter_tokens(logprobs, batch.completion_mask[rows.samples])

    each_pass(model, batch, run, tokens_per_batch=tokens_per_batch, agree=agree, share=True)
    return token_logprobs
