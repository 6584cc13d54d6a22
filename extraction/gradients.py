"""Per-sample gradients in module coordinates, every sample from ONE forward and backward.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules; N completion tokens of a pass.
Sample i's loss depends on sample i's tokens only, so what passes a module at its tokens is all that its gradient needs:
the reduction over tokens happens inside the backward, module by module, and no parameter ever gets a `.grad`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from extraction.adapters import Coordinates
from extraction.adapters.interface import InputTap, Tap
from extraction.attention import attending, packs
from extraction.batch import Batch
from extraction.logprobs import CHUNK_SIZE, completion_logprobs, scatter_tokens, split_model
from extraction.memory import checkpointed, tokens_that_fit
from extraction.rows import Rows, cost, make_rows, plan_passes
from extraction.vocabulary import Layout
from replay_pools.errors import InputError

Keep = Callable[[Tensor, Tensor], Tensor]  # see OutputTap
Agree = Callable[[int], int]  # from the number that this process needs to the one that all make; int = its own
Reduced = Callable[[Tensor, Tensor], None]  # what was kept, and the gradient that arrives


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGradients:
    """Gradients of G samples, and how they were computed; float32 (float64 for a float64 model)."""

    gradients: dict[str, Tensor]  # {module: (G, r)} of -sum_t w_it logp_it
    token_logprobs: Tensor  # (G, T), 0 off the completion
    nll: Tensor  # (G,) -sum_t logp_it, unweighted
    layout: Layout  # `packed`, or `padded` for a model that does not keep packed samples apart
    num_passes: int  # forwards and backwards


def per_sample_gradients(
    coordinates: Coordinates,
    batch: Batch,
    *,
    token_weights: Tensor | None = None,
    tokens_per_batch: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    agree: Agree = int,
) -> SampleGradients:
    """Gradient of L_i = -sum_t w_it log p(token_it) for every sample i, in the coordinates of every module.

    At delta_S = 0 (B = 0) the adapter is switched off in the forward: the base model runs untouched. The model is
    left as it was found: weights, modes, `requires_grad` and `.grad`.

    Args:
        coordinates: the adapted model.
        batch: on the model's device.
        token_weights: w (G, T), read on completion tokens only; None is 1 there (the summed NLL).
        tokens_per_batch: tokens in one pass; None is what fits the machine's memory, at most 8192. The
            results depend on it in their rounding alone. A longer sample has a pass of its own in which activations
            are computed again in the backward.
        chunk_size: tokens per block of logits.
        agree: on a number of passes, among processes that must make equally many; the spare ones add zeros.

    Raises:
        InputError: `token_weights` has another shape than the batch, `tokens_per_batch` is below 1, or the model
            cannot be scored (`completion_logprobs`).
    """
    weights = batch.completion_mask if token_weights is None else token_weights
    if weights.shape != batch.ids.shape:
        shapes = {"expected": str(tuple(batch.ids.shape)), "found": str(tuple(weights.shape))}
        raise InputError("token_weights", **shapes)
    if tokens_per_batch is not None and tokens_per_batch < 1:
        raise InputError("tokens_per_batch", expected="at least 1", found=str(tokens_per_batch))
    backbone, _ = split_model(coordinates.model)
    wide = {"dtype": torch.promote_types(backbone.dtype, torch.float32), "device": backbone.device}
    gradients = {module: torch.zeros(len(batch), r, **wide) for module, r in coordinates.sizes.items()}
    token_logprobs = torch.zeros(batch.ids.shape, **wide)
    lengths = batch.lengths.tolist()
    with frozen(coordinates.model), coordinates.lean_forward():
        layout: Layout = "packed" if packs(backbone) else "padded"
        budget = tokens_that_fit(backbone) if tokens_per_batch is None else tokens_per_batch
        passes = plan_passes(lengths, budget, layout)
        taps = coordinates.taps()
        for samples, counts in agreed(passes, agree):
            rows = make_rows(batch, layout, samples)
            completion = batch.completion_mask[rows.samples]
            too_long = cost([lengths[i] for i in samples], layout) > budget
            with (
                attending(backbone, layout),
                checkpointed(backbone, too_long),
                tapped(coordinates, taps, rows, gradients),
            ):
                logprobs = one_pass(coordinates, rows, weights[rows.samples][completion] * counts, chunk_size)
            token_logprobs[rows.samples] = scatter_tokens(logprobs, completion)
    return SampleGradients(
        gradients=gradients,
        token_logprobs=token_logprobs,
        nll=-token_logprobs.sum(dim=1),
        layout=layout,
        num_passes=len(passes),
    )


@torch.no_grad()
def score(coordinates: Coordinates, batch: Batch, *, tokens_per_batch: int | None = None, agree: Agree = int) -> Tensor:
    """log p of every completion token, (G, T), 0 off the completion: forward passes alone, split as the gradients are.

    Arguments and errors as `per_sample_gradients`.
    """
    backbone, _ = split_model(coordinates.model)
    wide = {"dtype": torch.promote_types(backbone.dtype, torch.float32), "device": backbone.device}
    token_logprobs = torch.zeros(batch.ids.shape, **wide)
    with frozen(coordinates.model), coordinates.lean_forward():
        layout: Layout = "packed" if packs(backbone) else "padded"
        budget = tokens_that_fit(backbone) if tokens_per_batch is None else tokens_per_batch
        passes = plan_passes(batch.lengths.tolist(), budget, layout)
        for samples, _ in agreed(passes, agree):
            rows = make_rows(batch, layout, samples)
            with attending(backbone, layout):
                logprobs = completion_logprobs(coordinates.model, rows)
            token_logprobs[rows.samples] = scatter_tokens(logprobs, batch.completion_mask[rows.samples])
    return token_logprobs


def agreed(passes: list[list[int]], agree: Agree) -> list[tuple[list[int], bool]]:
    """(samples, whether they count) of every pass to make: those that are needed, then the first one again, in vain."""
    spare = agree(len(passes)) - len(passes)
    return [*((samples, True) for samples in passes), *[(passes[0], False)] * spare]


@torch.enable_grad()
def one_pass(coordinates: Coordinates, rows: Rows, weights: Tensor, chunk_size: int) -> Tensor:
    """Forward, and backward of -sum_n w_n logp_n; returns the log-probabilities (N,)."""
    logprobs = completion_logprobs(coordinates.model, rows, chunk_size=chunk_size)
    (-(weights.to(logprobs.dtype) * logprobs).sum()).backward()
    return logprobs.detach()


@contextmanager
def tapped(coordinates: Coordinates, taps: Sequence[Tap], rows: Rows, gradients: dict[str, Tensor]) -> Iterator[None]:
    """While open, a forward and backward of `rows` adds to `gradients`, {module: (G, r)} of the whole batch.

    A module that the forward uses twice adds up; one that it does not use adds nothing.
    """

    def add(tap: Tap, kept: Tensor, gradient: Tensor) -> None:
        found = tap.reduce(kept.flatten(0, -2), gradient.flatten(0, -2), rows.segments)
        gradients[tap.module][rows.samples, tap.start : tap.start + found.shape[1]] += found

    handles = [coordinates.model.get_input_embeddings().register_forward_hook(require_grad)]
    for tap in taps:
        layer, reduced = coordinates.layers[tap.module], partial(add, tap)
        if isinstance(tap, InputTap):
            handles.append(layer.register_forward_pre_hook(partial(watch_input, reduced)))
        else:
            handles.append(layer.register_forward_hook(partial(watch_output, reduced, tap.keep)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def require_grad(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Start the backward's graph at the embeddings: no parameter asks for a gradient."""
    output.requires_grad_()


def watch_input(add: Reduced, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Pre-hook: the module reads x through a node of its own, at which dL/dx arrives from this module alone."""
    x, *others = inputs
    return Watch.apply(x, x.detach(), add), *others


def watch_output(add: Reduced, keep: Keep, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook: the rest of the model reads y through a node at which dL/dy arrives."""
    with torch.no_grad():
        kept = keep(inputs[0], output)
    return Watch.apply(output, kept, add)


class Watch(torch.autograd.Function):
    """The identity. Its backward hands what was kept, and the gradient that arrives, to `add`.

    What is kept is a saved tensor of autograd: freed after use, computed again under activation checkpointing, and an
    error when the model changes it in place.
    """

    @staticmethod
    def forward(ctx: Any, watched: Tensor, kept: Tensor, add: Reduced) -> Tensor:
        """`watched` itself."""
        ctx.save_for_backward(kept)
        ctx.add = add
        return watched.view_as(watched)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator hides the names)
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradient itself."""
        (gradient,) = grad_outputs
        ctx.add(*ctx.saved_tensors, gradient)
        return gradient, None, None


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
