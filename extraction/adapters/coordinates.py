"""`attach`: put an adapter (delta_S or LoRA) on a model and get its `Coordinates`.

    coordinates = attach(model, basis="svd", model_id="Qwen/Qwen3-0.6B")
    coordinates.values()                       {module: (r,)}, all 0: the adapted model equals the base model

To add a basis: a word in `extraction.words.Basis`, a subclass of `Coordinates`, a branch in `attach`.
"""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from extraction.adapters.interface import Coordinates, check_fingerprint
from extraction.adapters.lora import DEFAULT_RANK, attach_lora
from extraction.adapters.singular import attach_delta_s
from extraction.adapters.targets import ALL, find_targets
from extraction.words import Basis, Storage
from replay_pools.errors import InputError

__all__ = ["SVD_CACHE", "Basis", "Coordinates", "attach", "check_fingerprint"]

SVD_CACHE = Path("out/cache/svd")  # relative to the working directory


def attach(
    model: PreTrainedModel,
    *,
    basis: Basis,
    model_id: str,
    cache_dir: Path | None = SVD_CACHE,
    rank: int | None = None,
    alpha: float | None = None,
    targets: Sequence[str] = (ALL,),
    seed: int = 0,
    train_a: bool = True,
    storage: Storage = "float32",
    start_adapter: str | None = None,
) -> Coordinates:
    """Adapt `model` in place and return its coordinates; the adapted model equals the base model.

    Args:
        model: the base model, without an adapter.
        basis: `svd` (delta_S) or `lora`.
        model_id: the name of the base model in the fingerprint.
        cache_dir: folder of the SVD cache; None computes without one. Not used by `lora`.
        rank: of LoRA, default 32; of svd, how many of the largest singular triplets of each module, default all.
        alpha: LoRA only; default `rank`, so that the adapter is not rescaled.
        targets: which Linears (`find_targets`).
        seed: of LoRA's A. delta_S starts at 0 and has none.
        train_a: LoRA only; False freezes A, so that B alone is trained.
        storage: svd only, dtype of U and Vh; `bfloat16` halves their memory and is another basis
            (`Coordinates.rounding`).
        start_adapter: checksum of an adapter that is merged into `model`, which may have changed more than the targets.

    Raises:
        InputError: no such basis, an option of the other basis, a rank out of range, or no matching target.
    """
    paths = find_targets(model, targets)
    identity = {"model_id": model_id}
    # Only where there is one: fingerprints without it are of base models.
    if start_adapter is not None:
        identity["start_adapter"] = start_adapter
    if basis == "svd":
        if alpha is not None or not train_a:
            raise InputError("basis svd", expected="neither alpha nor train_a", found="an option of basis lora")
        return attach_delta_s(model, paths, identity, cache_dir=cache_dir, rank=rank, storage=storage)
    if basis == "lora":
        if storage != "float32":
            raise InputError("basis lora", expected="no storage", found="an option of basis svd")
        rank = DEFAULT_RANK if rank is None else rank
        alpha = float(rank if alpha is None else alpha)
        return attach_lora(model, paths, identity, rank=rank, alpha=alpha, seed=seed, train_a=train_a)
    raise InputError("basis", expected="svd or lora", found=repr(basis))
