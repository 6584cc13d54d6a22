"""What a step holds beside activations: exact sizes, from the shapes of a model on the meta device."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from extraction.adapters.targets import find_targets, weight_matrix
from extraction.vocabulary import Basis, Storage

FLOAT32 = 4  # bytes; adapters, factors and gradients, whatever the dtype of the weights
TRAINED = "moments of AdamW, gradient, base, EMA, quarantine"
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one kind of tensor."""

    what: str
    num_bytes: int


def memory(
    model: PreTrainedModel,
    *,
    dtype: str,
    bases: set[Basis],
    lora_rank: int,
    svd_rank: int | None,
    svd_storage: Storage,
    num_samples: int,
    k: int,
    num_direction_sets: int,
    num_pairs: int,
    trains: bool = False,
) -> list[Memory]:
    """What a step holds beside the activations, which depend on the lengths of the rollouts.

    Args:
        model: on the meta device; only shapes are read.
        num_samples: of all groups of a step.
        num_direction_sets: kinds of directions that the arms measure (v_hack, haar, ...).
        trains: with an optimizer, references and a quarantine.
    """
    shapes = [weight_matrix(model.get_submodule(name), name).shape for name in find_targets(model)]
    weights = sum(p.numel() for p in model.parameters()) * WEIGHT_BYTES[dtype]
    rows = [Memory(what=f"weights ({dtype})", num_bytes=weights)]
    ranks = [min(*shape, svd_rank or min(shape)) for shape in shapes]
    sizes = {"svd": sum(ranks), "lora": sum(lora_rank * s[0] for s in shapes)}
    # U and Vh of a square weight, one of them of any other: extraction.adapters.svd (where it is well-conditioned)
    factors = sum(rank * (sum(s) if s[0] == s[1] else min(s)) for rank, s in zip(ranks, shapes, strict=True))
    frozen = {
        "svd": ("U, Vh and S, as far as needed", factors * WEIGHT_BYTES[svd_storage] + sizes["svd"] * FLOAT32),
        "lora": ("A, frozen", sum(lora_rank * s[1] for s in shapes) * FLOAT32),
    }
    for basis in sorted(bases):
        what, num_bytes = frozen[basis]
        size = sizes[basis] * FLOAT32
        rows += [
            Memory(what=f"{basis}: {what}", num_bytes=num_bytes),
            Memory(what=f"{basis}: coordinates and {num_samples} sample gradients", num_bytes=size * (1 + num_samples)),
            Memory(what=f"{basis}: {num_direction_sets} x {k} directions", num_bytes=size * k * num_direction_sets),
            Memory(what=f"{basis}: gradients of {num_pairs} pairs", num_bytes=size * 2 * num_pairs),
        ]
        if trains:
            rows.append(Memory(what=f"{basis}: {TRAINED}", num_bytes=size * 6))
    return rows
