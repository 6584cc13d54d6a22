"""`attach` puts an adapter (delta_S or LoRA) on a model.

    coordinates = attach(model, basis="svd", model_id="Qwen/Qwen3-0.6B")
    coordinates.values()                       {module: (r,)}, all 0: the adapted model equals the base model

To add a basis: a word in `extraction.words.Basis`, a subclass of `Coordinates`, a branch in `attach`.
"""

from collections.abc import Sequence
from pathlib import Path

from peft.tuners.lora import Linear, LoraLayer
from transformers import PreTrainedModel

from extraction.adapters.interface import Coordinates
from extraction.adapters.lora import (
    DEFAULT_RANK,
    attach_lora,
)
from extraction.adapters.singular import attach_delta_s
from extraction.adapters.targets import ALL, adapted_share, find_targets
from extraction.words import Basis

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


def is_plain(layer: LoraLayer) -> bool:
    """Return whether a LoRA layer computes y = W x + s B A x: neither quantised, nor of an embedding, nor DoRA."""
    return type(layer) is Linear and not layer.lora_magnitude_vector and not layer.lora_variant
