"""Which Linears of a model are adapted: those whose dotted path ends in one of the target suffixes.

To add an architecture with other names: a row in `SUFFIXES_BY_MODEL_TYPE`.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from replay_pools.errors import InputError

DEFAULT_SUFFIXES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SUFFIXES_BY_MODEL_TYPE = {"gpt2": ("c_attn", "c_proj", "c_fc")}


def default_suffixes(model_type: str) -> tuple[str, ...]:
    """The default suffixes of an architecture: attention and MLP projections, never embeddings or the head."""
    return SUFFIXES_BY_MODEL_TYPE.get(model_type, DEFAULT_SUFFIXES)


def find_targets(model: PreTrainedModel, suffixes: Sequence[str] | None = None) -> list[str]:
    """Dotted paths of the modules to adapt, in the order of `model.named_modules()`.

    Args:
        model: the base model, without an adapter.
        suffixes: whole path parts from the right, such as `q_proj` or `mlp.c_proj`; None takes the defaults of the
            architecture.

    Raises:
        InputError: a suffix matches no `nn.Linear` or `Conv1D`; the candidates are in the message.
    """
    if suffixes is None:
        suffixes = default_suffixes(model.config.model_type)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    targets, matched = [], set()
    for name in linears:
        matching = [suffix for suffix in suffixes if has_suffix(name, suffix)]
        if matching:
            targets.append(name)
            matched.update(matching)
    # One misspelt suffix among good ones must not silently adapt fewer modules.
    unmatched = [suffix for suffix in suffixes if suffix not in matched]
    if unmatched or not suffixes:
        candidates = sorted({name.rpartition(".")[2] for name in linears})
        raise InputError(
            f"target suffixes of {type(model).__name__}",
            expected="suffixes that each match a Linear or Conv1D",
            found=f"no match for {', '.join(unmatched) or 'an empty list'}",
            fix=f"choose among {', '.join(candidates) or 'nothing: the model has no Linear'}",
        )
    return targets


def weight_matrix(module: nn.Module, name: str) -> Tensor:
    """The weight (d_out, d_in) of a Linear or Conv1D (which stores the transpose); a view, not a copy.

    Raises:
        InputError: `module` is neither, or its weight is quantised.
    """
    weight = module.weight if isinstance(module, nn.Linear | Conv1D) else None
    if weight is None or not weight.is_floating_point():
        raise InputError(
            f"module {name}",
            expected="a Linear or Conv1D with a floating-point weight",
            found=type(module).__name__ if weight is None else str(weight.dtype),
            fix="choose other target suffixes or load the model unquantised",
        )
    return weight.T if isinstance(module, Conv1D) else weight


def has_suffix(name: str, suffix: str) -> bool:
    """True when `suffix` is the end of the dotted path `name`, cut at a dot."""
    return name == suffix or name.endswith(f".{suffix}")
