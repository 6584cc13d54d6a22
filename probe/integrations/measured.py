"""The gradient that is measured in a step, as {module: (r,)} in the coordinates of a direction file.

Without `project` it is the gradient of the loss with respect to the weight W of every module, in coordinates c(dL/dW)
(`adapters.frames`; with svd directions diag(U^T dL/dW V)), whatever is trained:

    a trained Linear       c(W.grad)
    a trained delta_S      its `.grad`, which is c(dL/dW)
    anything else          c(dL/dW) by taps on the Linear below all adapters (`probe.integrations.taps`)

With `project` it is the gradient of the step. A descent step along -g of the parameters moves c(W) by -J g to first
order, and J g is measured and projected, since a step is all that a projection can change:

    a trained Linear       J g = c(G)                        G = W.grad, so J g is also the gradient of the loss
    a trained delta_S      J g = G                           likewise
    LoRA, W + s B A        J g = s c(B G_A + G_B A)          G_A, G_B the `.grad` of A and B; 0 for a frozen one
    a frozen Linear        J g = 0                           no step moves it

The projection asks for the components V J g' of the step, and the smallest change of g that gives them is
g' = g + R^T (R R^T)^+ (wanted - R g) with R = V J. So under one_sided a small step of SGD at one learning rate has no
component toward the hack, V J g' = min(V J g, 0).

Shapes: W (d_out, d_in), A (rank, d_in), B (d_out, rank), r coordinates and k directions of a module.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from extraction.adapters.coordinates import Frame, SvdFrame
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.frames import base_layer, check_adapters, make_frames, target_layers
from extraction.adapters.sharded import spread_as, whole
from extraction.adapters.targets import is_quantised
from extraction.adapters.trained import is_plain, lora_factors
from extraction.directions import Directions
from probe.integrations.processes import Groups, meet
from probe.integrations.taps import Taps
from replay_pools.errors import InputError

MAX_ROUNDING = 1e-2  # relative change of a frozen weight in a step that merging and unmerging may leave in bfloat16
MOST_NAMED = 3
TRAIN = "train the weights, LoRA or delta_S"
REPLACED_FIX = "attach after fully_shard or accelerator.prepare, to the optimizer that trains"
BY_HAND = "`.grad` is not the sum of the backwards: combined, clipped by value or changed by hand"
Stepped = Mapping[int, nn.Parameter]  # the parameters of an optimizer by identity: == compares values


class Part(ABC):
    """The trained parameters of one module, and how their step moves the coordinates of its weight.

    Attributes:
        parameters: the parameters that the optimizer steps.
        is_of_loss: J g is the gradient of the loss, too.
    """

    is_of_loss = False

    def __init__(self, frame: Frame, parameters: Sequence[nn.Parameter]) -> None:
        self.frame, self.parameters = frame, tuple(parameters)

    @abstractmethod
    def step(self) -> Tensor:
        """Return J g (r,), with g in `.grad`."""

    @abstractmethod
    def pulled(self, v: Tensor) -> list[Tensor]:
        """Return J^T v, a tensor in the shape of each parameter."""

    @abstractmethod
    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """Return (r,) of the weight at the parameters `before`, minus (r,) of the present weight."""

    def copies(self) -> tuple[Tensor, ...]:
        """Return the values of the parameters; none where no optimizer moves them, which skips a `.grad` of None."""
        if all(parameter.grad is None for parameter in self.parameters):
            return ()
        return tuple(parameter.detach().clone() for parameter in self.parameters)

    def gram(self, V: Tensor) -> Tensor:
        """Return V J J^T V^T (k, k) over the parameters that have a `.grad`."""
        rows = []
        for v in V:
            stepped = zip(self.parameters, self.pulled(v), strict=True)
            rows.append(torch.cat([part.flatten() for parameter, part in stepped if parameter.grad is not None]))
        R = torch.stack(rows)
        return R @ R.T

    def project(self, V: Tensor, wanted: Tensor) -> None:
        """Make the smallest change of `.grad`, in place, for V J g to be `wanted`: V (k, r), wanted (k,).

        A parameter without `.grad` stays without: no optimizer steps it.
        """
        if not len(V) or all(parameter.grad is None for parameter in self.parameters):
            return
        weights = torch.linalg.pinv(self.gram(V), hermitian=True) @ (wanted - V @ self.step())
        for parameter, change in zip(self.parameters, self.pulled(weights @ V), strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(spread_as(parameter.grad, change))


class LinearPart(Part):
    """A trained weight: J = c."""

    def __init__(self, frame: Frame, layer: nn.Linear | Conv1D) -> None:
        weight = cast(nn.Parameter, layer.weight)
        super().__init__(frame, [weight])
        self.is_of_loss, self._is_transposed = weight.requires_grad, isinstance(layer, Conv1D)

    def step(self) -> Tensor:
        """Return c(W.grad)."""
        (weight,) = self.parameters
        return self._coordinates(torch.zeros_like(weight) if weight.grad is None else weight.grad)

    def pulled(self, v: Tensor) -> list[Tensor]:
        """Return the matrix of v."""
        left, right = self.frame.factors(v)
        matrix = left @ right
        return [matrix.T if self._is_transposed else matrix]

    def gram(self, V: Tensor) -> Tensor:
        """Return V V^T: the map from v to its matrix keeps inner products."""
        return V @ V.T

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """Return c(W before - W)."""
        return self._coordinates(before[0].to(self.frame.dtype) - self.parameters[0].detach().to(self.frame.dtype))

    def _coordinates(self, matrix: Tensor) -> Tensor:
        matrix = whole(matrix)
        return self.frame.coordinates(matrix.T if self._is_transposed else matrix)


class DeltaSPart(Part):
    """A trained delta_S in the frame of the directions: J = 1."""

    def __init__(self, frame: Frame, delta_S: nn.Parameter) -> None:
        super().__init__(frame, [delta_S])
        self.is_of_loss = delta_S.requires_grad

    def step(self) -> Tensor:
        """Return the gradient."""
        (delta_S,) = self.parameters
        return whole(torch.zeros_like(delta_S) if delta_S.grad is None else delta_S.grad)

    def pulled(self, v: Tensor) -> list[Tensor]:
        """Return v."""
        return [v]

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """Return delta_S before, minus now."""
        return whole(before[0] - self.parameters[0].detach())


class LoraPart(Part):
    """LoRA, W + s B A, with A and B trained, or one of them."""

    def __init__(self, frame: Frame, layer: LoraLayer, adapter: str, stepped: Stepped) -> None:
        self._factors = lora_factors(layer, adapter)
        self._is_stepped = [_is_trained(factor, stepped) for factor in self._factors]
        super().__init__(frame, self._of_stepped(self._factors))
        self._layer, self._adapter = layer, adapter

    @property
    def _scale(self) -> float:
        """The present scale, which a loop may change."""
        return self._layer.scaling[self._adapter]

    def _of_stepped(self, of_both: Sequence) -> list:
        return [one for one, is_stepped in zip(of_both, self._is_stepped, strict=True) if is_stepped]

    def step(self) -> Tensor:
        """Return s c(B G_A + G_B A)."""
        A, B = map(whole, self._factors)
        G_A, G_B = (whole(torch.zeros_like(f) if f.grad is None else f.grad) for f in self._factors)
        return self._scale * (self.frame.coordinates(B, G_A) + self.frame.coordinates(G_B, A))

    def pulled(self, v: Tensor) -> list[Tensor]:
        """Return s B^T M and s M A^T with M the matrix of v, without the one for a factor that is not stepped."""
        left, right = self.frame.factors(v)
        A, B = (whole(factor).to(left.dtype) for factor in self._factors)
        of_both = (B.T @ left) @ right, left @ (right @ A.T)
        return [self._scale * part for part in self._of_stepped(of_both)]

    def copies(self) -> tuple[Tensor, ...]:
        """Return A and B."""
        return tuple(factor.detach().clone() for factor in self._factors) if super().copies() else ()

    def moved(self, before: tuple[Tensor, ...]) -> Tensor:
        """Return s c(B A) before, minus now: by parts, so that a small step is not lost in rounding."""
        (A, B), (old_A, old_B) = (factor.detach() for factor in self._factors), before
        by_B = self.frame.coordinates(whole(old_B - B), whole(old_A))
        return self._scale * (by_B + self.frame.coordinates(whole(B), whole(old_A - A)))


class Measured:
    """A model in the coordinates of a direction file, with what the optimizer steps of it at present.

    Args:
        where: the direction file, for messages.
        model: any model; adapters of peft may lie around its layers.
        directions: with the fingerprint of their basis.
        project: measure and project the step; otherwise the gradient of the loss is measured.
        cache_dir: folder of the SVD cache; None computes without one.
        scaler: scales the loss (`Taps`).

    Attributes:
        sizes: {module: r}.
        device: of the gradients.

    Raises:
        InputError: directions of other weights; an adapter that taps cannot read (`check_adapters`); with `project`, a
            model whose steps along the directions are not defined.
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
        self._model, self._targets = model, fingerprint["targets"]
        self._project, self._scaler = project, scaler
        layers = target_layers(model, self._targets)
        bases = {module: base_layer(layer) for module, layer in layers.items()}
        frozen = [m for m, base in bases.items() if not project and not any(p.requires_grad for p in base.parameters())]
        self._frames = dict(make_frames(where, layers, fingerprint, cache_dir, frozen=frozen))
        self.sizes = {module: frame.size for module, frame in self._frames.items()}
        self.device = _weight(next(iter(bases.values()))).device
        self._vectors = {module: V.to(self.device) for module, V in directions.vectors.items()}
        self._frozen: dict[str, tuple[Tensor, Tensor]] = {}  # {module: (weight, its sketch at the last step)}
        self._changed: dict[str, None] = {}  # modules with a frozen weight that changed, in order
        self._taps: Taps | None = None
        self._witness: nn.Parameter | None = None
        self._build(layers, {})
        if project and not self._parts:
            found, fix = "nothing", f"{TRAIN} to project; without project=True any model is measured"
            raise InputError("project", expected="something trained in the modules", found=found, fix=fix)

    def start(self, stepped: Stepped, groups: Groups | None) -> None:
        """Take what the optimizer steps, and begin to watch the model.

        Args:
            stepped: the parameters of the optimizer.
            groups: over which the trainer averages gradients (`averaging_groups`).

        Raises:
            InputError: the optimizer leaves out a trained parameter of a module, or steps none of the model; taps are
                needed, and no groups are known (None), or not all of their processes are here.
        """
        self._groups, self._has_met = groups, False
        self._build(target_layers(self._model, self._targets), stepped)
        self._check_stepped(stepped)
        self._restart_taps()

    def stop(self) -> None:
        """Stop watching the model."""
        if self._taps is not None:
            self._taps.stop()
        self._taps = None

    @torch.no_grad()
    def refresh(self, stepped: Stepped) -> bool:
        """Compare the model and the optimizer with the last step, and take them as they are now.

        Returns:
            True where the trained parameters or the adapters differ.

        Raises:
            InputError: the optimizer leaves out a trained parameter of a module, or steps none of the model.
        """
        self._once = None
        layers = target_layers(self._model, self._targets)
        self._compare_frozen(layers)
        has_changed = _state(layers, stepped) != self._state
        if has_changed:
            tapped, witness = set(self._tapped), self._witness
            try:
                self._build(layers, stepped)
            except InputError as error:
                self._refusal = f"{error.where}: found {error.found}"
            # Hooks of the last step do not know what is watched from now on; `update` replaces them.
            self._is_stale = True
            if set(self._tapped) - tapped or (self._tapped and witness is not self._witness):
                self._once = "the trained parameters or adapters changed since the last step, and taps start again"
        self._check_stepped(stepped)
        return has_changed

    def gradients(self, loss_scale: float = 1.0) -> dict[str, Tensor]:
        """Return {module: (r,)} of the loss, c(dL/dW), or with `project` of the step, J g; 0 where nothing is known.

        Args:
            loss_scale: the factor on every `.grad`.
        """
        tapped = self._taps.gradients(loss_scale) if self._tapped and self._taps is not None else {}
        gradients = {}
        for module, frame in self._frames.items():
            if module in self._tapped:
                gradients[module] = tapped.get(module, self._zeros(frame))
            elif module in self._parts:
                gradients[module] = self._parts[module].step()
            else:
                gradients[module] = self._zeros(frame)
        return gradients

    @property
    def reason(self) -> str | None:
        """Why the last `gradients` are no measurement; None where they are."""
        if self._changed:
            return f"the frozen weight changed since attach (a merged adapter?) in {named(self._changed, self.sizes)}"
        if self._refusal or self._once:
            return self._refusal or self._once
        if not self._tapped or self._taps is None:
            return None
        if self._taps.unseen:
            return f"no backward came through {named(self._taps.unseen, self.sizes)}"
        return BY_HAND if self._taps.is_by_hand else None

    def project(self, projected: Mapping[str, Tensor]) -> None:
        """Change `.grad` as little as gives the step the components of `projected` along the directions."""
        for module, part in self._parts.items():
            V = self._vectors[module].to(part.frame.dtype)
            part.project(V, V @ projected[module])

    def remember(self) -> None:
        """Copy the parameters that the optimizer is about to step; for trained weights that is a second copy."""
        self._before = {module: part.copies() for module, part in self._parts.items()}

    def update(self) -> dict[str, Tensor] | None:
        """Return {module: (r,)}, weights before minus after the step.

        None where an adapter is trained whose steps are not defined, or the weights are not those of the directions.
        """
        before, self._before = self._before, {}
        if self._taps is not None:
            self._taps.stepped()
        if self._is_stale:
            self._restart_taps()
        if self._unknown or self._changed or self._refusal:
            return None
        update = {}
        for module, frame in self._frames.items():
            has_moved = before.get(module, ()) != ()
            update[module] = self._parts[module].moved(before[module]) if has_moved else self._zeros(frame)
        return update

    def is_moved_by(self, stepped: Stepped) -> bool:
        """Return whether an optimizer with these parameters moves a module."""
        parameters = [p for part in self._parts.values() for p in part.parameters]
        return any(id(parameter) in stepped and parameter.grad is not None for parameter in parameters)

    def _build(self, layers: Mapping[str, nn.Module], stepped: Stepped) -> None:
        """Make the parts of what is trained now; InputError where a projection or a tap is not defined."""
        self._state = _state(layers, stepped)
        self._alive = [parameter for layer in layers.values() for parameter in layer.parameters()]  # keeps `id` unique
        self._parts: dict[str, Part] = {}
        self._tapped: dict[str, nn.Module] = {}
        self._unknown: dict[str, str] = {}  # {module: type of an adapter with steps that are not defined}
        self._refusal, self._once, self._is_stale = None, None, False
        check_adapters(layers, has_dropout=True)
        for module, layer in layers.items():
            base = base_layer(layer)
            weight = _weight(base)
            if _is_trained(weight, stepped):
                self._frozen.pop(module, None)
                self._frames[module] = self._frames[module].complete()
            elif module not in self._frozen:
                self._frozen[module] = (weight, _sketch(weight))
            part = _part(self._frames[module], layer, stepped)
            if part is not None:
                self._parts[module] = part
            elif any(_is_trained(parameter, stepped) for parameter in layer.parameters()):
                self._unknown[module] = type(layer).__name__
            if not (self._project or (part is not None and part.is_of_loss)):
                self._tapped[module] = base
        trained = [p for part in self._parts.values() for p in reversed(part.parameters)]
        witnesses = {id(p): p for p in (*trained, *self._model.parameters()) if p.requires_grad and id(p) in stepped}
        # The last parameter of a module comes first: LoRA's B has a gradient at the start, where A has none.
        if id(self._witness) not in witnesses:
            self._witness = next(iter(witnesses.values()), None)
        if self._project and self._unknown:
            module, kind = next(iter(self._unknown.items()))
            fix = f"{TRAIN} to project; without project=True any model is measured"
            raise InputError(f"project: module {module}", expected="plain LoRA", found=kind, fix=fix)

    def _check_stepped(self, stepped: Stepped) -> None:
        for module, part in self._parts.items():
            if any(id(parameter) not in stepped for parameter in part.parameters):
                raise InputError(
                    f"optimizer, module {module}",
                    expected="every trained parameter of the module",
                    found="one that it does not step",
                    fix=f"{REPLACED_FIX}; freeze the parameters that it leaves out on purpose",
                )
        if self._witness is None:
            fix = f"give attach the model that it trains; {REPLACED_FIX}"
            raise InputError("optimizer", expected="trained parameters of the model", found="none", fix=fix)

    def _compare_frozen(self, layers: Mapping[str, nn.Module]) -> None:
        """Note the modules with a frozen weight that moved by more than rounding since the last step."""
        moved, allowed = [], []
        for module, (weight, sketch) in self._frozen.items():
            now = _weight(base_layer(layers[module]))
            found = _sketch(now)
            self._frozen[module] = (now, found)
            is_same_tensor = now is weight and found.shape == sketch.shape
            moved.append((found - sketch).norm() / sketch.norm() if is_same_tensor else found.new_tensor(torch.inf))
            allowed.append(min(16 * torch.finfo(sketch.dtype).eps, MAX_ROUNDING))
        for module, change, most in zip(self._frozen, _list(moved), allowed, strict=True):
            if change > most:
                self._changed[module] = None

    def _restart_taps(self) -> None:
        """Watch the modules that are read by taps, and no others."""
        self.stop()
        self._is_stale = False
        if self._tapped and self._witness is not None:
            if not self._has_met:
                self._groups, self._has_met = meet(self._groups), True
            assert self._groups is not None
            self._taps = Taps(self._tapped, self._frames, self._scaler)
            self._taps.start(self._witness, self._groups)

    def _zeros(self, frame: Frame) -> Tensor:
        return torch.zeros(frame.size, dtype=frame.dtype, device=self.device)


def named(modules: Collection[str], of: Collection[str]) -> str:
    """Return "2 of 14 modules: NAME, NAME"."""
    more = f" and {len(modules) - MOST_NAMED} more" if len(modules) > MOST_NAMED else ""
    return f"{len(modules)} of {len(of)} modules: {', '.join([*modules][:MOST_NAMED])}{more}"


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight of a Linear or Conv1D, typed."""
    return cast(Tensor, layer.weight)


def _part(frame: Frame, layer: nn.Module, stepped: Stepped) -> Part | None:
    """Return what is trained of a layer, where steps of it are defined."""
    if isinstance(layer, nn.Linear | Conv1D):
        return LinearPart(frame, layer) if _is_trained(_weight(layer), stepped) else None
    if not isinstance(layer, BaseTunerLayer) or _is_trained(_weight(layer.get_base_layer()), stepped):
        return None
    if isinstance(layer, LoraLayer) and is_plain(layer):
        factors = {name: lora_factors(layer, name) for name in layer.active_adapters if name in layer.lora_A}
        moving = [name for name, both in factors.items() if any(_is_trained(factor, stepped) for factor in both)]
        return LoraPart(frame, layer, moving[0], stepped) if len(moving) == 1 else None
    if isinstance(layer, DeltaSLayer) and isinstance(frame, SvdFrame):
        moving = [name for name in layer.active_adapters if _is_trained(layer.delta_S[name], stepped)]
        # The same weight and rank: the same triplets.
        if len(moving) == 1 and layer.S.shape == frame.held.S.shape and torch.allclose(layer.S, frame.held.S):
            return DeltaSPart(frame, layer.delta_S[moving[0]])
    return None


def _is_trained(parameter: Tensor, stepped: Stepped) -> bool:
    """Return whether a parameter has gradients, or may be moved by ones that were left in `.grad`."""
    return parameter.requires_grad or id(parameter) in stepped


def _state(layers: Mapping[str, nn.Module], stepped: Stepped) -> list[tuple]:
    """Return all that parts and taps are made from: parameters, which of them are trained, and active adapters."""
    rows = []
    for layer in layers.values():
        parameters = [(id(p), p.requires_grad, id(p) in stepped) for p in layer.parameters()]
        adapters = [layer.active_adapters, layer.disable_adapters] if isinstance(layer, BaseTunerLayer) else []
        rows.append((type(layer), parameters, adapters))
    return rows


@torch.no_grad()
def _sketch(weight: Tensor) -> Tensor:
    """Return (d,), a fixed combination of the rows of a weight: any merge changes it. Nothing for a quantised one."""
    if is_quantised(weight):
        return torch.zeros(0, device=weight.device)
    # Every process looks at its own rows.
    rows = (weight.to_local() if isinstance(weight, DTensor) else weight).detach()
    return torch.arange(len(rows), device=rows.device).cos().to(rows.dtype) @ rows


def _list(scalars: Sequence[Tensor]) -> list[float]:
    """Return the numbers; a GPU waits for one transfer."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist() if scalars else []
