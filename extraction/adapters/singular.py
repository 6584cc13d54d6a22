"""DeltaSCoordinates: the coordinates delta_S of an adapted model, and their per-sample gradients from one backward.

A gradient needs U^T dL/dy and Vh x. The forward and the backward of W' = U diag(S') Vh, S' = S + delta_S, have almost
computed them (extraction.adapters.svd), so that a module with d_out != d_in needs one frame instead of two:

    d_out > d_in   from x and dL/dx = W'^T dL/dy:   dL/d delta_S = sum_t (Vh x_t) * (Vh dL/dx_t) / S'
    d_out < d_in   from y = W' x and dL/dy:         dL/d delta_S = sum_t (U^T y_t) * (U^T dL/dy_t) / S'
    otherwise      from x and dL/dy:                dL/d delta_S = sum_t (Vh x_t) * (U^T dL/dy_t)

Each line holds triplet by triplet, so it also serves the R largest alone, exactly and at R / r of the cost.
Products of tokens with U and Vh are in the dtype of the model; sums over tokens are in at least float32.

Shapes: G samples, T tokens, r coordinates of a module; U (d_out, r), S (r,), Vh (r, d_in).

`save_as_lora` writes the same change of every weight as peft's LoRA, for programs that know no other adapter:

    W' = W + U diag(delta_S) Vh = W + s B A      B = U diag(delta_S) (d_out, R), A = Vh (R, d_in), s = alpha / R = 1

with R the largest r of all modules: one with fewer is filled up with zeros, since servers know one rank and one scale.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, final

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, TaskType
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from extraction.adapters.delta_s import ADAPTER, DeltaSConfig, DeltaSLayer
from extraction.adapters.interface import Coordinates, Tap, wrap
from extraction.adapters.sharded import whole
from extraction.adapters.svd import MAX_CONDITION, Factors, Truncation, combine, condition, is_randomised
from extraction.adapters.targets import weight_matrix
from extraction.batch import wide_product
from extraction.words import Basis
from replay_pools.storage.tensors import seal


@final
class DeltaSCoordinates(Coordinates):
    """The coordinates of a module are its delta_S (r,): r = min(d_in, d_out), or the rank where that is smaller."""

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
        """One tap per module: a line of the module docstring each."""
        scales = [self.layer(module).S + self.trainable(module)[0] for module in self.layers]
        # All conditions in one .tolist(): the host waits for a GPU once, not once per module.
        divisible = (torch.stack([condition(scale) for scale in scales]) <= MAX_CONDITION).tolist()
        taps = []
        for module, scale, may_divide in zip(self.layers, scales, divisible, strict=True):
            taps.append(self._tap(module, scale, may_divide))
        return taps

    def _tap(self, module: str, scale: Tensor, may_divide: bool) -> Tap:
        """The tap of a module with S' = `scale` (r,), which may be divided by where it is well-conditioned."""
        layer = self.layer(module)
        if may_divide:
            bias = getattr(layer.base_layer, "bias", None)
            return svd_tap(module, Factors(layer.U, scale, layer.Vh), None if bias is None else whole(bias))
        # A frame may be missing here too, where delta_S has moved a singular value of W' near 0: it follows from W and
        # S, which are as well-conditioned as before.
        return direct_tap(module, *layer.frames())

    def truncation(self) -> dict[str, Any] | None:
        """The median and the largest `left_out` and `residual` of the modules, of which some triplets are left out."""
        cuts = [cut for module in self.layers if (cut := self.layer(module).truncation) is not None]
        if not cuts:
            return None
        found: dict[str, Any] = {"modules": len(cuts)}
        for name, values in zip(Truncation._fields, zip(*cuts, strict=True), strict=True):
            found[name] = {"median": median(values), "max": max(values)}
        return found

    def folded(self) -> AbstractContextManager[object]:
        """While open, delta_S is merged into the weights, where every module allows that."""
        for module in self.layers:
            layer = self.layer(module)
            # float16 would round a small delta_S away (bfloat16 does not: `dithered`); of sharded weights no process
            # holds the whole.
            can_hold = layer.weight.dtype in (layer.S.dtype, torch.bfloat16)
            if layer.merged or not can_hold or isinstance(layer.weight, DTensor):
                return nullcontext()
        return merged(self.model)

    def is_zero(self) -> bool:
        """delta_S = 0 everywhere."""
        return not bool(torch.stack([parameter.any() for parameter in self.parameters()]).any())


def svd_tap(module: str, factors: Factors, bias: Tensor | None) -> Tap:
    """The tap of a module with U diag(S) Vh by the line of the module docstring for the frames that there are.

    Args:
        factors: of the weight that the module multiplies with.
        bias: what it adds.
    """
    U, S, Vh = factors
    if U is None:
        assert Vh is not None
        return rotated_tap(module, Vh, S)
    if Vh is None:
        # The identity is about W' x: a bias is no part of it.
        return rotated_tap(module, U.T, S, keep=lambda _x, y: y if bias is None else y - bias)
    return direct_tap(module, U, Vh)


def rotated_tap(
    module: str, frame: Tensor, scale: Tensor, keep: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tap:
    """sum_t (Q a_t) * (Q b_t) / S' with Q = `frame` (r, d), of what is held and what comes back, (T, d) both."""

    def rotated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        Q = frame.to(a.dtype)
        return F.linear(a, Q), F.linear(b, Q)

    return Tap(
        module=module,
        keep=keep,
        reduce=lambda a, b, segments: segments.sums(*rotated(a, b)) / scale,
        along=lambda a, b, u: wide_product(*rotated(a, b)) @ (u / scale),
    )


def direct_tap(module: str, U: Tensor, Vh: Tensor) -> Tap:
    """sum_t (Vh x_t) * (U^T dL/dy_t), of x (T, d_in) and dL/dy (T, d_out)."""

    def direct(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, Vh.to(x.dtype)), gradient @ U.to(gradient.dtype)

    return Tap(
        module=module,
        keep=lambda x, _y: x,
        reduce=lambda x, gradient, segments: segments.sums(*direct(x, gradient)),
        along=lambda x, gradient, u: wide_product(*direct(x, gradient)) @ u,
    )


@contextmanager
def merged(model: PeftModel) -> Iterator[None]:
    """While open, the adapters are merged into the base weights, which come back bit for bit."""
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()


def attach_delta_s(
    model: PreTrainedModel,
    targets: Sequence[str],
    identity: Mapping[str, Any],
    *,
    cache_dir: str | Path | None,
    rank: int | None,
) -> DeltaSCoordinates:
    """Wrap `model` with `delta_S` at 0; arguments as in `extraction.adapters.coordinates.attach`.

    Raises:
        InputError: a rank below 1.
    """
    svd_cache = None if cache_dir is None else str(cache_dir)
    config = DeltaSConfig(task_type=TaskType.CAUSAL_LM, target_modules=list(targets), rank=rank, svd_cache=svd_cache)
    wrapped = wrap(model, config)
    return delta_s_coordinates(wrapped, {name: model.get_submodule(name) for name in targets}, identity)


def delta_s_coordinates(
    model: PeftModel, layers: Mapping[str, nn.Module], identity: Mapping[str, Any]
) -> DeltaSCoordinates:
    """The coordinates of `delta_S` layers that are in `model`; the rank is read off the layers."""
    digests, ranks, shapes = {}, {}, {}
    for name, layer in layers.items():
        digests[name] = str(layer.digest)
        ranks[name] = layer.get_buffer("S").numel()
        shapes[name] = weight_matrix(layer.get_submodule("base_layer"), name).shape
    rank = None if ranks == {name: min(shape) for name, shape in shapes.items()} else max(ranks.values())
    identity = {
        **identity,
        **svd_method(rank, shapes.values()),
        "weights_sha256": combine(digests),
        "targets": list(layers),
        # A basis with all triplets is the full one, whatever rank was asked for.
        "rank": rank,
        "alpha": None,
        "init_seed": None,
    }
    return DeltaSCoordinates(model, layers, identity)


def svd_method(rank: int | None, shapes: Iterable[Sequence[int]]) -> dict[str, str]:
    """What a fingerprint says of how triplets were made: nothing of exact ones."""
    return {"svd": "randomised"} if any(is_randomised(rank, shape) for shape in shapes) else {}


WEIGHTS = "adapter_model.safetensors"  # peft's name


def lora_rank(coordinates: DeltaSCoordinates) -> int:
    """R, the rank of the adapter that `save_as_lora` writes."""
    return max(coordinates.sizes.values())


@torch.no_grad()
def lora_factors(coordinates: DeltaSCoordinates, module: str) -> tuple[Tensor, Tensor]:
    """A (R, d_in) and B (d_out, R) of a module, in the dtype of its weight."""
    layer = coordinates.layer(module)
    U, Vh = layer.frames()
    (delta_S,) = coordinates.trainable(module)
    missing = lora_rank(coordinates) - delta_S.numel()
    dtype = layer.base_weight().dtype
    A = F.pad(Vh, (0, 0, 0, missing))
    # Rounded once: the product is of at least float32.
    B = F.pad(U * delta_S, (0, missing))
    return A.to(dtype), B.to(dtype)


def save_as_lora(coordinates: DeltaSCoordinates, directory: Path) -> None:
    """Write the adapter as a peft directory, whose weights are a checked file (`replay_pools.storage.tensors`)."""
    tensors = {}
    for module in coordinates.layers:
        A, B = lora_factors(coordinates, module)
        tensors[f"base_model.model.{module}.lora_A.weight"] = A.cpu().contiguous()
        tensors[f"base_model.model.{module}.lora_B.weight"] = B.cpu().contiguous()
    rank = lora_rank(coordinates)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=rank,
        target_modules=sorted(coordinates.layers),
        fan_in_fan_out=all(isinstance(coordinates.layer(m).base_layer, Conv1D) for m in coordinates.layers),
        inference_mode=True,
    )
    # peft keeps a set, whose order differs between processes: sorted, the file has the same bytes every time.
    config.target_modules = sorted(coordinates.layers)
    directory.mkdir(parents=True)
    config.save_pretrained(str(directory))
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})  # as peft
    seal(directory / WEIGHTS)
