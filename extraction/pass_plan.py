"""`planned`: split a batch into forward passes, and hold the model frozen in evaluation mode while they run.

    with planned(coordinates, batch, tokens_per_batch, agree) as plan:
        for samples, is_needed in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            ...                                             one forward (and backward) of `rows`

Gradients (`extraction.gradients`) and scores (`extraction.scoring`) both run in this loop.
Shapes: G samples, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from extraction.adapters.interface import Coordinates
from extraction.attention import packs
from extraction.batch import Batch
from extraction.logprobs import split_model
from extraction.memory import tokens_that_fit
from extraction.rows import Rows, cost, plan_passes
from extraction.words import Layout
from replay_pools.errors import InputError

# The number of passes that this process needs -> the number that every process makes. `int` is the identity: a single
# process makes what it needs.
Agree = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How a batch is split into passes."""

    layout: Layout
    budget: int  # most tokens in a pass, unless a single sample has more
    num_needed: int  # passes that hold the batch
    all_passes: Sequence[tuple[list[int], bool]]  # (samples, is_needed): those needed, then spare ones

    def is_too_long(self, rows: Rows) -> bool:
        """Whether a pass exceeds the budget, which happens only to a single long sample."""
        return cost([stop - start for start, stop in rows.segments.spans], self.layout) > self.budget


@contextmanager
def planned(coordinates: Coordinates, batch: Batch, tokens_per_batch: int | None, agree: Agree) -> Iterator[PassPlan]:
    """The passes to make of `batch`; while open, the model is frozen and in its lean forward.

    Args:
        coordinates: the adapted model.
        batch: on the model's device.
        tokens_per_batch: most tokens in one pass; None is what fits the machine's memory.
        agree: maps this process's number of passes to the number that all processes make, where collectives in the
            model (sharded weights) need equally many. Spare passes repeat the first; their results must be ignored.

    Raises:
        InputError: `tokens_per_batch` is below 1, or the model cannot be scored (`completion_logprobs`).
    """
    backbone, _ = split_model(coordinates.model)
    with frozen(coordinates.model), coordinates.lean_forward():
        yield make_plan(backbone, batch, "packed" if packs(backbone) else "padded", tokens_per_batch, agree)


def make_plan(
    backbone: PreTrainedModel, batch: Batch, layout: Layout, tokens_per_batch: int | None, agree: Agree
) -> PassPlan:
    """The passes of `batch` in a layout; other arguments and errors as `planned`."""
    if tokens_per_batch is not None and tokens_per_batch < 1:
        raise InputError("tokens_per_batch", expected="at least 1", found=str(tokens_per_batch))
    budget = tokens_that_fit(backbone) if tokens_per_batch is None else tokens_per_batch
    passes = plan_passes(batch.lengths.tolist(), budget, layout)
    spare = agree(len(passes)) - len(passes)
    all_passes = [(samples, True) for samples in passes] + [(passes[0], False)] * spare
    return PassPlan(layout=layout, budget=budget, num_needed=len(passes), all_passes=all_passes)


def zeros(backbone: PreTrainedModel, *shape: int) -> Tensor:
    """An accumulator for results: on the model's device, in at least float32 whatever the model's dtype."""
    return torch.zeros(*shape, dtype=torch.promote_types(backbone.dtype, torch.float32), device=backbone.device)


def completion_numbers(batch: Batch) -> Tensor:
    """(G, T): the running number 0..N-1 of every completion token, sample after sample; meaningless elsewhere."""
    return batch.completion_mask.flatten().cumsum(0).view_as(batch.ids) - 1


@contextmanager
def frozen(model: PeftModel) -> Iterator[None]:
    """While open, evaluation mode and no parameter that requires a gradient; every flag is restored after."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, required in flags:
            parameter.requires_grad_(required)
