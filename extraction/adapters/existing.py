"""`existing_coordinates`: the coordinates of a peft model that already has its adapter, as in a trainer's callback.

What identifies a basis is read off the layers (weights, targets, rank, scale, what is trained). Two facts are not in
them and are taken from the fingerprint that the caller compares with: the model's name, which the hash of its weights
stands in for, and the seed of LoRA's A, which is checked against A itself.
"""

from collections.abc import Mapping
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer
from torch import nn

from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.interface import Coordinates
from extraction.adapters.lora import ADAPTER, frames, lora_coordinates, lora_factors
from extraction.adapters.singular import delta_s_coordinates
from replay_pools.errors import InputError

ROUNDING = 64  # how many machine epsilons the QR of another machine may move an entry of A


def existing_coordinates(model: PeftModel, like: Mapping[str, Any]) -> Coordinates:
    """The coordinates of the adapter `default` of `model`.

    Args:
        model: a peft model with `delta_S` or plain LoRA.
        like: the fingerprint that the caller is going to compare with (`check_fingerprint`).

    Raises:
        InputError: the adapter is neither `delta_S` nor plain LoRA, or LoRA's A is not the one of the seed of `like`.
    """
    if not isinstance(model, PeftModel) or ADAPTER not in model.peft_config:
        found = ", ".join(model.peft_config) if isinstance(model, PeftModel) else type(model).__name__
        raise InputError("model", expected=f"an unwrapped peft model with an adapter `{ADAPTER}`", found=found)
    identity = {"model_id": like.get("model_id")}
    modules: dict[str, nn.Module] = dict(model.get_base_model().named_modules())
    delta_s: dict[str, nn.Module] = {}
    lora: dict[str, nn.Module] = {}
    for name, layer in modules.items():
        if isinstance(layer, DeltaSLayer):
            delta_s[name] = layer
        elif isinstance(layer, LoraLayer):
            lora[name] = layer
    if delta_s and not lora:
        return delta_s_coordinates(model, delta_s, identity)
    if delta_s or not lora or not all(_is_plain(layer) for layer in lora.values()):
        kinds = sorted({type(layer).__name__ for layer in (*delta_s.values(), *lora.values())})
        found = ", ".join(kinds) or "neither"
        raise InputError("model", expected="adapters `delta_S`, or plain LoRA of Linears", found=found)
    seed = like.get("init_seed") or 0
    # With another basis in `like` the caller's comparison of fingerprints fails anyway, with the better message.
    if like.get("basis") == "lora":
        _check_frames(lora, seed)
    return lora_coordinates(model, lora, identity, seed=seed)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a LoRA layer computes y = W x + s B A x: neither quantised, nor of an embedding, nor DoRA."""
    return type(layer) is Linear and not layer.lora_magnitude_vector


def _check_frames(layers: Mapping[str, nn.Module], seed: int) -> None:
    """InputError unless every A is the one that `seed` gives.

    LoRA directions are matrices seen through A: with another A the same numbers mean other directions.
    """
    for (name, layer), frame in zip(layers.items(), frames(layers, seed), strict=True):
        assert isinstance(layer, LoraLayer)
        A = lora_factors(layer)[0].detach().cpu()
        if not torch.allclose(A, frame.to(A), rtol=0.0, atol=ROUNDING * torch.finfo(A.dtype).eps):
            raise InputError(
                f"lora_A of module {name}",
                expected=f"the orthonormal A of seed {seed}, in which directions are read",
                found="other values",
                fix="adapt the model by extraction.adapters.attach(..., basis='lora', train_a=False)",
            )
