"""Per-sample gradients in module coordinates, every sample from ONE forward and backward.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules; N completion tokens of a pass.
Sample i's loss depends on sample i's tokens only, so what passes a module at its tokens is all that its gradient needs:
the reduction over tokens happens inside the backward, module by module, and no parameter ever gets a `.grad`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from extraction.adapters import Coordinates
from extraction.adapters.interface import InputTap, Tap
from extraction.attention import attending
from extraction.batch import Batch
from extraction.logprobs import CHUNK_SIZE, ChosenLogprobs, completion_states, scatter_tokens, split_model
from extraction.memory import checkpointed
from extraction.passes import Agree, completion_numbers, planned, zeros
from extraction.rows import Rows, make_rows
from extraction.words import Layout
from replay_pools.errors import InputError

# Which completion tokens of the batch (n,), the hidden states (n, d) that predict them, and the head -> a term of the
# loss. Sample i's part of it must depend on sample i's states only.
Penalty = Callable[[Tensor, Tensor, nn.Module], Tensor]
Keep = Callable[[Tensor, Tensor], Tensor]  # see OutputTap
Reduced = Callable[[Tensor, Tensor], None]  # what was kept, and the gradient that arrives


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGradients:
    """Gradients of G samples, and how they were computed; float32 (float64 for a float64 model)."""

    gradients: dict[str, Tensor]  # {module: (G, r)} of -sum_t w_it logp_it
    token_logprobs: Tensor  # (G, T), 0 off the completion
    nll: Tensor  # (G,) -sum_t logp_it, unweighted
    token_dots: Tensor | None  # (G, T) <direction, what position t adds to g_i>, float64; None without a direction
    layout: Layout  # `packed`, or `padded` for a model that does not keep packed samples apart
    num_passes: int  # forwards and backwards


def per_sample_gradients(
    coordinates: Coordinates,
    batch: Batch,
    *,
    token_weights: Tensor | None = None,
    penalty: Penalty | None = None,
    tokens_per_batch: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    direction: Mapping[str, Tensor] | None = None,
    agree: Agree = int,
) -> SampleGradients:
    """Gradient of L_i = -sum_t w_it log p(token_it) + penalty_i for every sample i, in the coordinates of every module.

    At delta_S = 0 (B = 0) the adapter is switched off in the forward: the base model runs untouched. The model is
    left as it was found: weights, modes, `requires_grad` and `.grad`.

    Args:
        coordinates: the adapted model.
        batch: on the model's device.
        token_weights: w (G, T), read on completion tokens only; None is 1 there (the summed NLL).
        penalty: a term of the loss that is no function of the log-probabilities of the tokens alone; None is 0.
        tokens_per_batch: tokens in one pass; None is what fits the machine's memory, at most 8192. The
            results depend on it in their rounding alone. A longer sample has a pass of its own in which activations
            are computed again in the backward.
        chunk_size: tokens per block of logits.
        direction: {module: (r,)} of some modules or all; asks for `token_dots`, which add up to <direction, g_i>.
        agree: on a number of passes, among processes that must make equally many; the spare ones add zeros.

    Raises:
        InputError: `token_weights` has another shape than the batch, `tokens_per_batch` is below 1, or the model
            cannot be scored (`completion_logprobs`).
    """
    weights = batch.completion_mask if token_weights is None else token_weights
    if weights.shape != batch.ids.shape:
        shapes = {"expected": str(tuple(batch.ids.shape)), "found": str(tuple(weights.shape))}
        raise InputError("token_weights", **shapes)
    backbone, _ = split_model(coordinates.model)
    gradients = {module: zeros(backbone, len(batch), r) for module, r in coordinates.sizes.items()}
    token_logprobs = zeros(backbone, *batch.ids.shape)
    token_dots = None if direction is None else torch.zeros_like(token_logprobs, dtype=torch.float64)
    along = None if direction is None else {m: v.to(gradients[m]) for m, v in direction.items()}
    numbers = completion_numbers(batch)
    with planned(coordinates, batch, tokens_per_batch, agree) as plan:
        taps = coordinates.taps()
        for samples, counts in plan.all_passes:
            rows = make_rows(batch, plan.layout, samples)
            completion = batch.completion_mask[rows.samples]
            share = Share(along, rows) if along is not None and counts else None
            with (
                attending(backbone, plan.layout),
                checkpointed(backbone, plan.is_too_long(rows)),
                tapped(coordinates, taps, rows, gradients, share),
            ):
                added = partial(penalty, numbers[rows.samples][completion]) if penalty is not None and counts else None
                logprobs = one_pass(coordinates, rows, weights[rows.samples][completion] * counts, chunk_size, added)
            token_logprobs[rows.samples] = scatter_tokens(logprobs, completion)
            if share is not None and token_dots is not None:
                token_dots[rows.samples] = scatter_tokens(share.tokens(), batch.attention_mask[rows.samples])
    return SampleGradients(
        gradients=gradients,
        token_logprobs=token_logprobs,
        nll=-token_logprobs.sum(dim=1),
        token_dots=token_dots,
        layout=plan.layout,
        num_passes=plan.num_needed,
    )


@torch.enable_grad()
def one_pass(
    coordinates: Coordinates,
    rows: Rows,
    weights: Tensor,
    chunk_size: int,
    penalty: Callable[[Tensor, nn.Module], Tensor] | None = None,
) -> Tensor:
    """Forward, and backward of -sum_n w_n logp_n + penalty; returns the log-probabilities (N,)."""
    _, head = split_model(coordinates.model)
    states = completion_states(coordinates.model, rows)
    logprobs = ChosenLogprobs.apply(states, rows.targets, head, chunk_size)
    loss = -(weights.to(logprobs.dtype) * logprobs).sum()
    if penalty is not None:
        loss = loss + penalty(states, head)
    loss.backward()
    return logprobs.detach()


class Share:
    """The tokens of one pass along a direction: sum over modules of <u_m, what position t adds to the gradient>.

    A module's gradient is a sum over positions t of products of what it read at t and of what came back to its output
    there. Through attention the product at t holds the losses of all later tokens that looked back at t.
    """

    def __init__(self, direction: Mapping[str, Tensor], rows: Rows) -> None:
        self._direction, self._membership = direction, rows.segments.membership
        self._dots = torch.zeros(self._membership.shape[1], dtype=torch.float64, device=self._membership.device)

    def add(self, tap: Tap, kept: Tensor, gradient: Tensor, width: int) -> None:
        """What a tap finds in its `width` coordinates."""
        if tap.module in self._direction:
            u = self._direction[tap.module][tap.start : tap.start + width]
            self._dots += tap.along(kept, gradient, u)

    def tokens(self) -> Tensor:
        """(sum of lengths,), sample after sample, padding left out."""
        return self._dots[self._membership.any(0)]


@contextmanager
def tapped(
    coordinates: Coordinates,
    taps: Sequence[Tap],
    rows: Rows,
    gradients: dict[str, Tensor],
    share: Share | None = None,
) -> Iterator[None]:
    """While open, a forward and backward of `rows` adds to `gradients`, {module: (G, r)} of the whole batch.

    A module that the forward uses twice adds up; one that it does not use adds nothing. No parameter asks for a
    gradient: the backward's graph starts where the first tap watches, and nothing below is differentiated.
    """

    def add(tap: Tap, kept: Tensor, gradient: Tensor) -> None:
        kept, gradient = kept.flatten(0, -2), gradient.flatten(0, -2)
        found = tap.reduce(kept, gradient, rows.segments)
        gradients[tap.module][rows.samples, tap.start : tap.start + found.shape[1]] += found
        if share is not None:
            share.add(tap, kept, gradient, found.shape[1])

    handles = []
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


def watch_input(add: Reduced, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Pre-hook: the module reads x through a node of its own, at which dL/dx arrives from this module alone."""
    x, *others = inputs
    return Watch.apply(x.requires_grad_(), x.detach(), add), *others


def watch_output(add: Reduced, keep: Keep, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook: the rest of the model reads y through a node at which dL/dy arrives."""
    with torch.no_grad():
        kept = keep(inputs[0], output)
    return Watch.apply(output.requires_grad_(), kept, add)


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
