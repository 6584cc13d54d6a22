"""`delta_S`: train the singular values of the frozen weights. A PEFT method (AntiPaSTO).

    W = U diag(S) Vh                          reduced SVD, r = min(d_in, d_out)
    y = W x + U diag(delta_S) Vh x            delta_S (r,), 0 at the start
    dL/d delta_S = sum_t (U^T dL/dy_t) * (Vh x_t)

Identity at delta_S = 0: the adapter adds exactly 0, so the output is the base model's bit for bit.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules;
U (d_out, r), Vh (r, d_in). delta_S, U and Vh are float32 (float64 in a float64 model) whatever the model's dtype.
Only delta_S is saved: U and Vh follow from the base weights and are recomputed, or read from the SVD cache.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from peft import PeftConfig, TaskType
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, check_adapters_to_merge
from peft.utils import PeftType, register_peft_method
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from extraction.adapters.interface import Basis, Coordinates, wrap
from extraction.adapters.svd import factorise
from extraction.adapters.targets import default_suffixes, weight_matrix

ADAPTER = "default"


@dataclass
class DeltaSConfig(PeftConfig):
    """Configuration of a `delta_S` adapter.

    Args:
        target_modules: suffixes or dotted paths of the Linears; None takes the defaults of the architecture.
        svd_cache: folder of cached factors; None computes them anew. A property of the machine, so never saved.
    """

    target_modules: list[str] | set[str] | str | None = field(default=None)
    svd_cache: str | None = field(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("DELTA_S")

    def to_dict(self) -> dict[str, Any]:
        """What is saved: everything but the place of the cache."""
        return {name: value for name, value in super().to_dict().items() if name != "svd_cache"}


class DeltaSLayer(nn.Module, BaseTunerLayer):
    """One adapted Linear or Conv1D; all adapters of the layer share U and Vh."""

    adapter_layer_names = ("delta_S",)

    U: Tensor
    Vh: Tensor
    unmerged_weight: Tensor | None

    def __init__(self, base_layer: nn.Module, name: str, svd_cache: Path | None) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.merged_adapters: list[str] = []
        U, _, Vh = factorise(weight_matrix(base_layer, name), svd_cache)
        self.register_buffer("U", U, persistent=False)
        self.register_buffer("Vh", Vh, persistent=False)
        self.register_buffer("unmerged_weight", None, persistent=False)
        self.delta_S = nn.ParameterDict()

    def add_adapter(self, adapter_name: str, *, inference_mode: bool) -> None:
        """A new adapter at delta_S = 0."""
        self.delta_S[adapter_name] = nn.Parameter(torch.zeros_like(self.U[0]))
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """y = W x + sum over active adapters of U diag(delta_S) Vh x, the second term in the dtype of U."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        y = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return y
        for name in self.active_adapters:
            if name in self.delta_S:
                rotated = F.linear(x.to(self.Vh.dtype), self.Vh)  # (..., r)
                y = y + F.linear(rotated * self.delta_S[name], self.U).to(y.dtype)
        return y

    def delta_weight(self, adapter_name: str) -> Tensor:
        """U diag(delta_S) Vh in the layout of the base weight."""
        delta = (self.U * self.delta_S[adapter_name].detach()) @ self.Vh
        return delta.T if isinstance(self.base_layer, Conv1D) else delta

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the adapters into the base weight. The old weight is kept, so that `unmerge` restores it bit for bit."""
        weight = self.weight
        for name in check_adapters_to_merge(self, adapter_names):
            if name not in self.delta_S:
                continue
            merged = weight.data.to(self.U.dtype) + self.delta_weight(name)
            if safe_merge and not torch.isfinite(merged).all():
                raise ValueError(f"adapter {name!r} has values that are not finite: it cannot be merged")
            if self.unmerged_weight is None:
                self.unmerged_weight = weight.data
            weight.data = merged.to(weight.dtype)
            self.merged_adapters.append(name)

    def unmerge(self) -> None:
        """Put the base weight of before `merge` back."""
        if self.unmerged_weight is None:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        weight = self.weight
        weight.data = self.unmerged_weight.to(weight.dtype)
        self.unmerged_weight = None
        self.merged_adapters.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to()`: the base layer follows, the adapter changes device but never loses precision."""

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= tensor.dtype.itemsize else tensor.to(moved.device)

        self.base_layer._apply(fn, recurse)
        return super()._apply(keep_precision, recurse)

    def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: torch.device | None = None) -> None:
        """peft's version also casts to the dtype of the base layer, which would round delta_S."""
        self.delta_S[adapter_name] = self.delta_S[adapter_name].to(device or self.weight.device)


class DeltaSModel(BaseTuner):
    """The tuner that puts a `DeltaSLayer` around every target."""

    prefix = "delta_S"
    tuner_layer_cls = DeltaSLayer
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (peft's signature); see _prepare_adapter_config

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict[str, Any]) -> PeftConfig:
        assert isinstance(peft_config, DeltaSConfig)
        if peft_config.target_modules is None:
            peft_config.target_modules = set(default_suffixes(model_config["model_type"]))
        return peft_config

    def _create_and_replace(
        self,
        peft_config: PeftConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        assert isinstance(peft_config, DeltaSConfig)
        if isinstance(target, DeltaSLayer):
            layer = target
        else:
            layer = DeltaSLayer(target, current_key, Path(peft_config.svd_cache) if peft_config.svd_cache else None)
            self._replace_module(parent, target_name, layer, target)
        layer.add_adapter(adapter_name, inference_mode=peft_config.inference_mode)


@final
class DeltaSCoordinates(Coordinates):
    """The coordinates of a module are its delta_S, r = min(d_in, d_out)."""

    basis: Basis = "svd"

    def layer(self, module: str) -> DeltaSLayer:
        """The adapter layer of a module, typed."""
        layer = self.layers[module]
        assert isinstance(layer, DeltaSLayer)
        return layer

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """(delta_S,)."""
        return (self.layer(module).delta_S[ADAPTER],)

    @torch.no_grad()
    def sample_gradients(self, module: str, inputs: Tensor, output_gradients: Tensor) -> Tensor:
        """sum_t (U^T dL/dy_t) * (Vh x_t) -> (G, r)."""
        layer = self.layer(module)
        rotated_inputs = F.linear(inputs.to(layer.Vh.dtype), layer.Vh)  # (G, T, r)
        rotated_gradients = output_gradients.to(layer.U.dtype) @ layer.U  # (G, T, r)
        return (rotated_inputs * rotated_gradients).sum(dim=1)

    def is_zero(self) -> bool:
        """delta_S = 0 everywhere."""
        return not bool(torch.stack([parameter.any() for parameter in self.parameters()]).any())


def attach_delta_s(
    model: PreTrainedModel, targets: Sequence[str], identity: Mapping[str, Any], *, cache_dir: Path | None
) -> DeltaSCoordinates:
    """Wrap `model` with `delta_S` at 0; `cache_dir` None computes every SVD anew."""
    svd_cache = None if cache_dir is None else str(cache_dir)
    config = DeltaSConfig(task_type=TaskType.CAUSAL_LM, target_modules=list(targets), svd_cache=svd_cache)
    wrapped = wrap(model, config)
    options = {"targets": list(targets), "rank": None, "alpha": None, "init_seed": None}
    return DeltaSCoordinates(wrapped, {name: model.get_submodule(name) for name in targets}, {**identity, **options})


def register() -> None:
    """Teach peft the method `delta_S`, once.

    `register_peft_method` wants the name to be a member of the enumeration `PeftType`, which peft offers no way to
    extend; the member is therefore added as `enum` itself would add it.
    """
    name = "DELTA_S"
    member = str.__new__(PeftType, name)
    member._name_ = member._value_ = name
    setattr(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
    register_peft_method(name="delta_s", config_cls=DeltaSConfig, model_cls=DeltaSModel, prefix=DeltaSModel.prefix)


register()
