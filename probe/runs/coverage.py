"""Which part of a model is adapted: modules by projection, and their share of the weights. Read off shapes alone."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from extraction.adapters.targets import find_targets, weight_matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The adapted modules of one projection and shape."""

    projection: str  # last part of their path
    modules: int
    shape: tuple[int, int]  # (d_out, d_in)
    share: float  # of all weights of the model, each counted once, in [0, 1]


def coverage(model: PreTrainedModel) -> list[Coverage]:
    """One row for each projection and shape, in the order of the model; `model` may be on the meta device."""
    found: dict[tuple[str, tuple[int, int]], int] = {}
    for name in find_targets(model):
        d_out, d_in = weight_matrix(model.get_submodule(name), name).shape
        key = name.rpartition(".")[2], (d_out, d_in)
        found[key] = found.get(key, 0) + 1
    total = sum(parameter.numel() for parameter in model.parameters())
    return [
        Coverage(projection=projection, modules=count, shape=shape, share=count * shape[0] * shape[1] / total)
        for (projection, shape), count in found.items()
    ]
