"""LoraCoordinates: peft's LoRA, y = W x + B A x (alpha is the rank), as flat coordinates of every module.

    dL/dB = sum_t dL/dy_t (A x_t)^T

Shapes: G samples, T tokens, A (rank, d_in), B (d_out, rank). Coordinates are B flattened row by row, r = rank d_out.

At the start B = 0, so the adapted model is the base model. A has orthonormal rows drawn from a seed: dL/dB is the
weight gradient read in an orthonormal frame, dL/dW A^T. A stays frozen, since a frame that turns would turn the meaning
of directions. With `train_a=True`, for training alone, it is trained too: coordinates are [A; B], and there are no
per-sample gradients.
Hu et al. 2021, arXiv 2106.09685.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, TaskType
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from extraction.adapters.interface import Coordinates, Tap, wrap
from extraction.adapters.sharded import whole
from extraction.adapters.svd import combine, digest
from extraction.adapters.targets import weight_matrix
from extraction.batch import Segments
from extraction.words import Basis
from replay_pools.errors import InputError

ADAPTER = "default"
DEFAULT_RANK = 32


def attach_lora(
    model: PreTrainedModel,
    targets: Sequence[str],
    identity: Mapping[str, Any],
    *,
    rank: int,
    seed: int,
    train_a: bool,
) -> "LoraCoordinates":
    """Wrap `model` with LoRA: no dropout, no bias, A orthonormal from `seed`, B = 0.

    Arguments as in `extraction.adapters.coordinates.attach`; `targets` are dotted paths.

    Raises:
        InputError: `rank` is not in 1..d_in of some target (the rows of A could not be orthonormal).
    """
    modules = {name: model.get_submodule(name) for name in targets}
    weights = {name: weight_matrix(module, name) for name, module in modules.items()}
    for name, weight in weights.items():
        d_in = weight.shape[1]
        if not 1 <= rank <= d_in:
            raise InputError(f"module {name}", expected=f"a LoRA rank in 1..{d_in}", found=str(rank))
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=rank,  # peft scales by alpha / rank
        lora_dropout=0.0,
        target_modules=list(targets),
        fan_in_fan_out=all(isinstance(module, Conv1D) for module in modules.values()),
    )
    wrapped = wrap(model, config)
    # peft has put its LoRA layers where the target modules were.
    layers = {name: model.get_submodule(name) for name in targets}
    drawn = orthonormal_frames([(rank, weight.shape[1]) for weight in weights.values()], seed)
    for layer, frame in zip(layers.values(), drawn, strict=True):
        assert isinstance(layer, LoraLayer)
        lora_factors(layer)[0].data.copy_(frame)
        if not train_a:
            # Registered with peft, not only requires_grad = False: peft turns gradients on again in set_adapter.
            layer.frozen_peft_weight_names = {ADAPTER: ("lora_A",)}
            layer._freeze_non_trainable_peft_weights(ADAPTER)
    return lora_coordinates(wrapped, layers, identity, seed=seed)


def lora_coordinates(
    model: PeftModel, layers: Mapping[str, nn.Module], identity: Mapping[str, Any], *, seed: int
) -> "LoraCoordinates":
    """The coordinates of LoRA layers of equal options in `model`, whose A came from `seed`."""
    weights = {name: weight_matrix(layer.get_submodule("base_layer"), name) for name, layer in layers.items()}
    first = next(iter(layers.values()))
    assert isinstance(first, LoraLayer)
    A, _ = lora_factors(first)
    identity = {
        **identity,
        "weights_sha256": combine({name: digest(whole(weight)) for name, weight in weights.items()}),
        "targets": list(layers),
        "init_seed": seed,
        "rank": len(A),
        "alpha": float(len(A)),
        "train_a": A.requires_grad,
    }
    return LoraCoordinates(model, layers, identity)


def orthonormal_frames(shapes: Iterable[tuple[int, int]], seed: int) -> Iterator[Tensor]:
    """The A that `seed` gives each module, in order of their (rank, d_in): orthonormal rows, float64.

    All modules draw from one generator, so that the A of a module depends on the modules before it.
    """
    generator = torch.Generator().manual_seed(seed)
    for rank, d_in in shapes:
        frame, _ = torch.linalg.qr(torch.randn(d_in, rank, dtype=torch.float64, generator=generator))
        yield frame.T


def lora_factors(layer: LoraLayer, adapter: str = ADAPTER) -> tuple[nn.Parameter, nn.Parameter]:
    """A (rank, d_in) and B (d_out, rank) of a LoRA layer."""
    A, B = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    assert isinstance(A, nn.Parameter)
    assert isinstance(B, nn.Parameter)
    return A, B


@final
class LoraCoordinates(Coordinates):
    """The coordinates of a module are [A; B] flattened, or B alone where A is frozen."""

    basis: Basis = "lora"

    def factors(self, module: str) -> tuple[nn.Parameter, nn.Parameter]:
        """A and B of a module."""
        layer = self.layers[module]
        assert isinstance(layer, LoraLayer)
        return lora_factors(layer)

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """(A, B), or (B,) where A is frozen."""
        A, B = self.factors(module)
        return (A, B) if self._identity["train_a"] else (B,)

    def taps(self) -> list[Tap]:
        """One tap per module, of B; gradients of A are none of the coordinates of directions."""
        assert not self._identity["train_a"], "per-sample gradients are those of B: attach with train_a=False"
        taps = []
        for module in self.layers:
            A, B = self.factors(module)
            taps.append(outer_tap(module, A, B.dtype))
        return taps

    def is_zero(self) -> bool:
        """B = 0 everywhere, whatever A is."""
        return not bool(torch.stack([self.factors(module)[1].any() for module in self.layers]).any())


def outer_tap(module: str, A: Tensor, dtype: torch.dtype) -> Tap:
    """sum_t dL/dy_t (A x_t)^T, added in `dtype`: what is held is A x (T, rank)."""

    def reduce(rotated: Tensor, gradient: Tensor, segments: Segments) -> Tensor:
        samples = zip(segments.split(gradient), segments.split(rotated), strict=True)
        return torch.stack([g.mT.to(dtype) @ z.to(dtype) for g, z in samples]).flatten(1)

    def along(rotated: Tensor, gradient: Tensor, u: Tensor) -> Tensor:
        # <u, g z^T> = (u^T g) . z: no outer product per token is formed.
        turned = gradient.to(dtype) @ u.to(dtype).view(gradient.shape[1], rotated.shape[1])
        return (turned * rotated.to(dtype)).sum(1)

    return Tap(module=module, keep=lambda x, _y: F.linear(x, A.to(x.dtype)), reduce=reduce, along=along)
