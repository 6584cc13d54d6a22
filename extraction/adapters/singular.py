"""The coordinates delta_S of an adapted model, and how their per-sample gradients come out of one backward.

Needed are U^T dL/dy and Vh x. The forward and the backward of W' = U diag(S') Vh, S' = S + delta_S, have almost
computed them (extraction.adapters.svd):

    d_out > d_in   from x and dL/dx = W'^T dL/dy:   dL/d delta_S = sum_t (Vh x_t) * (Vh dL/dx_t) / S'
    d_out < d_in   from y = W' x and dL/dy:         dL/d delta_S = sum_t (U^T y_t) * (U^T dL/dy_t) / S'
    otherwise      from x and dL/dy:                dL/d delta_S = sum_t (Vh x_t) * (U^T dL/dy_t)

Tokens meet U and Vh in the dtype of the model; the products are added in at least float32.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules; U (d_out, r), S (r,), Vh (r, d_in).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from peft import PeftModel, TaskType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from extraction.adapters.delta_s import ADAPTER, DeltaSConfig, DeltaSLayer
from extraction.adapters.interface import Basis, Coordinates, InputTap, OutputTap, Tap, wrap
from extraction.adapters.svd import MAX_CONDITION, combine, condition
from extraction.rows import Segments


@final
class DeltaSCoordinates(Coordinates):
    """The coordinates of a module are its delta_S, r = min(d_in, d_out)."""

    basis: Basis = "svd"

    def layer(self, module: str) -> DeltaSLayer:
        """The adapter layer of a module, typed."""
        layer = self.layers[module]
        assert isinstance(layer, DeltaSLayer)
        return layer

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """(delta_S,)."""
        return (self.layer(module).delta_S[ADAPTER],)

    @torch.no_grad()
    def taps(self) -> list[Tap]:
        """One a module. All conditions are read in one go: a GPU waits for the host once, not once a module."""
        scales = [self.layer(module).S + self.trainable(module)[0] for module in self.layers]
        fine = (torch.stack([condition(scale) for scale in scales]) <= MAX_CONDITION).tolist()
        return [self._tap(*found) for found in zip(self.layers, scales, fine, strict=True)]

    def _tap(self, module: str, scale: Tensor, fine: bool) -> Tap:
        layer = self.layer(module)
        if fine and layer.U is None and layer.Vh is not None:
            return InputTap(module=module, reduce=partial(reduce_rotated, frame=layer.Vh, scale=scale))
        if fine and layer.Vh is None and layer.U is not None:
            bias = getattr(layer.base_layer, "bias", None)
            return OutputTap(
                module=module,
                keep=lambda _x, y: y if bias is None else y - bias,
                reduce=partial(reduce_rotated, frame=layer.U.T, scale=scale),
            )
        U, Vh = layer.frames()
        return OutputTap(module=module, keep=lambda x, _y: x, reduce=partial(reduce_direct, U=U, Vh=Vh))

    def folded(self) -> AbstractContextManager[object]:
        """delta_S merged into the weights, unless rounding to their dtype would lose it, or it is there already, or no
        process holds them whole.
        """
        layers = [self.layer(module) for module in self.layers]
        exact = all(layer.weight.dtype == layer.S.dtype and not isinstance(layer.weight, DTensor) for layer in layers)
        return merged(self.model) if exact and not any(layer.merged for layer in layers) else nullcontext()

    def is_zero(self) -> bool:
        """delta_S = 0 everywhere."""
        return not bool(torch.stack([parameter.any() for parameter in self.parameters()]).any())


def reduce_rotated(a: Tensor, b: Tensor, segments: Segments, *, frame: Tensor, scale: Tensor) -> Tensor:
    """sum_t (Q a_t) * (Q b_t) / S' of every sample, with Q = `frame` (r, d): (T, d), (T, d) -> (G, r)."""
    frame = frame.to(a.dtype)
    return sum_products(F.linear(a, frame), F.linear(b, frame), segments) / scale


def reduce_direct(x: Tensor, gradient: Tensor, segments: Segments, *, U: Tensor, Vh: Tensor) -> Tensor:
    """sum_t (Vh x_t) * (U^T dL/dy_t) of every sample: (T, d_in), (T, d_out) -> (G, r)."""
    return sum_products(F.linear(x, Vh.to(x.dtype)), gradient @ U.to(gradient.dtype), segments)


def sum_products(a: Tensor, b: Tensor, segments: Segments) -> Tensor:
    """sum_t a_t * b_t of every sample in at least float32: (T, r), (T, r) -> (G, r)."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return segments.sums(a.to(wide) * b.to(wide))


@contextmanager
def merged(model: PeftModel) -> Iterator[None]:
    """While open, the adapters are in the base weights, which come back bit for bit."""
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()


def attach_delta_s(
    model: PreTrainedModel, targets: Sequence[str], identity: Mapping[str, Any], *, cache_dir: Path | None
) -> DeltaSCoordinates:
    """Wrap `model` with `delta_S` at 0; `cache_dir` None computes every SVD anew."""
    svd_cache = None if cache_dir is None else str(cache_dir)
    config = DeltaSConfig(task_type=TaskType.CAUSAL_LM, target_modules=list(targets), svd_cache=svd_cache)
    wrapped = wrap(model, config)
    layers = {name: model.get_submodule(name) for name in targets}
    digests = {name: str(layer.digest) for name, layer in layers.items()}
    options = {"targets": list(targets), "rank": None, "alpha": None, "init_seed": None}
    return DeltaSCoordinates(wrapped, layers, {**identity, "weights_sha256": combine(digests), **options})
