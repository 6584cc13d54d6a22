"""`delta_S`: an adapter that trains the singular values of the frozen weights. A PEFT method (AntiPaSTO).

    model = get_peft_model(model, DeltaSConfig(svd_cache="out/cache/svd"))

    W = U diag(S) Vh                          reduced SVD, r = min(d_in, d_out)
    y = W x + U diag(delta_S) Vh x            delta_S (r,), 0 at the start
    dL/d delta_S = sum_t (U^T dL/dy_t) * (Vh x_t)

Truncated to `rank` R, U and Vh are those of the R largest singular values and r = R; W stays whole.
Identity at delta_S = 0: the adapter adds exactly 0, so the output is the base model's bit for bit.

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

from extraction.adapters.sharded import whole
from extraction.adapters.svd import Factors, both_factors, digest_all, factorise_all
from extraction.adapters.targets import default_suffixes, weight_matrix
from replay_pools.errors import InputError

ADAPTER = "default"
CUT_OFF = 0xFFFF  # the bits of a float32 that bfloat16 does not have
R2 = (49471, 37345)  # 2^16 / g and 2^16 / g^2 with g^3 = g + 1: steps of a sequence that fills the square evenly


@dataclass
class DeltaSConfig(PeftConfig):
    """Configuration of a `delta_S` adapter.

    Args:
        target_modules: suffixes or dotted paths of the Linears; None takes the defaults of the architecture.
        rank: how many of the largest singular triplets of each module; None is all of them.
        svd_cache: folder of cached factors; None computes without a cache. A property of the machine, so never saved.

    Raises InputError for a rank below 1.
    """

    target_modules: list[str] | set[str] | str | None = field(default=None)
    rank: int | None = field(default=None)
    svd_cache: str | None = field(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("DELTA_S")
        # {module: factors} that need not be computed. No field: peft would copy and save it.
        self.factors: Mapping[str, Factors] = {}
        if self.rank is not None and self.rank < 1:
            raise InputError("rank of delta_S", expected="at least 1", found=str(self.rank))

    def to_dict(self) -> dict[str, Any]:
        """What is saved with an adapter: every option but the folder of the cache."""
        return {name: value for name, value in super().to_dict().items() if name != "svd_cache"}


class DeltaSLayer(nn.Module, BaseTunerLayer):
    """One adapted Linear or Conv1D. A layer may carry several adapters by name, which share U, S and Vh."""

    adapter_layer_names = ("delta_S",)  # peft: attributes that hold a parameter per adapter

    U: Tensor | None  # None: follows from the other factor and W (extraction.adapters.svd), as Vh
    S: Tensor
    Vh: Tensor | None
    unmerged_weight: Tensor | None  # the base weight while adapters are merged into it

    def __init__(self, base_layer: nn.Module, name: str) -> None:
        """A layer without factors: `set_factors` follows, since a model factorises all of its layers together."""
        super().__init__()
        self.base_layer = base_layer
        self.name = name
        self.merged_adapters: list[str] = []
        # Buffers move with the model; not persistent, so that a checkpoint does not hold them.
        for buffer in ("U", "S", "Vh", "unmerged_weight"):
            self.register_buffer(buffer, None, persistent=False)
        self.delta_S = nn.ParameterDict()

    def add_adapter(self, adapter_name: str, *, rank: int | None, inference_mode: bool) -> None:
        """Add an adapter at delta_S = 0."""
        weight = weight_matrix(self.base_layer, self.name)
        full_rank = min(weight.shape)
        r = full_rank if rank is None else min(rank, full_rank)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.delta_S[adapter_name] = nn.Parameter(torch.zeros(r, dtype=dtype, device=weight.device))
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def base_weight(self) -> Tensor:
        """W (d_out, d_in), without any adapter that may be merged into it; gathered from all ranks if sharded."""
        if self.unmerged_weight is None:
            return whole(weight_matrix(self.base_layer, self.name))
        return self.unmerged_weight.T if isinstance(self.base_layer, Conv1D) else self.unmerged_weight

    def frames(self) -> tuple[Tensor, Tensor]:
        """U and Vh; a factor that is not stored is computed from the other and W."""
        return both_factors(Factors(self.U, self.S, self.Vh), self.base_weight())

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """y = W x + sum over active adapters of U diag(delta_S) Vh x, the second term in the dtype of delta_S."""
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
        """U diag(delta_S) Vh x, with U = W V S^-1 or Vh = S^-1 U^T W put in for a factor that is not stored."""
        U, Vh = self.U, self.Vh
        if U is not None and Vh is not None:
            return F.linear(F.linear(x, Vh) * delta_S, U)
        weight = self.base_weight().to(self.S.dtype)
        if Vh is not None:
            # W V diag(delta_S / S) Vh x
            return F.linear(F.linear(F.linear(x, Vh) * (delta_S / self.S), Vh.T), weight)
        assert U is not None
        # U diag(delta_S / S) U^T W x
        return F.linear(F.linear(F.linear(x, weight), U.T) * (delta_S / self.S), U)

    def delta_weight(self, adapter_name: str) -> Tensor:
        """U diag(delta_S) Vh in the layout and the dtype of the base weight."""
        W, delta_S = self.base_weight(), self.delta_S[adapter_name].detach()
        if self.U is not None and self.Vh is not None:
            change = (self.U * delta_S).to(W.dtype) @ self.Vh.to(W.dtype)
        elif self.Vh is not None:
            Vh = self.Vh.to(W.dtype)
            change = ((W @ Vh.T) * (delta_S / self.S)).to(W.dtype) @ Vh  # W V diag(delta_S / S) Vh
        else:
            assert self.U is not None
            change = (self.U * (delta_S / self.S)).to(W.dtype) @ (self.U.to(W.dtype).T @ W)
        return change.T if isinstance(self.base_layer, Conv1D) else change

    @torch.no_grad()
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the adapters to the base weight; the old weight is kept, so that `unmerge` restores it bit for bit.

        A bfloat16 weight takes the sum `dithered`, so that the merged model follows a small delta_S on average.
        """
        weight = self.weight
        for name in check_adapters_to_merge(self, adapter_names):
            if name not in self.delta_S:
                continue
            total = self.delta_weight(name).to(self.S.dtype).add_(weight.data)
            if safe_merge and not torch.isfinite(total).all():
                raise ValueError(f"adapter {name!r} has values that are not finite: it cannot be merged")
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
        """`.to()`, `.half()`, ...: the adapter changes device with the base layer, but never loses precision."""

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= tensor.dtype.itemsize else tensor.to(moved.device)

        # First with the plain `fn`: in the recursion below, `keep_precision` would hold the base layer back as well.
        self.base_layer._apply(fn, recurse)
        return super()._apply(keep_precision, recurse)

    def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: torch.device | None = None) -> None:
        """peft's version also casts to the dtype of the base layer, which would round delta_S."""
        self.delta_S[adapter_name] = self.delta_S[adapter_name].to(device or self.weight.device)


def dithered(matrix: Tensor) -> Tensor:
    """A float32 `matrix` in bfloat16, where an entry is rounded up if its cut-off bits exceed its own threshold.

    Rounded to the nearest, W + D is W itself wherever D is below half of W's last bit, as in the first steps of a
    training: after four steps at lr 7e-5 the log-probabilities had moved by a third of what they should; so, by all of
    it. The thresholds are even over the matrix (the R2 sequence) and always the same: nothing is drawn, a policy that
    has moved little is rounded alike, and what bfloat16 holds exactly stays as it is.
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
        """peft's own, then the factors of all new layers at once, which is where SVDs run in parallel."""
        super().inject_adapter(model, *args, **kwargs)
        new_layers = [layer for layer in model.modules() if isinstance(layer, DeltaSLayer) and layer.S is None]
        # Any adapter's configuration will do: `_check_new_adapter_config` has seen that they agree.
        config = next(iter(self.peft_config.values()))
        assert isinstance(config, DeltaSConfig)
        factors, config.factors = config.factors, {}
        if not factors:
            weights: dict[str, Tensor] = {layer.name: layer.base_weight() for layer in new_layers}
            cache_dir = Path(config.svd_cache) if config.svd_cache else None
            factors = factorise_all(weights, digest_all(weights), cache_dir, rank=config.rank)
        for layer in new_layers:
            layer.U, layer.S, layer.Vh = factors[layer.name]

    def _check_new_adapter_config(self, config: PeftConfig) -> None:
        super()._check_new_adapter_config(config)
        assert isinstance(config, DeltaSConfig)
        for name, existing in self.peft_config.items():
            assert isinstance(existing, DeltaSConfig)
            if existing.rank != config.rank:
                expected = f"rank {existing.rank} of adapter {name!r}"
                raise ValueError(f"the factors are shared: expected {expected}, found rank {config.rank}")

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
            layer = DeltaSLayer(target, current_key)
            self._replace_module(parent, target_name, layer, target)
        layer.add_adapter(adapter_name, rank=peft_config.rank, inference_mode=peft_config.inference_mode)


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
