"""Additivity checks: per-sample gradients must add up to the batch gradient of ordinary autograd.

    every step   sum_i g_i = g        of ONE module (another one every step), from the x and dL/dy of the pass that gave
                                      the g_i: the coordinates of dL/dW = sum_t dL/dy_t x_t^T, no model call
    first step   sum_i a_i g_i = g    of all modules, with uneven sample weights a_i, by separate passes over the
                                      batch: also sees a token that was credited to the wrong sample

G samples, T tokens, r coordinates of a module.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.adapters.coordinates import Frame
from extraction.adapters.frames import Frames
from extraction.batch import Batch, make_rows
from extraction.gradients import watch_output
from extraction.logprobs import completion_logprobs, frozen, split_model
from extraction.passes import Agree, checkpointed, make_plan, tokens_that_fit

# |sum - batch| / |batch| that rounding alone explains, by the dtype of the model.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2}


@contextmanager
def tapped(layer: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While open, every forward and backward through `layer` appends its (x, dL/dy)."""
    passes: list[tuple[Tensor, Tensor]] = []
    receive = lambda x, gradient: passes.append((x.detach(), gradient))  # noqa: E731
    with layer.register_forward_hook(partial(watch_output, receive, lambda x, _y: x), prepend=True):
        yield passes


@torch.no_grad()
def module_error(frame: Frame, held: Sequence[tuple[Tensor, Tensor]], gradients: Tensor) -> float:
    """|sum_i g_i - g| / |g| of one module, g the coordinates of dL/dW at the (x, dL/dy) of `tapped`.

    Args:
        gradients: (G, r), of the pass that `held` comes from.
    """
    batch = torch.zeros_like(gradients[0])
    for x, output_gradient in held:
        batch += frame.coordinates(output_gradient.flatten(0, -2).T, x.flatten(0, -2))
    return _relative([gradients.sum(0)], [batch])


def batch_error(
    model: PreTrainedModel | PeftModel,
    frames: Frames,
    batch: Batch,
    token_weights: Tensor,
    total: Mapping[str, Tensor],
    *,
    tokens_per_batch: int | None = None,
    agree: Agree = int,
) -> float:
    """|total - g| / |g| over all modules, g by autograd of -sum_it a_it logp_it over the batch.

    Autograd differentiates in v at v = 0, where every module adds the product of the matrix of v with its input to its
    output. It keeps several times what the engine keeps of a token. Hence passes of the engine's budget, in which only
    one block at a time holds its activations: the check needs no more memory than the pass that it checks.

    Args:
        frames: of the model, at its current weights.
        token_weights: a (G, T), what every completion token's log-probability was weighted with.
        total: {module: (r,)}, the weighted sum of the per-sample gradients.
        tokens_per_batch, agree: as `extraction.passes.each_pass`.
    """
    backbone, _ = split_model(model)
    start = {module: torch.zeros_like(gradient, requires_grad=True) for module, gradient in total.items()}
    sums = [torch.zeros_like(v) for v in start.values()]
    budget = tokens_that_fit(backbone, [frames]) if tokens_per_batch is None else tokens_per_batch
    with frozen(model), _added(frames, start):
        for samples, is_needed in make_plan(backbone, batch, "padded", budget, agree):
            rows = make_rows(batch, "padded", samples)
            weights = token_weights[rows.samples][batch.completion_mask[rows.samples]] * is_needed
            with torch.enable_grad(), checkpointed(backbone, True):
                logprobs = completion_logprobs(model, rows)
                loss = -(weights.to(logprobs) * logprobs).sum()
                gradients = torch.autograd.grad(loss, [*start.values()], allow_unused=True, materialize_grads=True)
            for accumulated, gradient in zip(sums, gradients, strict=True):
                accumulated += gradient
    return _relative([*total.values()], sums)


@contextmanager
def _added(frames: Frames, vectors: Mapping[str, Tensor]) -> Iterator[None]:
    """While open, every module adds the product of the matrix of its vector (r,) with its input to its output."""

    def hook(module: str, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        left, right = frames[module].factors(vectors[module])
        return output + F.linear(F.linear(inputs[0].to(right.dtype), right), left).to(output.dtype)

    with ExitStack() as hooks:
        for module in frames:
            hooks.enter_context(frames.layers[module].register_forward_hook(partial(hook, module), prepend=True))
        yield


def summarise_additivity(errors: Sequence[tuple[int, float | None]], dtype: torch.dtype) -> dict[str, Any]:
    """Entry of the manifest: the tolerance of the dtype, the largest error, and the steps beyond the tolerance.

    Args:
        errors: (step, error) of every record.
    """
    known = [(step, error) for step, error in errors if error is not None]
    tolerance = TOLERANCES[dtype]
    return {
        "tolerance": tolerance,
        "largest": max((error for _, error in known), default=None),
        # `not <=` rather than `>`: an error that is NaN counts as beyond.
        "exceeded_steps": sorted({step for step, error in known if not error <= tolerance}),
    }


def _relative(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|actual - expected| / |expected| over all tensors; 0 where `expected` is 0."""
    difference = sum(float((a - e).double().square().sum()) for a, e in zip(actual, expected, strict=True))
    size = sum(float(e.double().square().sum()) for e in expected)
    return math.sqrt(difference / size) if size else 0.0
