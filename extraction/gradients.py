"""Per-sample gradients in the coordinates of one basis or several, all samples from ONE forward and backward.

    per_sample_gradients(model, frames, batch).gradients[basis][module][i]
      =  gradient of sample i's loss -sum_t w_it log p(token_it) in the module's coordinates, (r,)

Sample i's loss depends on sample i's tokens only, so its gradient in a module follows from the module's input or output
and the gradient that comes back at these tokens. Hooks (`tapped`) reduce these over tokens inside the backward, module
by module, and no parameter gets a `.grad`.

Shapes: G samples, T tokens, r coordinates of a module; N completion tokens of a pass, d the hidden size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.adapters.coordinates import Frame
from extraction.adapters.frames import Frames
from extraction.batch import Batch, Rows
from extraction.logprobs import completion_logprobs, scatter_tokens, split_model
from extraction.passes import Agree, each_pass, zeros
from extraction.settings import Basis
from extraction.stacks import Stacks, by_value
from replay_pools.base.errors import InputError

Axis = tuple[Basis, Mapping[str, Tensor]]  # a vector over some modules of a basis or all, {module: (r,)}
Keep = Callable[[Tensor, Tensor], Tensor]  # (x, y) -> the tensor to hold until the backward
Receive = Callable[[Tensor, Tensor], None]  # called in the backward with (the held tensor, the gradient that arrives)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGradients:
    """Gradients of G samples; float32 (float64 for a float64 model)."""

    gradients: dict[Basis, Stacks]  # {module: (G, r)} of -sum_t w_it logp_it
    token_logprobs: Tensor  # (G, T), 0 outside of the completion
    token_dots: Tensor | None  # (G, T) <axis, contribution of position t to g_i>, float64; None without an axis


def per_sample_gradients(
    model: PreTrainedModel | PeftModel,
    frames: Mapping[Basis, Frames],
    batch: Batch,
    *,
    token_weights: Tensor | None = None,
    tokens_per_batch: int | None = None,
    axis: Axis | None = None,
    agree: Agree = int,
    share: bool = False,
) -> SampleGradients:
    """Compute the gradient of L_i = -sum_t w_it log p(token_it) for every sample i, in the coordinates of every module.

    Weights, modes, `requires_grad` and `.grad` of the model are the same after the call, even after an error.

    Args:
        model: runs with whatever adapter it has.
        frames: by basis; `Trained.frames()` if an adapter has moved the weights.
        batch: on the model's device.
        token_weights: w (G, T), read on completion tokens only; None is 1 there (the summed NLL).
        tokens_per_batch: most tokens in one pass, which changes the rounding only; None: what fits the memory, at most
            8192. A longer sample is alone in its pass, with activation checkpointing.
        axis: asks for `token_dots`, which add up to <axis, g_i>.
        agree: see `extraction.passes.each_pass`; spare passes have weight 0.
        share: run a prompt once for all of its samples. Their gradients may then come as one sum, in the row of one
            sample, with 0 in the others. Not with an axis.

    Raises:
        InputError: the model cannot be scored (`completion_logprobs`); a module is called with other tokens, or is
            never called, because a kernel reads its weight or no token is routed to it.
    """
    weights = batch.completion_mask if token_weights is None else token_weights
    backbone, _ = split_model(model)
    gradients: dict[Basis, Stacks] = {}
    for basis, read in frames.items():
        stacks = {names: zeros(backbone, len(names), len(batch), r) for r, names in by_value(read.sizes).items()}
        gradients[basis] = Stacks(stacks, list(read))
    token_logprobs = zeros(backbone, *batch.ids.shape)
    token_dots = None if axis is None else torch.zeros_like(token_logprobs, dtype=torch.float64)
    if axis is not None:
        axis = axis[0], {module: u.to(gradients[axis[0]][module]) for module, u in axis[1].items()}
    assert not (share and axis)
    called: set[str] = set()

    def run(rows: Rows, is_needed: bool) -> None:
        completion, membership = batch.completion_mask[rows.samples], rows.segments.membership
        dots = torch.zeros(membership.shape[1], dtype=torch.float64, device=membership.device)
        # A spare pass runs forward and backward as any other, but with weights 0 adds nothing to the gradients.
        pass_weights = weights[rows.samples][completion] * is_needed
        with tapped(frames, rows, gradients, axis if is_needed else None, dots, called), torch.enable_grad():
            logprobs = completion_logprobs(model, rows)
            (-(pass_weights.to(logprobs.dtype) * logprobs).sum()).backward()
        token_logprobs[rows.samples] = scatter_tokens(logprobs.detach(), completion)
        if token_dots is not None and is_needed:
            # Sample after sample, padding left out.
            token_dots[rows.samples] = scatter_tokens(dots[membership.any(0)], batch.attention_mask[rows.samples])

    each_pass(model, batch, run, tokens_per_batch=tokens_per_batch, agree=agree, share=share, frames=frames.values())
    modules = dict.fromkeys(module for read in frames.values() for module in read)
    if uncalled := [module for module in modules if module not in called]:
        raise InputError(
            f"module {uncalled[0]}",
            expected="a call of every module in the forward",
            found=f"none of {len(uncalled)} of {len(modules)} modules: a kernel goes round them, or no token is routed "
            "to them",
            fix="leave them out of model.targets, or load the model without the kernel",
        )
    return SampleGradients(gradients=gradients, token_logprobs=token_logprobs, token_dots=token_dots)


@contextmanager
def tapped(
    frames: Mapping[Basis, Frames],
    rows: Rows,
    gradients: Mapping[Basis, Mapping[str, Tensor]],
    axis: Axis | None,
    dots: Tensor,
    called: set[str],
) -> Iterator[None]:
    """While open, a forward and backward of `rows` adds to `gradients`, {basis: {module: (G, r)}} of the whole batch.

    Modules that a gradient reaches are added to `called`. To `dots` (R W,) is added each token's contribution along the
    axis: sum_m <u_m, product of m's input at t and the gradient of m's output at t>. Through attention, the product at
    t holds the losses of all later tokens that looked back at t.

    No parameter requires a gradient: the backward's graph starts at the first tap.
    """

    def add(basis: Basis, module: str, frame: Frame, kept: Tensor, gradient: Tensor) -> None:
        kept, gradient = kept.flatten(0, -2), gradient.flatten(0, -2)
        if len(kept) != (num_tokens := rows.segments.membership.shape[1]):
            where, expected = f"module {module}", f"{num_tokens} tokens, as many as the pass has"
            raise InputError(where, expected=expected, found=str(len(kept)), fix="leave it out of model.targets")
        called.add(module)
        # A module that the forward uses twice arrives here twice.
        gradients[basis][module][rows.firsts] += frame.sums(kept, gradient, rows.segments)
        if axis is not None and axis[0] == basis and module in axis[1]:
            dots.add_(frame.along(kept, gradient, axis[1][module]))

    with ExitStack() as hooks:
        for basis, read in frames.items():
            for module, frame in read.items():
                layer, receive = read.layers[module], partial(add, basis, module, frame)
                if frame.reads_input:
                    hook = layer.register_forward_pre_hook(partial(watch_input, receive))
                else:
                    # First: a hook of the user's (steering) may change the output.
                    hook = layer.register_forward_hook(partial(watch_output, receive, frame.keep), prepend=True)
                hooks.enter_context(hook)
        yield


def watch_input(receive: Receive, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Pre-hook: the module reads x through a new node, at which dL/dx arrives from this module alone."""
    x, *rest = inputs
    # Without an effect but at the first tap: nothing below it requires a gradient, everything above it does.
    return Watch.apply(x.requires_grad_(), x.detach(), receive), *rest


def watch_output(receive: Receive, keep: Keep, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook: the rest of the model reads y through a node at which dL/dy arrives."""
    with torch.no_grad():
        kept = keep(inputs[0], output)
        # Some models add to the output in place (Falcon).
        kept = kept.clone() if kept is output else kept
    return Watch.apply(output.requires_grad_(), kept, receive)


class Watch(torch.autograd.Function):
    """The identity; its backward calls `receive(kept, gradient)` with the gradient that arrives.

    `kept` is a saved tensor of autograd: freed after use, recomputed under activation checkpointing, and an error when
    the model changes it in place.

    Raises in the backward:
        InputError: `create_graph=True`, since a second derivative reaches the weight by other ways.
    """

    @staticmethod
    def forward(ctx: Any, watched: Tensor, kept: Tensor, receive: Receive) -> Tensor:
        """Return the same memory, but no view: autograd lets no model change a view from here in place."""
        ctx.save_for_backward(kept)
        ctx.receive = receive
        return watched.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient unchanged, after `receive` has seen it."""
        (gradient,) = grad_outputs
        if torch.is_grad_enabled():
            fix = "call backward without create_graph; detach the probe for a gradient penalty"
            raise InputError("backward", expected="first derivatives alone", found="create_graph=True", fix=fix)
        (kept,) = ctx.saved_tensors
        ctx.receive(kept, gradient)
        return gradient, None, None
