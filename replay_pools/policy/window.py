"""How many tokens a model reads: `window_of(model)` of a model, or of its skeleton without weights."""

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

# What the tables are called that have a row for every position: learned ones, and computed ones that are stored.
TABLES = ("wpe", "embed_positions", "position_embeddings")


@dataclass(frozen=True, slots=True)
class Window:
    """The positions of a model."""

    size: int
    is_bound: bool  # a table ends there, and a longer text fails; else the model was only never trained on one


def window_of(model: PreTrainedModel) -> Window | None:
    """The positions that a model's config names; None where it names none."""
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(size, int):
        return None
    parts = [*model.named_modules(), *model.named_buffers()]
    is_bound = any(
        name.rpartition(".")[2] in TABLES and isinstance(part, nn.Embedding | Tensor) for name, part in parts
    )
    return Window(size, is_bound)
