"""`delta_S` as peft's LoRA, for programs that know no other adapter: the same change of every weight, as a product.

    W' = W + U diag(delta_S) Vh = W + s B A      B = U diag(delta_S) (d_out, R), A = Vh (R, d_in), s = alpha / R = 1

Shapes: r coordinates of a module, R the largest r of all modules; a module with fewer is filled up with zeros, since
servers know one rank and one scale for an adapter. The product is exact up to the rounding of its two factors.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, TaskType
from safetensors.torch import save_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from extraction.adapters.singular import DeltaSCoordinates
from replay_pools.storage.tensors import seal

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
