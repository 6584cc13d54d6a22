"""Per-sample gradients in module coordinates from ONE forward and backward of the batch.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules; N completion tokens of the batch.
Sample i's loss depends on sample i's tokens only, so row i of (x, dL/dy) of a module is all that its gradient needs:
the reduction over tokens happens inside the backward, module by module, and no parameter ever gets a `.grad`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor, nn

from extraction.adapters import Coordinates
from extraction.batch import Batch
from extraction.logprobs import CHUNK_SIZE, completion_logprobs, scatter_tokens
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGradients:
    """One pass over G samples; float32 (float64 for a float64 model)."""

    gradients: dict[str, Tensor]  # {module: (G, r)} of -sum_t w_it logp_it
    token_logprobs: Tensor  # (G, T), 0 off the completion
    nll: Tensor  # (G,) -sum_t logp_it, unweighted


def per_sample_gradients(
    coordinates: Coordinates,
    batch: Batch,
    *,
    token_weights: Tensor | None = None,
    micro_batch: int | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> SampleGradients:
    """Gradient of L_i = -sum_t w_it log p(token_it) for every sample i, in the coordinates of every module.

    At delta_S = 0 (B = 0) the adapter is switched off in the forward: the base model runs untouched. The model is
    left as it was found: modes, `requires_grad` and `.grad`.

    Args:
        coordinates: the adapted model.
        batch: on the model's device.
        token_weights: w (G, T), read on completion tokens only; None is 1 there (the summed NLL).
        micro_batch: samples per pass where memory is short; the results do not depend on it.
        chunk_size: tokens per block of logits.

    Raises:
        InputError: `token_weights` has another shape than the batch, `micro_batch` is below 1, or the model cannot be
            scored (`completion_logprobs`).
    """
    weights = batch.completion_mask if token_weights is None else token_weights
    if weights.shape != batch.ids.shape:
        shapes = {"expected": str(tuple(batch.ids.shape)), "found": str(tuple(weights.shape))}
        raise InputError("token_weights", **shapes)
    size = len(batch) if micro_batch is None else micro_batch
    if size < 1:
        raise InputError("micro_batch", expected="at least 1", found=str(size))
    parts = []
    with frozen(coordinates.model), ExitStack() as stack:
        if coordinates.is_zero():
            stack.enter_context(coordinates.model.disable_adapter())
        for start in range(0, len(batch), size):
            rows = batch.rows(start, min(start + size, len(batch)))
            row_weights = weights[start : start + size, : rows.ids.shape[1]]
            parts.append(one_pass(coordinates, rows, row_weights, chunk_size))
    logprobs = torch.cat([logprob for _, logprob in parts])  # (N,), sample after sample
    token_logprobs = scatter_tokens(logprobs, batch.completion_mask)
    return SampleGradients(
        gradients={module: torch.cat([gradients[module] for gradients, _ in parts]) for module in coordinates.sizes},
        token_logprobs=token_logprobs,
        nll=-token_logprobs.sum(dim=1),
    )


def one_pass(
    coordinates: Coordinates, batch: Batch, weights: Tensor, chunk_size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One forward and backward: {module: (G, r)} and the completion log-probabilities (N,).

    A module that the forward did not use has gradient 0.
    """
    gradients: dict[str, Tensor] = {}
    with torch.enable_grad(), hooked(coordinates, gradients):
        logprobs = completion_logprobs(
            coordinates.model, batch.ids, batch.attention_mask, batch.completion_mask, chunk_size=chunk_size
        )
        (-(weights[batch.completion_mask].to(logprobs.dtype) * logprobs).sum()).backward()
    for module, size in coordinates.sizes.items():
        if module not in gradients:
            gradients[module] = logprobs.new_zeros(len(batch), size)
    return gradients, logprobs.detach()


@contextmanager
def hooked(coordinates: Coordinates, gradients: dict[str, Tensor]) -> Iterator[None]:
    """While open, a forward and backward of the model adds each module's per-sample gradients into `gradients`."""
    handles = [coordinates.model.get_input_embeddings().register_forward_hook(require_grad)]
    for module, layer in coordinates.layers.items():
        handles.append(layer.register_forward_hook(reduction(coordinates, module, gradients)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def require_grad(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Start the backward's graph at the embeddings: no parameter asks for a gradient."""
    output.requires_grad_()


def reduction(coordinates: Coordinates, module: str, gradients: dict[str, Tensor]) -> Callable[..., None]:
    """A forward hook that holds x until dL/dy arrives, reduces the two to (G, r) and lets x go."""

    def forward_hook(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        held = [inputs[0].detach()]

        def backward_hook(output_gradients: Tensor) -> None:
            found = coordinates.sample_gradients(module, held.pop(), output_gradients)
            gradients[module] = gradients[module] + found if module in gradients else found

        output.register_hook(backward_hook)

    return forward_hook


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
