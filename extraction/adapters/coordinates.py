"""`attach` puts an adapter (delta_S or LoRA) on a model; `existing_coordinates` reads one that a model has already.

    coordinates = attach(model, basis="svd", model_id="Qwen/Qwen3-0.6B")
    coordinates.values()                       {module: (r,)}, all 0: the adapted model equals the base model

What identifies a basis is read off the layers (weights, targets, rank, what is trained). Two facts are not in
them and are taken from the fingerprint that the caller compares with: the model's name, which the hash of its weights
stands in for, and the seed of LoRA's A, which is checked against A itself.

To add a basis: a word in `extraction.words.Basis`, a subclass of `Coordinates`, a branch in `attach`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer
from torch import nn
from transformers import PreTrainedModel

from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.interface import Coordinates
from extraction.adapters.lora import (
    ADAPTER,
    DEFAULT_RANK,
    attach_lora,
    lora_coordinates,
    lora_factors,
    orthonormal_frames,
)
from extraction.adapters.sharded import whole
from extraction.adapters.singular import attach_delta_s, delta_s_coordinates
from extraction.adapters.targets import ALL, adapted_share, check_one_place, find_targets
from extraction.words import Basis
from replay_pools.errors import InputError

SVD_CACHE = Path("out/cache/svd")  # relative to the working directory


def attach(
    model: PreTrainedModel,
    *,
    basis: Basis,
    model_id: str,
    cache_dir: str | Path | None = SVD_CACHE,
    rank: int | None = None,
    targets: Sequence[str] = (ALL,),
    seed: int = 0,
    train_a: bool = False,
    start_adapter: str | None = None,
) -> Coordinates:
    """Adapt `model` in place and return its coordinates; the adapted model equals the base model.

    Args:
        model: the base model, without an adapter.
        basis: `svd` (delta_S) or `lora`.
        model_id: the name of the base model in the fingerprint.
        cache_dir: svd only, folder of the SVD cache; None computes without one.
        rank: of LoRA, default 32; of svd, how many of the largest singular triplets of each module, default all.
        targets: which Linears (`find_targets`).
        seed: of LoRA's A. delta_S starts at 0 and has none.
        train_a: LoRA only; True trains A too, for a training that no direction is extracted from.
        start_adapter: checksum of an adapter that is merged into `model`, which may have changed more than the targets.

    Raises:
        InputError: a rank out of range, or no matching target.
    """
    paths = find_targets(model, targets)
    check_one_place(model, paths)
    identity = {"model_id": model_id}
    # Only where there is one: fingerprints without it are of base models.
    if start_adapter is not None:
        identity["start_adapter"] = start_adapter
    adapted = adapted_share(model, paths)
    coordinates: Coordinates
    if basis == "svd":
        coordinates = attach_delta_s(model, paths, identity, cache_dir=cache_dir, rank=rank)
    else:
        rank = DEFAULT_RANK if rank is None else rank
        coordinates = attach_lora(model, paths, identity, rank=rank, seed=seed, train_a=train_a)
    coordinates.adapted = adapted
    return coordinates


ROUNDING = 64  # how many machine epsilons the QR of another machine may move an entry of A


def existing_coordinates(model: nn.Module, like: Mapping[str, Any]) -> Coordinates | None:
    """The coordinates of the adapter `default` of `model`; None where it is no adapter of our bases.

    LoRA is one only if it is that of `like`: its A, options and modules. Any `delta_S` is one, for the caller to
    compare with `like` (`check_fingerprint`).

    Args:
        model: any model.
        like: the fingerprint of a basis.

    Raises:
        InputError: `delta_S` without the peft model around it, under another name, or beside another adapter.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    delta_s: dict[str, nn.Module] = {}
    lora: dict[str, nn.Module] = {}
    for name, layer in dict(base.named_modules()).items():
        if isinstance(layer, DeltaSLayer):
            delta_s[name] = layer
        elif isinstance(layer, LoraLayer):
            lora[name] = layer
    identity = {"model_id": like.get("model_id")}
    if delta_s:
        if not isinstance(model, PeftModel) or ADAPTER not in model.peft_config:
            found = ", ".join(model.peft_config) if isinstance(model, PeftModel) else type(model).__name__
            raise InputError("model", expected=f"an unwrapped peft model with an adapter `{ADAPTER}`", found=found)
        if lora:
            raise InputError("model", expected="an adapter `delta_S`, or other ones", found="both")
        return delta_s_coordinates(model, delta_s, identity)
    if isinstance(model, PeftModel) and lora and _is_lora_of(lora, like):
        return lora_coordinates(model, lora, identity, seed=like["init_seed"])
    return None


def is_plain(layer: LoraLayer) -> bool:
    """Whether a LoRA layer computes y = W x + s B A x: neither quantised, nor of an embedding, nor DoRA."""
    return type(layer) is Linear and not layer.lora_magnitude_vector and not layer.lora_variant


def _is_lora_of(layers: Mapping[str, nn.Module], like: Mapping[str, Any]) -> bool:
    """Whether LoRA layers are those of the fingerprint `like`.

    LoRA directions are matrices seen through A: with another A the same numbers mean other directions.
    """
    if like.get("basis") != "lora" or list(layers) != like["targets"]:
        return False
    factors = []
    for layer in layers.values():
        assert isinstance(layer, LoraLayer)
        if not is_plain(layer) or ADAPTER not in layer.lora_A or layer.scaling[ADAPTER] != 1:
            return False
        A, _ = lora_factors(layer)
        if (len(A), len(A), A.requires_grad) != (like["rank"], like["alpha"], like["train_a"]):
            return False
        factors.append(whole(A).cpu())
    drawn = orthonormal_frames([(len(A), A.shape[1]) for A in factors], like["init_seed"])
    for A, frame in zip(factors, drawn, strict=True):
        if not torch.allclose(A, frame.to(A), rtol=0.0, atol=ROUNDING * torch.finfo(A.dtype).eps):
            return False
    return True
