"""Forward passes of a batch: how it is split, in how much memory, with the model frozen; and `score`, which makes them.

    with planned(model, batch, tokens_per_batch, agree) as plan:
        for samples, is_needed in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            ...                                             one forward (and backward) of `rows`

Shapes: G samples, T tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from extraction.batch import Batch, Rows, cost, make_rows, plan_passes, sharing
from extraction.logprobs import completion_logprobs, frozen, scatter_tokens, split_model
from extraction.words import Layout
from replay_pools.sampling import total_bytes

# The number of passes that this process needs -> the number that every process makes; `int` for a single process.
Agree = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How a batch is split into passes."""

    layout: Layout
    budget: int  # most tokens in a pass, unless a single sample has more
    all_passes: Sequence[tuple[list[int], bool]]  # (samples, is_needed): those needed, then spare ones

    def is_too_long(self, rows: Rows) -> bool:
        """Return whether a pass exceeds the budget, which happens only to a single long sample."""
        return cost([stop - start for start, stop in rows.segments.spans], self.layout) > self.budget


@contextmanager
def planned(
    model: PreTrainedModel | PeftModel,
    batch: Batch,
    tokens_per_batch: int | None,
    agree: Agree,
    *,
    share: bool = False,
    frames: Iterable[Frames] = (),
) -> Iterator[PassPlan]:
    """Plan the passes of `batch`; while open, the model is frozen.

    Args:
        model: runs with whatever adapter it has.
        batch: on the model's device.
        tokens_per_batch: most tokens in one pass; None is what fits the machine's memory.
        agree: maps this process's number of passes to the number that all processes make, since collectives in a model
            with sharded weights need the same. Spare passes repeat the first; their results must be ignored.
        share: one copy of a prompt for all of its samples, if the model allows that.
        frames: also in memory.

    Raises:
        InputError: the model cannot be scored (`completion_logprobs`).
    """
    backbone, _ = split_model(model)
    with frozen(model):
        layout = "padded" if not packs(backbone) else "shared" if share else "packed"
        budget = tokens_that_fit(backbone, frames) if tokens_per_batch is None else tokens_per_batch
        yield make_plan(backbone, batch, layout, budget, agree)


def make_plan(backbone: PreTrainedModel, batch: Batch, layout: Layout, budget: int, agree: Agree) -> PassPlan:
    """Split `batch` into passes in a layout, of at most `budget` tokens each; `agree` as in `planned`."""
    parts = sharing(batch, budget) if layout == "shared" else [[sample] for sample in range(len(batch))]
    lengths, own_lengths = batch.lengths.tolist(), (batch.lengths - batch.prompt_lengths).tolist()
    sizes = [lengths[part[0]] + sum(own_lengths[sample] for sample in part[1:]) for part in parts]
    passes = [
        [sample for number in numbers for sample in parts[number]] for numbers in plan_passes(sizes, budget, layout)
    ]
    passes = [part for samples in passes for part in by_rotation(backbone, samples, lengths)]
    spare = agree(len(passes)) - len(passes)
    all_passes = [(samples, True) for samples in passes] + [(passes[0], False)] * spare
    return PassPlan(layout=layout, budget=budget, all_passes=all_passes)


def zeros(backbone: PreTrainedModel, *shape: int) -> Tensor:
    """Return zeros on the model's device, in at least float32."""
    return torch.zeros(*shape, dtype=torch.promote_types(backbone.dtype, torch.float32), device=backbone.device)


FEWEST, MOST = 512, 8192  # bounds on the tokens of a pass; beyond MOST a pass is not any faster
SHARE = 0.5  # share of the memory left by the weights that a pass may use
ALLOWANCE = 2  # a token's activations as a multiple of `token_bytes`: 1.3 to 1.6 were measured


def tokens_that_fit(backbone: PreTrainedModel, frames: Iterable[Frames] = ()) -> int:
    """Return how many tokens one forward and backward has memory for, with `frames`: a power of two, FEWEST..MOST."""
    # Frames are as large as weights, and so are the buffers of delta_S, which may be the very tensors of frames.
    tensors = [*backbone.parameters(), *backbone.buffers()]
    tensors += [tensor for read in frames for frame in read.values() for tensor in frame.tensors()]
    held = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
    # Not the memory that is free now: the split into passes shows in the last bits of the results, and a resumed run
    # must split as it did before.
    tokens = int(SHARE * (total_bytes(backbone.device) - held)) // (ALLOWANCE * token_bytes(backbone))
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
        agree: see `extraction.passes.planned`.

    Raises:
        InputError: the model cannot be scored (`completion_logprobs`).
    """
    backbone, _ = split_model(model)
    token_logprobs = zeros(backbone, *batch.ids.shape)
    with planned(model, batch, tokens_per_batch, agree, share=True) as plan:
        for samples, is_needed in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            completion = batch.completion_mask[rows.samples]
            with attending(backbone, plan.layout):
                logprobs = completion_logprobs(model, rows)
            if is_needed:
                token_logprobs[rows.samples] = scatter_tokens(logprobs, completion)
    return token_logprobs
