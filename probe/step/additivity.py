"""Additivity checks: per-sample gradients must add up to the batch gradient of ordinary autograd.

    every step   sum_i g_i = g        of ONE module (another one every step), from the x and dL/dy of the pass that gave
                                      the g_i, by autograd of that module's adapter alone: no model call
    first step   sum_i a_i g_i = g    of all modules, with uneven sample weights a_i, by a pass of its own over the
                                      batch: also sees a token that was credited to the wrong sample

G samples, T tokens, r coordinates of a module.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from extraction.adapters.interface import Coordinates
from extraction.batch import Batch
from extraction.logprobs import completion_logprobs
from extraction.rows import make_rows

# |sum - batch| / |batch| that rounding alone explains, by the dtype of the model.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2}
ROUNDED = 5e-3  # bfloat16 factors cost 2.3e-3 |delta_S / S| (extraction.adapters.singular; measured on the organism)


@contextmanager
def tapped(layer: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While open, every forward and backward through `layer` appends its (x, dL/dy)."""
    passes: list[tuple[Tensor, Tensor]] = []

    def forward_hook(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            x = inputs[0].detach()
            output.requires_grad_().register_hook(lambda gradient: passes.append((x, gradient.detach())))

    handle = layer.register_forward_hook(forward_hook)
    try:
        yield passes
    finally:
        handle.remove()


def module_error(
    coordinates: Coordinates, module: str, held: Sequence[tuple[Tensor, Tensor]], gradients: Tensor
) -> float:
    """|sum_i g_i - g| / |g| of one module, g by autograd of its adapter at the (x, dL/dy) of `tapped`.

    Args:
        gradients: (G, r), of the pass that `held` comes from.
    """
    parameters = coordinates.trainable(module)
    batch = torch.zeros_like(gradients[0])
    with torch.enable_grad():
        for x, output_gradient in held:
            y = coordinates.layers[module](x)
            parts = torch.autograd.grad(y, parameters, output_gradient.to(y.dtype))
            batch += torch.cat([part.flatten() for part in parts])
    return _relative([gradients.sum(0)], [batch])


def batch_error(coordinates: Coordinates, batch: Batch, token_weights: Tensor, total: Mapping[str, Tensor]) -> float:
    """|total - g| / |g| over all modules, g by autograd of -sum_it a_it logp_it over the batch.

    Args:
        token_weights: a (G, T), what every completion token's log-probability was weighted with.
        total: {module: (r,)}, the weighted sum of the per-sample gradients.
    """
    modules: list[tuple[str, nn.Parameter]] = []
    for module in coordinates.sizes:
        modules += [(module, parameter) for parameter in coordinates.trainable(module)]
    with torch.enable_grad():
        logprobs = completion_logprobs(coordinates.model, make_rows(batch, "padded"))
        loss = -(token_weights[batch.completion_mask].to(logprobs) * logprobs).sum()
        parameters = [parameter for _, parameter in modules]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    parts: dict[str, list[Tensor]] = {module: [] for module in coordinates.sizes}
    for (module, _), gradient in zip(modules, gradients, strict=True):
        parts[module].append(gradient.flatten())
    return _relative([total[module] for module in parts], [torch.cat(flat) for flat in parts.values()])


def summarise_additivity(
    errors: Sequence[tuple[int, float | None]], dtype: torch.dtype, *, rounded: bool = False
) -> dict[str, Any]:
    """Entry of the manifest: the tolerance of the dtype, the largest error, and the steps beyond the tolerance.

    Args:
        errors: (step, error) of every record.
        rounded: the factors of a basis are held in bfloat16.
    """
    known = [(step, error) for step, error in errors if error is not None]
    tolerance = max(TOLERANCES[dtype], ROUNDED if rounded else 0.0)
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
