"""The Linears of a model that gradients are read at, and their weights: dotted paths end in a target suffix.

To add an architecture with other names: a row in `SUFFIXES_BY_MODEL_TYPE`. To add a word for a kind of projections: a
key in every row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from extraction.settings import Adapted
from replay_pools.base.errors import InputError

Kinds = Mapping[str, tuple[str, ...]]  # {kind of projections: its suffixes}; never embeddings or the head
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
DEFAULT_SUFFIXES: Kinds = {"attention": ATTENTION, "mlp": MLP}
# Experts are stacks of matrices without Linears: they cannot be targets, and `adapted_share` counts them.
EXPERTS: Kinds = {"attention": ATTENTION}
# Fused projections are one Linear with one vector of coordinates.
NEOX: Kinds = {"attention": ("query_key_value", "dense"), "mlp": ("dense_h_to_4h", "dense_4h_to_h")}
QWEN3_5 = tuple(f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"))
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
SUFFIXES_BY_MODEL_TYPE: Mapping[str, Kinds] = {
    "gpt2": {"attention": ("c_attn", "attn.c_proj"), "mlp": ("c_fc", "mlp.c_proj")},
    "gpt_neox": NEOX,
    "bloom": NEOX,
    "opt": {"attention": ("q_proj", "k_proj", "v_proj", "out_proj"), "mlp": ("fc1", "fc2")},
    "starcoder2": {"attention": ATTENTION, "mlp": ("c_fc", "c_proj")},
    "phi3": {"attention": ("qkv_proj", "o_proj"), "mlp": ("gate_up_proj", "down_proj")},
    "glm": {"attention": ATTENTION, "mlp": ("gate_up_proj", "down_proj")},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "gpt_oss": EXPERTS,
    "qwen3_next": {
        "attention": (*ATTENTION, *(f"linear_attn.{name}" for name in ("in_proj_qkvz", "in_proj_ba", "out_proj"))),
        "mlp": MLP,  # of shared experts
    },
    "qwen3_5_text": {"attention": (*ATTENTION, *QWEN3_5), "mlp": MLP},
    "qwen3_5_moe_text": {"attention": (*ATTENTION, *QWEN3_5), "mlp": MLP},
    # Without mamba.out_proj: the kernel of a training on a GPU reads its weight and never calls it.
    "falcon_h1": {"attention": (*ATTENTION, "mamba.in_proj"), "mlp": MLP},
    "deepseek_v3": {"attention": LATENT, "mlp": MLP},
}
ALL = "all"  # every kind


def suffixes_of(model_type: str, targets: Sequence[str] = (ALL,)) -> tuple[str, ...]:
    """Return the suffixes of an architecture, with each kind of projections replaced by its own."""
    kinds = SUFFIXES_BY_MODEL_TYPE.get(model_type, DEFAULT_SUFFIXES)
    every = [suffix for of_kind in kinds.values() for suffix in of_kind]
    lists = (every if target == ALL else kinds.get(target, (target,)) for target in targets)
    return tuple(dict.fromkeys(suffix for suffixes in lists for suffix in suffixes))


def find_targets(model: PreTrainedModel, targets: Sequence[str] = (ALL,)) -> list[str]:
    """Return the dotted paths of the target modules, in the order of `model.named_modules()`.

    Linears that share a weight become one module (`unite_tied`). Modules outside the language model, such as a vision
    tower, are left out.

    Args:
        model: the base model, without an adapter.
        targets: kinds of projections (`attention`, `mlp`, `all`), or whole path parts from the right, such as
            `q_proj` or `mlp.c_proj`.

    Raises:
        InputError: a suffix matches no `nn.Linear` or `Conv1D`, with the candidates in the message; a target shares its
            weight with a module of another kind, such as a head with the embedding.
    """
    unite_tied(model)
    model_type = model.config.get_text_config(decoder=True).model_type
    suffixes = suffixes_of(model_type, targets)
    prefix = language_prefix(model)
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name.startswith(prefix)
    }
    paths, matched = [], set()
    for name in linears:
        matching = [suffix for suffix in suffixes if has_suffix(name, suffix)]
        if matching:
            paths.append(name)
            matched.update(matching)
    # One misspelt suffix among good ones must not silently adapt fewer modules.
    unmatched = [suffix for suffix in suffixes if suffix not in matched]
    if unmatched or not suffixes:
        kinds = SUFFIXES_BY_MODEL_TYPE.get(model_type, DEFAULT_SUFFIXES)
        candidates = [ALL, *kinds, *sorted({name.rpartition(".")[2] for name in linears})]
        raise InputError(
            f"model.targets of {type(model).__name__}",
            expected="suffixes that each match a Linear or Conv1D",
            found=f"no match for {', '.join(unmatched) or 'an empty list'}",
            fix=f"choose among {', '.join(candidates)}",
        )
    owners = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    for path in paths:
        if owners[id(linears[path].weight)] > 1:
            expected, found = "a weight of Linears alone", "one that another module uses too"
            raise InputError(f"module {path}", expected=expected, found=found, fix="leave it out of model.targets")
    return paths


def language_prefix(model: PreTrainedModel) -> str:
    """Return the prefix of paths in the language model, such as `model.language_model.` in a model with vision."""
    decoder = model.get_decoder()
    path = next((name for name, module in model.named_modules() if module is decoder), "")
    return f"{path}." if path else ""


def unite_tied(model: nn.Module) -> None:
    """Replace Linears that share their parameters by one module, in which the gradients of all calls add up."""
    firsts: dict[tuple[object, ...], nn.Module] = {}
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            is_plain = type(child) in (nn.Linear, Conv1D) and "forward" not in vars(child)
            if is_plain and not (child._forward_hooks or child._forward_pre_hooks):
                key = (type(child), *(id(parameter) for parameter in child.parameters()))
                setattr(parent, name, firsts.setdefault(key, child))


def check_one_place(model: nn.Module, paths: Sequence[str]) -> None:
    """Raise InputError for a module in several places, since peft would put an adapter in one of them alone."""
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for path in paths:
        if places[id(model.get_submodule(path))] > 1:
            expected, found = "a module in one place, to be trained by an adapter", "several: the blocks are tied"
            raise InputError(f"module {path}", expected=expected, found=found, fix="leave it out of model.targets")


def adapted_share(model: PreTrainedModel, paths: Sequence[str]) -> Adapted:
    """Return the share of the language model at `paths`; `model` may be on the meta device."""
    head = model.get_output_embeddings()
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    apart = {id(module.weight) for module in embeddings}
    adapted, prefix = {f"{path}.weight" for path in paths}, language_prefix(model)
    total, left_out, linears = 0, Counter[str](), set[str]()
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or id(parameter) in apart or not name.startswith(prefix):
            continue
        total += parameter.numel()
        if name not in adapted:
            path = name.removesuffix(".weight")
            # Without the numbers of layers and experts.
            end = ".".join([part for part in path.split(".") if not part.isdecimal()][-2:])
            left_out[end] += parameter.numel()
            if path != name and isinstance(model.get_submodule(path), nn.Linear | Conv1D) and has_suffix(path, end):
                linears.add(end)
    shares = {name: count / total for name, count in left_out.most_common()}
    return Adapted(
        share=1 - left_out.total() / max(total, 1),
        left_out=shares,
        linears=[name for name in shares if name in linears],
    )


def weight_matrix(module: nn.Module, name: str) -> Tensor:
    """Return the weight (d_out, d_in) of a Linear or Conv1D (which stores the transpose), as a view.

    Raises:
        InputError: `module` is neither, or its weight is quantised.
    """
    weight = module.weight if isinstance(module, nn.Linear | Conv1D) else None
    if weight is None or is_quantised(weight):
        kind = type(module).__name__
        if weight is not None:
            kind += f" of {type(weight.data).__name__}, {weight.dtype}"
        raise InputError(
            f"module {name}",
            expected="a Linear or Conv1D with a floating-point weight",
            found=kind,
            fix="choose other target suffixes or load the model unquantised",
        )
    return weight.T if isinstance(module, Conv1D) else weight


def is_quantised(weight: Tensor) -> bool:
    """Return whether a weight is not a plain matrix of numbers with at least 16 bits.

    float8 weights have separate scales; tensors of torchao report a floating-point dtype.
    """
    kept_as_numbers = type(weight.data) in (Tensor, DTensor) and weight.is_floating_point()
    return not kept_as_numbers or weight.dtype.itemsize < 2


def has_suffix(name: str, suffix: str) -> bool:
    """Return whether the dotted path `name` ends in `suffix`, cut at a dot."""
    return name == suffix or name.endswith(f".{suffix}")


# FSDP2 spreads parameters over processes (DTensors); others pass unchanged.


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, detached; a sharded one is gathered, which all processes of the mesh must do."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def spread_as(like: Tensor, values: Tensor) -> Tensor:
    """Spread `values`, which every process holds whole, over processes like the tensor `like`."""
    if not isinstance(like, DTensor):
        return values
    # src_data_rank None: every process cuts its part out of its copy.
    return distribute_tensor(values.to(like.dtype), like.device_mesh, like.placements, src_data_rank=None)
