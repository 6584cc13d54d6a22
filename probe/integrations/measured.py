"""What is read of a model in a step, as {module: (r,)} in the coordinates of a direction file.

The gradient of the loss with respect to W is measured, in coordinates c(dL/dW) (`adapters.frames`;
with svd directions diag(U^T dL/dW V)). It is that of the loss, whatever is trained: a LoRA moves W along a part of it.

    a trained Linear       c(W.grad)
    LoRA, anything else    c(dL/dW) by taps (`probe.integrations.taps`), since no `.grad` holds dL/dW

With `project`, the gradient is that of the step. A descent step along -g of the parameters moves c(W) by -J g, to the
first order, and J g is measured and gated, since a step is all that a gate can change:

    a trained Linear       J g = c(G)                        G = W.grad, so that J g is what is measured without a gate
    delta_S                J g = c(U diag(G) Vh)             G its `.grad`, U and Vh those of the adapter
    LoRA, W + s B A        J g = s c(B G_A + G_B A)          G_A, G_B the `.grad` of A and B; 0 of a frozen one
    a frozen Linear        J g = 0                           it is not stepped

The gate asks for the components V J g' of the gated step, and the smallest change of g that gives them is
g' = g + R^T (R R^T)^+ (wanted - R g) with R = V J. So under one_sided the step has no hack-ward component,
V J g' = min(V J g, 0), which for a trained A and B holds as long as the step is small against A and B.

Shapes: W (d_out, d_in), A (rank, d_in), B (d_out, rank), r coordinates and k directions of a module.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from extraction.adapters.coordinates import Frame
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.frames import make_frames, target_layers
from extraction.adapters.sharded import spread_as, whole
from extraction.adapters.trained import is_plain, lora_factors
from extraction.directions import Directions
from probe.integrations.processes import Groups, meet
from probe.integrations.taps import Taps
from replay_pools.errors import InputError


class Part(ABC):
    """The trained parameters of one module, and how a step of theirs moves the coordinates of its weight."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    @property
    @abstractmethod
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those that the layer has now: a trainer may shard a model after it was given to the probe."""

    @abstractmethod
    def step(self) -> Tensor:
        """J g (r,), g what is in `.grad`."""

    @abstractmethod
    def pulled(self, v: Tensor) -> list[Tensor]:
        """J^T v, a tensor of the shape of each parameter."""

    @abstractmethod
    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """(r,) of the weight at the parameters `before`, minus that of the present ones."""

    def copies(self) -> tuple[Tensor, ...]:
        """The values of the parameters."""
        return tuple(parameter.detach().clone() for parameter in self.parameters)

    def gram(self, V: Tensor) -> Tensor:
        """V J J^T V^T (k, k) over the parameters that have a `.grad`."""
        rows = []
        for v in V:
            stepped = zip(self.parameters, self.pulled(v), strict=True)
            rows.append(torch.cat([part.flatten() for parameter, part in stepped if parameter.grad is not None]))
        R = torch.stack(rows)
        return R @ R.T

    def gate(self, V: Tensor, wanted: Tensor) -> None:
        """The smallest change of `.grad`, in place, that makes V J g what is `wanted`: V (k, r), wanted (k,).

        A parameter without `.grad` stays without: it is not stepped.
        """
        if not len(V) or all(parameter.grad is None for parameter in self.parameters):
            return
        weights = torch.linalg.pinv(self.gram(V), hermitian=True) @ (wanted - V @ self.step())
        for parameter, change in zip(self.parameters, self.pulled(weights @ V), strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(spread_as(parameter.grad, change))


class LinearPart(Part):
    """A trained weight: J = c, which is also that of the loss."""

    def __init__(self, frame: Frame, layer: nn.Linear | Conv1D) -> None:
        super().__init__(frame)
        self._layer, self._is_transposed = layer, isinstance(layer, Conv1D)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """(W,)."""
        return (cast(nn.Parameter, self._layer.weight),)

    def step(self) -> Tensor:
        """c(W.grad)."""
        (weight,) = self.parameters
        return self._coordinates(torch.zeros_like(weight) if weight.grad is None else weight.grad)

    def pulled(self, v: Tensor) -> list[Tensor]:
        """The matrix of v."""
        left, right = self.frame.factors(v)
        matrix = left @ right
        return [matrix.T if self._is_transposed else matrix]

    def gram(self, V: Tensor) -> Tensor:
        """The matrix of v has the norm of v, and matrices of orthogonal v are orthogonal."""
        return V @ V.T

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """c(W before - W)."""
        return self._coordinates(before[0].to(self.frame.dtype) - self.parameters[0].detach().to(self.frame.dtype))

    def _coordinates(self, matrix: Tensor) -> Tensor:
        matrix = whole(matrix)
        return self.frame.coordinates(matrix.T if self._is_transposed else matrix)


class DeltaSPart(Part):
    """W + U diag(delta_S) Vh with delta_S (r,) trained."""

    def __init__(self, frame: Frame, layer: DeltaSLayer, adapter: str) -> None:
        super().__init__(frame)
        self._layer, self._adapter = layer, adapter

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """(delta_S,)."""
        return (self._layer.delta_S[self._adapter],)

    def step(self) -> Tensor:
        """c(U diag(G) Vh)."""
        (delta_S,) = self.parameters
        return self._coordinates(torch.zeros_like(delta_S) if delta_S.grad is None else delta_S.grad)

    def pulled(self, v: Tensor) -> list[Tensor]:
        """diag(U^T M V), M the matrix of v."""
        (left, right), (U, Vh) = self.frame.factors(v), self._layer.frames()
        return [((U.T @ left) * (Vh @ right.T)).sum(1)]

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """c(U diag(delta_S before, minus now) Vh)."""
        return self._coordinates(before[0] - self.parameters[0].detach())

    def _coordinates(self, delta_S: Tensor) -> Tensor:
        U, Vh = self._layer.frames()
        return self.frame.coordinates(U * whole(delta_S), Vh)


class LoraPart(Part):
    """LoRA, W + s B A, with A and B trained, or one of them."""

    def __init__(self, frame: Frame, layer: LoraLayer, adapter: str) -> None:
        super().__init__(frame)
        self._layer, self._adapter, self._scale = layer, adapter, layer.scaling[adapter]

    @property
    def _factors(self) -> tuple[nn.Parameter, nn.Parameter]:
        return lora_factors(self._layer, self._adapter)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """(A, B), or one of them."""
        return tuple(factor for factor in self._factors if factor.requires_grad)

    def step(self) -> Tensor:
        """s c(B G_A + G_B A)."""
        A, B = map(whole, self._factors)
        G_A, G_B = (whole(torch.zeros_like(f) if f.grad is None else f.grad) for f in self._factors)
        return self._scale * (self.frame.coordinates(B, G_A) + self.frame.coordinates(G_B, A))

    def pulled(self, v: Tensor) -> list[Tensor]:
        """s B^T M and s M A^T, M the matrix of v; that of a frozen factor is left out."""
        left, right = self.frame.factors(v)
        A, B = (whole(factor).to(left.dtype) for factor in self._factors)
        of_both = (B.T @ left) @ right, left @ (right @ A.T)
        return [self._scale * part for part, factor in zip(of_both, self._factors, strict=True) if factor.requires_grad]

    def copies(self) -> tuple[Tensor, ...]:
        """A and B."""
        return tuple(factor.detach().clone() for factor in self._factors)

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """s c(B A) before, minus now: by parts, so that a small step is not lost in rounding."""
        (A, B), (old_A, old_B) = (factor.detach() for factor in self._factors), before
        by_B = self.frame.coordinates(whole(old_B - B), whole(old_A))
        return self._scale * (by_B + self.frame.coordinates(whole(B), whole(old_A - A)))


class MeasuredWeights:
    """The weights of a model in the coordinates of a direction file.

    Args:
        where: the direction file, for messages.
        model: any model; adapters of peft may lie around its layers.
        directions: with the fingerprint of their basis.
        project: measure and gate the step; otherwise the gradient of the loss is measured.
        cache_dir: folder of the SVD cache; None computes without one.
        scaler: what scales the loss (`Taps`).

    Raises:
        InputError: directions of other weights; with `project`, a model whose steps along them are not defined.
    """

    def __init__(
        self,
        where: str,
        model: nn.Module,
        directions: Directions,
        *,
        project: bool,
        cache_dir: Path | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        fingerprint = directions.metadata["fingerprint"]
        layers = target_layers(model, fingerprint["targets"])
        # Watched where the weight itself is used: an adapter other than LoRA changes what goes in or comes out.
        frozen = {} if project else {m: base for m, layer in layers.items() if (base := _frozen(layer)) is not None}
        self._frames = make_frames(where, layers, fingerprint, cache_dir, frozen=frozen)
        self._parts: dict[str, Part] = {}
        unknown = {}
        for module, layer in layers.items():
            part = _part(self._frames[module], layer)
            if part is not None:
                self._parts[module] = part
            elif isinstance(layer, BaseTunerLayer) and _is_trained(layer):
                unknown[module] = type(layer).__name__
        self._is_known = not unknown
        if project:
            _check_steps(self._parts, unknown)
        watched = {module: frozen.get(module, layer) for module, layer in layers.items()}
        tapped = {m: layer for m, layer in watched.items() if not isinstance(self._parts.get(m), LinearPart)}
        self._taps = Taps(tapped, self._frames, scaler) if tapped and not project else None
        self.sizes = {module: frame.size for module, frame in self._frames.items()}
        self.device = next(next(iter(layers.values())).parameters()).device
        self._vectors = {module: V.to(self.device) for module, V in directions.vectors.items()}

    def stepped(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """{module: trained weight or LoRA factors}."""
        return {module: part.parameters for module, part in self._parts.items()}

    @property
    def unseen(self) -> list[str]:
        """Modules that the last `gradients` do not know, as in `Taps`."""
        return [] if self._taps is None else self._taps.unseen

    def gradients(self, loss_scale: float = 1.0) -> dict[str, Tensor]:
        """That of the loss, c(dL/dW), or with `project` that of the step, J g."""
        tapped = {} if self._taps is None else self._taps.gradients(loss_scale)
        gradients = {}
        for module, frame in self._frames.items():
            if module in tapped:
                gradients[module] = tapped[module]
            elif module in self._parts:
                gradients[module] = self._parts[module].step()
            else:
                gradients[module] = torch.zeros(frame.size, dtype=frame.dtype, device=self.device)
        return gradients

    def replace_gradients(self, gated: Mapping[str, Tensor]) -> None:
        """Change `.grad` as little as gives the step the components of `gated` along the directions."""
        for module, part in self._parts.items():
            V = self._vectors[module].to(part.frame.dtype)
            part.gate(V, V @ gated[module])

    def remember(self) -> None:
        """The trained parameters; of a trained weight that is a second copy while the optimizer steps."""
        self._before = {module: part.copies() for module, part in self._parts.items()}

    def update(self) -> dict[str, Tensor] | None:
        """{module: (r,)}, weights before minus after; None where an adapter is trained that is not plain LoRA."""
        before, self._before = self._before, {}
        if self._taps is not None:
            self._taps.stepped()
        if not self._is_known:
            return None
        update = {}
        for module, frame in self._frames.items():
            if module in self._parts:
                update[module] = self._parts[module].moved(before[module])
            else:
                update[module] = torch.zeros(frame.size, dtype=frame.dtype, device=self.device)
        return update

    def start(self, witness: nn.Parameter, groups: Groups | None) -> None:
        """Begin to watch forwards and backwards, as `Taps.start`.

        Raises:
            InputError: taps are needed, and no groups are known (None), or not all of their processes are here.
        """
        if self._taps is not None:
            self._taps.start(witness, meet(groups))

    def stop(self) -> None:
        """Remove them."""
        if self._taps is not None:
            self._taps.stop()


def _part(frame: Frame, layer: nn.Module) -> Part | None:
    """What is trained of a layer, where steps of it are defined."""
    if isinstance(layer, nn.Linear | Conv1D):
        return LinearPart(frame, layer) if layer.weight.requires_grad else None
    if isinstance(layer, DeltaSLayer) and len(layer.active_adapters) == 1 and _is_trained(layer):
        return DeltaSPart(frame, layer, layer.active_adapters[0])
    if isinstance(layer, LoraLayer) and is_plain(layer) and not layer.get_base_layer().weight.requires_grad:
        active = [name for name in layer.active_adapters if name in layer.lora_A]
        if len(active) == 1 and _is_trained(layer):
            return LoraPart(frame, layer, active[0])
    return None


def _frozen(layer: nn.Module) -> nn.Module | None:
    """The layer that multiplies with a frozen weight, from whose input and output alone the rest of `layer` follows."""
    if isinstance(layer, DeltaSLayer) or (isinstance(layer, LoraLayer) and is_plain(layer)):
        layer = layer.get_base_layer()
    is_linear = isinstance(layer, nn.Linear | Conv1D)
    return layer if is_linear and not layer.weight.requires_grad else None


def _is_trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters())


def _check_steps(parts: Mapping[str, Part], unknown: Mapping[str, Any]) -> None:
    """InputError unless a gate is defined on what is trained."""
    works = "train the weights, LoRA or delta_S to project; without project=True any model is measured"
    if unknown:
        module, kind = next(iter(unknown.items()))
        raise InputError(f"project: module {module}", expected="plain LoRA", found=kind, fix=works)
    if not parts:
        raise InputError(
            "project", expected="something trained in the modules of the directions", found="nothing", fix=works
        )
