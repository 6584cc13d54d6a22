"""The passes over a batch, for gradients and scores alike: a model at rest, its layout, which samples go together.

Shapes: G samples, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from extraction.adapters import Coordinates
from extraction.attention import packs
from extraction.batch import Batch
from extraction.logprobs import split_model
from extraction.memory import tokens_that_fit
from extraction.rows import Rows, cost, plan_passes
from extraction.words import Layout
from replay_pools.errors import InputError

Agree = Callable[[int], int]  # from the number that this process needs to the one that all make; int = its own


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How a batch is split."""

    layout: Layout
    budget: int  # tokens of a pass
    num_needed: int
    all_passes: Sequence[tuple[list[int], bool]]  # (samples, whether they count): those needed, then spare ones

    def is_too_long(self, rows: Rows) -> bool:
        """Whether a pass is a single sample beyond the budget."""
        return cost([stop - start for start, stop in rows.segments.spans], self.layout) > self.budget


@contextmanager
def planned(coordinates: Coordinates, batch: Batch, tokens_per_batch: int | None, agree: Agree) -> Iterator[PassPlan]:
    """While open, the model is frozen and in its lean forward; the passes to make of `batch`.

    Args:
        tokens_per_batch: tokens in one pass; None is what fits the machine's memory.
        agree: on a number of passes, among processes that must make equally many; spare ones repeat the first, in vain.

    Raises:
        InputError: `tokens_per_batch` is below 1, or the model cannot be scored (`completion_logprobs`).
    """
    if tokens_per_batch is not None and tokens_per_batch < 1:
        raise InputError("tokens_per_batch", expected="at least 1", found=str(tokens_per_batch))
    backbone, _ = split_model(coordinates.model)
    with frozen(coordinates.model), coordinates.lean_forward():
        layout: Layout = "packed" if packs(backbone) else "padded"
        budget = tokens_that_fit(backbone) if tokens_per_batch is None else tokens_per_batch
        passes = plan_passes(batch.lengths.tolist(), budget, layout)
        spare = agree(len(passes)) - len(passes)
        yield PassPlan(
            layout=layout,
            budget=budget,
            num_needed=len(passes),
            all_passes=[*((samples, True) for samples in passes), *[(passes[0], False)] * spare],
        )


def zeros(backbone: PreTrainedModel, *shape: int) -> Tensor:
    """Where results are added up: on the model's device, in at least float32."""
    return torch.zeros(*shape, dtype=torch.promote_types(backbone.dtype, torch.float32), device=backbone.device)


def completion_numbers(batch: Batch) -> Tensor:
    """(G, T): which completion token of the batch is at a place, counted sample after sample; read on completions."""
    return batch.completion_mask.flatten().cumsum(0).view_as(batch.ids) - 1


@contextmanager
def frozen(model: PeftModel) -> Iterator[None]:
    """Evaluation mode and no trainable parameter inside; every flag restored after."""
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
