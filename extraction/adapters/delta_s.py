"""`delta_S`: an adapter that trains the singular values of the frozen weights. A PEFT method (AntiPaSTO).

    model = get_peft_model(model, DeltaSConfig(svd_cache="out/cache/svd"))

    W = U diag(S) Vh                          reduced SVD: all triplets, or the `num_triplets` largest
    y = W x + U diag(delta_S) Vh x            delta_S (r,), 0 at the start: then y = W x bit for bit
    dL/d delta_S = sum_t (U^T dL/dy_t) * (Vh x_t)

Shapes: T tokens, r coordinates of a module; U (d_out, r), Vh (r, d_in).
delta_S, S, U and Vh are float32 (float64 in a float64 model) whatever the model's dtype.
Only delta_S is saved: the factors follow from the base weights and are recomputed, or read from the SVD cache.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, check_adapters_to_merge
from peft.utils import PeftType, register_peft_method
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from extraction.adapters.svd import Factors, both_factors, digest_all, factorise_all
from extraction.adapters.targets import suffixes_of, weight_matrix, whole

ADAPTER = "default"
CUT_OFF = 0xFFFF  # the bits of a float32 that bfloat16 does not have
R2 = (49471, 37345)  # 2^16 / g and 2^16 / g^2 with g^3 = g + 1: steps of a sequence that fills the square evenly


@dataclass
class DeltaSConfig(PeftConfig):
    """Configuration of a `delta_S` adapter.

    Args:
        target_modules: suffixes or dotted paths of the Linears; None takes the defaults of the architecture.
        num_triplets: keep this many of the largest singular triplets of each module, the same in all adapters of a
            model; None keeps all.
        svd_cache: folder of cached factors; None computes without a cache. A property of the machine, so never saved.
    """

    target_modules: list[str] | set[str] | str | None = field(default=None)
    num_triplets: int | None = field(default=None)
    svd_cache: str | None = field(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("DELTA_S")
        # {module: factors} that need not be computed. No field: peft would copy and save it.
        self.factors: Mapping[str, Factors] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return the options that are saved with an adapter: all but the folder of the cache."""
        return {name: value for name, value in super().to_dict().items() if name != "svd_cache"}


class DeltaSLayer(nn.Module, BaseTunerLayer):
    """One adapted Linear or Conv1D; several adapters on it share U, S and Vh."""

    adapter_layer_names = ("delta_S",)  # peft: attributes that hold a parameter per adapter

    U: Tensor | None  # None: follows from the other factor and W (extraction.adapters.svd), as Vh
    S: Tensor
    Vh: Tensor | None
    unmerged_weight: Tensor | None  # the base weight while adapters are merged into it

    def __init__(self, base_layer: nn.Module, name: str) -> None:
        """Make a layer without factors: `DeltaSModel.inject_adapter` factorises all layers together."""
        super().__init__()
        self.base_layer = base_layer
        self.name = name
        self.merged_adapters: list[str] = []
        # Buffers move with the model; not persistent, so that a checkpoint does not hold them.
        for buffer in ("U", "S", "Vh", "unmerged_weight"):
            self.register_buffer(buffer, None, persistent=False)
        self.delta_S = nn.ParameterDict()

    def add_adapter(self, adapter_name: str, *, num_triplets: int | None, inference_mode: bool) -> None:
        """Add an adapter at delta_S = 0."""
        weight = weight_matrix(self.base_layer, self.name)
        r = min(*weight.shape, num_triplets or min(weight.shape))
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.delta_S[adapter_name] = nn.Parameter(torch.zeros(r, dtype=dtype, device=weight.device))
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def base_weight(self) -> Tensor:
        """Return W (d_out, d_in) without any adapter that may be merged into it; gathered from all ranks if sharded."""
        if self.unmerged_weight is None:
            return whole(weight_matrix(self.base_layer, self.name))
        return self.unmerged_weight.T if isinstance(self.base_layer, Conv1D) else self.unmerged_weight

    @property
    def factors(self) -> Factors:
        """The factors that are stored, which all adapters of the layer share."""
        return Factors(self.U, self.S, self.Vh)

    def frames(self) -> tuple[Tensor, Tensor]:
        """Return U and Vh; a factor that is not stored is computed from the other and W."""
        return both_factors(self.factors, self.base_weight())

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return W x + sum over active adapters of U diag(delta_S) Vh x, the second term in the dtype of delta_S."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        y = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return y
        for name in self.active_adapters:
            if name in self.delta_S:
                y = y + self.change(x.to(self.S.dtype), self.delta_S[name]).to(y.dtype)
        return y

    def change(self, x: Tensor, delta_S: Tensor) -> Tensor:
        """Return U diag(delta_S) Vh x; a factor that is not stored is U = W V S^-1 or Vh = S^-1 U^T W."""
        left, right = self.factors.turns
        if self.factors.is_whole:
            return F.linear(F.linear(x, right) * delta_S, left.T)
        weight, scale = self.base_weight().to(self.S.dtype), delta_S / self.S
        if self.U is None:
            return F.linear(F.linear(F.linear(x, right) * scale, right.T), weight)
        return F.linear(F.linear(F.linear(x, weight), left) * scale, left.T)

    def delta_weight(self, adapter_name: str) -> Tensor:
        """Return U diag(delta_S) Vh in the layout and the dtype of the base weight; missing factors as in `change`."""
        W, scale, (left, right) = self.base_weight(), self.delta_S[adapter_name].detach(), self.factors.turns
        if not self.factors.is_whole:
            scale = scale / self.S
        left = W @ left.to(W.dtype).T if self.U is None else left.T
        right = right.to(W.dtype) @ W if self.Vh is None else right
        change = (left * scale).to(W.dtype) @ right.to(W.dtype)
        return change.T if isinstance(self.base_layer, Conv1D) else change

    @torch.no_grad()
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the adapters to the base weight, `dithered` in bfloat16; `unmerge` restores the weight bit for bit."""
        weight = self.weight
        for name in check_adapters_to_merge(self, adapter_names):
            if name not in self.delta_S:
                continue
            total = self.delta_weight(name).to(self.S.dtype).add_(weight.data)
            if self.unmerged_weight is None:
                self.unmerged_weight = weight.data
            weight.data = dithered(total) if weight.dtype == torch.bfloat16 else total.to(weight.dtype)
            self.merged_adapters.append(name)

    def unmerge(self) -> None:
        """Restore the base weight from before `merge`."""
        if self.unmerged_weight is None:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        weight = self.weight
        weight.data = self.unmerged_weight.to(weight.dtype)
        self.unmerged_weight = None
        self.merged_adapters.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the adapter with the base layer in `.to()`, `.half()`, ...; it never loses precision."""

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= tensor.dtype.itemsize else tensor.to(moved.device)

        # First with the plain `fn`: in the recursion below, `keep_precision` would hold the base layer back as well.
        self.base_layer._apply(fn, recurse)
        return super()._apply(keep_precision, recurse)

    def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: torch.device | None = None) -> None:
        """Move without a cast: peft's version also casts to the dtype of the base layer, which would round delta_S."""
        self.delta_S[adapter_name] = self.delta_S[adapter_name].to(device or self.weight.device)


def dithered(matrix: Tensor) -> Tensor:
    """Return a float32 matrix in bfloat16; an entry is rounded up if its cut-off bits exceed the entry's threshold.

    Rounding to the nearest would drop a change below half of W's last bit: after four steps at lr 7e-5 the
    log-probabilities had moved by a third of what they should; with thresholds, by all of it. The thresholds are even
    over the matrix (the R2 sequence) and constant: nothing is drawn, and a value that bfloat16 holds stays the same.
    """
    rows, columns = (torch.arange(size, dtype=torch.int32, device=matrix.device) for size in matrix.shape)
    thresholds = (rows[:, None] * R2[0] + columns * R2[1]) & CUT_OFF
    bits = matrix.contiguous().view(torch.int32)
    return ((bits + thresholds) & ~CUT_OFF).view(torch.float32).bfloat16()


class DeltaSModel(BaseTuner):
    """The peft tuner that puts a `DeltaSLayer` around every target."""

    prefix = "delta_S"
    tuner_layer_cls = DeltaSLayer
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (peft's signature); see _prepare_adapter_config

    def inject_adapter(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Inject as peft does, then make the factors of all new layers at once: the SVDs run in parallel."""
        super().inject_adapter(model, *args, **kwargs)
        new_layers = [layer for layer in model.modules() if isinstance(layer, DeltaSLayer) and layer.S is None]
        config = next(iter(self.peft_config.values()))
        assert isinstance(config, DeltaSConfig)
        factors, config.factors = config.factors, {}
        if not factors:
            weights: dict[str, Tensor] = {layer.name: layer.base_weight() for layer in new_layers}
            cache_dir = Path(config.svd_cache) if config.svd_cache else None
            factors = factorise_all(weights, digest_all(weights), cache_dir, rank=config.num_triplets)
        for layer in new_layers:
            layer.U, layer.S, layer.Vh = factors[layer.name]

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict[str, Any]) -> PeftConfig:
        assert isinstance(peft_config, DeltaSConfig)
        if peft_config.target_modules is None:
            peft_config.target_modules = set(suffixes_of(model_config["model_type"]))
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
            layer = DeltaSLayer(target, current_key)
            self._replace_module(parent, target_name, layer, target)
        layer.add_adapter(
            adapter_name, num_triplets=peft_config.num_triplets, inference_mode=peft_config.inference_mode
        )


def register() -> None:
    """Teach peft the method `delta_S`, once.

    `register_peft_method` needs a member of the enumeration `PeftType`, which is added as `enum` itself would add it.
    """
    name = "DELTA_S"
    member = str.__new__(PeftType, name)
    member._name_ = member._value_ = name
    setattr(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
    register_peft_method(name="delta_s", config_cls=DeltaSConfig, model_cls=DeltaSModel, prefix=DeltaSModel.prefix)


register()
