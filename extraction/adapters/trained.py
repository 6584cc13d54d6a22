"""Trained: an adapter of peft that moves a model's weights, seen as {module: (r,)} in the coordinates of `Frames`.

    trained = Trained(model, svd_frames(model))
    trained.values()                           {module: (r,)}, all 0: the adapted model equals the base model
    with trained.folded():
        per_sample_gradients(model, {"svd": trained.frames()}, batch)

    basis    adapter of a module                                          coordinates
    svd      W + U diag(delta_S) Vh, delta_S (r,)     `adapters.delta_s`  delta_S
    lora     W + B A, A (rank, d_in), B (d_out, rank) peft's LoRA         B flattened row by row; A is frozen

A stays frozen, since directions would lose their meaning if it moved.

`save_as_lora` writes the change of delta_S as a LoRA of peft, for programs that know no other adapter:

    W' = W + U diag(delta_S) Vh = W + s B A      B = U diag(delta_S) (d_out, R), A = Vh (R, d_in), s = alpha / R = 1

with R the largest r of all modules; smaller ones are padded with zeros, since servers know one rank and one scale.
Hu et al. 2021, arXiv 2106.09685 (LoRA).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast, final

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from extraction.adapters.coordinates import Frame, LoraFrame, SvdFrame
from extraction.adapters.delta_s import ADAPTER, DeltaSConfig, DeltaSLayer
from extraction.adapters.frames import Frames, base_layer
from extraction.adapters.svd import MAX_CONDITION, Factors, condition
from extraction.adapters.targets import check_one_place, spread_as, whole
from extraction.settings import Basis
from replay_pools.policy.adapters import quiet_peft

WEIGHTS = "adapter_model.safetensors"  # peft's name


@final
class Trained:
    """An adapter at zero on a model, which is changed in place until `remove`.

    Args:
        model: without an adapter.
        start: the model's frames, which define the coordinates.

    Attributes:
        model: the PEFT model around the given one.
        layers: the adapter layer of each module.
        sizes: the number of coordinates r of each module.
    """

    def __init__(self, model: PreTrainedModel, start: Frames) -> None:
        self.basis: Basis = start.basis
        self.start, self._base = start, model
        self.model = wrapped(model, start)
        # peft has put its layers where the modules were.
        self.layers = {module: model.get_submodule(module) for module in start}
        for layer in self.layers.values():
            if isinstance(layer, LoraLayer):
                # Registered with peft, not only requires_grad = False: peft turns gradients on again in set_adapter.
                layer.frozen_peft_weight_names = {ADAPTER: ("lora_A",)}
                layer._freeze_non_trainable_peft_weights(ADAPTER)
        self.sizes = {module: self.trainable(module).numel() for module in start}

    def trainable(self, module: str) -> nn.Parameter:
        """Return the trainable parameter of a module; flattened, it is its coordinates."""
        layer = self.layers[module]
        return layer.delta_S[ADAPTER] if isinstance(layer, DeltaSLayer) else lora_factors(layer)[1]

    @torch.no_grad()
    def frames(self) -> Frames:
        """Return the frames at the present coordinates, without copies; their taps are used while `folded` is open."""
        frames: dict[str, Frame] = {}
        for module, layer in self.layers.items():
            if isinstance(layer, DeltaSLayer):
                held, scale = layer.factors, layer.S + self.trainable(module)
                # delta_S may have moved a singular value near 0, by which a tap with one factor would divide.
                if not condition(scale) <= MAX_CONDITION:
                    U, Vh = layer.frames()
                    held = Factors(U, layer.S, Vh)
                frames[module] = SvdFrame(held, scale, layer)
            else:
                A, B = lora_factors(layer)
                frames[module] = LoraFrame(A.detach(), len(B), B.dtype)
        return replace(self.start, frames=frames, layers=self.layers, moved=True)

    @contextmanager
    def folded(self) -> Iterator[None]:
        """While open, delta_S is merged into the weights where that is exact, which saves the adapter's own products.

        Not in float16, which would round a small delta_S away (bfloat16 does not: `dithered`), and not with sharded
        weights, which no process holds whole. A LoRA is never merged.
        """
        layers = [layer for layer in self.layers.values() if isinstance(layer, DeltaSLayer)]
        can_hold = all(layer.weight.dtype in (layer.S.dtype, torch.bfloat16) for layer in layers)
        apart = not layers or any(layer.merged or isinstance(layer.weight, DTensor) for layer in layers)
        if apart or not can_hold:
            yield
            return
        self.model.merge_adapter()
        try:
            yield
        finally:
            self.model.unmerge_adapter()  # bit for bit

    def parameters(self) -> list[nn.Parameter]:
        """Return all trainable parameters, module by module, for an optimizer."""
        return [self.trainable(module) for module in self.layers]

    def values(self) -> dict[str, Tensor]:
        """Return a copy of the coordinates, {module: (r,)}."""
        return {module: whole(self.trainable(module)).flatten().clone() for module in self.layers}

    @torch.no_grad()
    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the coordinates."""
        assert {module: len(value) for module, value in values.items()} == self.sizes
        for module, value in values.items():
            parameter = self.trainable(module)
            parameter.copy_(spread_as(parameter, value.view(parameter.shape)))

    @contextmanager
    def at(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """While open, the coordinates are `values`."""
        previous = self.values()
        self.load_values(values)
        try:
            yield
        finally:
            self.load_values(previous)

    def at_start(self) -> AbstractContextManager[None]:
        """While open, the coordinates are all 0: the adapted model equals the base model."""
        return self.at({module: torch.zeros_like(value) for module, value in self.values().items()})

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Set every `.grad` to its part of {module: (r,)}."""
        for module, gradient in gradients.items():
            parameter = self.trainable(module)
            parameter.grad = gradient.detach().view(parameter.shape).to(parameter, copy=True)

    def remove(self) -> None:
        """Take the adapter off the model."""
        self.model.unload()  # pyright: ignore[reportCallIssue]
        if hasattr(self._base, "peft_config"):
            del self._base.peft_config


def lora_factors(layer: nn.Module | LoraLayer, adapter: str = ADAPTER) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A (rank, d_in) and B (d_out, rank) of a LoRA layer."""
    assert isinstance(layer, LoraLayer)
    return cast(nn.Parameter, layer.lora_A[adapter].weight), cast(nn.Parameter, layer.lora_B[adapter].weight)


def save_adapter(model: PeftModel, directory: Path) -> None:
    """Save the adapter of a model as a peft directory."""
    # peft keeps a set in an order that differs between processes; sorted, the file has the same bytes every time.
    for config in model.peft_config.values():
        config.target_modules = sorted(config.target_modules)  # type: ignore[union-attr]
    model.save_pretrained(str(directory), save_embedding_layers=False)


def wrapped(model: PreTrainedModel, start: Frames) -> PeftModel:
    """Put an adapter at zero on the modules of `start`: with their factors, or LoRA without dropout, with their A.

    peft draws initial weights, but the caller's RNG keeps its state.
    """
    check_one_place(model, list(start))
    rank = start.fingerprint["rank"]
    if start.basis == "lora":
        config: PeftConfig = _lora_config(start.layers, rank)
    else:
        config = DeltaSConfig(task_type=TaskType.CAUSAL_LM, target_modules=list(start), num_triplets=rank)
        config.factors = {module: frame.held for module, frame in start.items() if isinstance(frame, SvdFrame)}
    with quiet_peft(), torch.random.fork_rng(devices=[]):
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    for module, frame in start.items():
        layer = model.get_submodule(module)
        if isinstance(frame, LoraFrame) and isinstance(layer, LoraLayer):
            lora_factors(layer)[0].data.copy_(frame.A)
    return adapted


def _lora_config(layers: Mapping[str, nn.Module], rank: int) -> LoraConfig:
    """Configure a LoRA y = W x + B A x, of scale alpha / rank = 1, on {path: its Linear or Conv1D}."""
    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=rank,
        target_modules=list(layers),
        fan_in_fan_out=all(isinstance(layer, Conv1D) for layer in layers.values()),
    )


@torch.no_grad()
def save_as_lora(trained: Trained, directory: Path) -> None:
    """Write delta_S as a LoRA, a peft directory, in the dtype of the weights."""
    tensors, rank = {}, max(trained.sizes.values())
    for module, layer in trained.layers.items():
        assert isinstance(layer, DeltaSLayer)
        (U, Vh), delta_S = layer.frames(), trained.trainable(module)
        missing = rank - len(delta_S)
        # Rounded once: the product has at least float32.
        for name, factor in (("A", F.pad(Vh, (0, 0, 0, missing))), ("B", F.pad(U * delta_S, (0, missing)))):
            tensors[f"base_model.model.{module}.lora_{name}.weight"] = factor.to(layer.weight.dtype).cpu().contiguous()
    config = _lora_config({name: base_layer(layer) for name, layer in trained.layers.items()}, rank)
    config.inference_mode = True
    config.target_modules = sorted(trained.layers)  # as in `save_adapter`
    directory.mkdir(parents=True)
    config.save_pretrained(str(directory))
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})  # as peft
