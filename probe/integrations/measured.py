"""The gradient that is measured in a step, as {module: (r,)} in the coordinates of a direction file.

Without `project` it is the gradient of the loss with respect to the weight W of every module, in coordinates c(dL/dW)
(`adapters.frames`; with svd directions diag(U^T dL/dW V)), whatever is trained:

    a trained Linear       c(W.grad)
    a trained delta_S      its `.grad`, which is c(dL/dW)
    anything else          c(dL/dW) by taps on the Linear below all adapters (`probe.integrations.taps`)

With `project` it is the gradient of the step. A descent step along -g of the parameters moves c(W) by -J g to first
order, and J g is measured and projected, since a step is all that a projection can change:

    a trained Linear       J g = c(G)                        G = W.grad, so J g is also the gradient of the loss
    a trained delta_S      J g = G                           the same
    LoRA, W + s B A        J g = s c(B G_A + G_B A)          G_A, G_B the `.grad` of A and B; 0 for a frozen one
    a frozen Linear        J g = 0                           no step moves it

The projection asks for the components V J g' of the step, and the smallest change of g that gives them is
g' = g + R^T (R R^T)^+ (wanted - R g) with R = V J. So under one_sided a small step of SGD at one learning rate has no
component toward the hack, V J g' = min(V J g, 0).

Shapes: W (d_out, d_in), A (rank, d_in), B (d_out, rank), r coordinates and k directions of a module.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import cast

import torch
from peft.tuners import lora
from peft.tuners.lora import LoraLayer, ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from extraction.adapters.coordinates import Frame, SvdFrame
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.frames import base_layer, check_adapters, make_frames, target_layers
from extraction.adapters.targets import is_quantised, spread_as, whole
from extraction.adapters.trained import lora_factors
from extraction.directions import Directions
from probe.integrations.processes import Groups, meet
from probe.integrations.taps import Taps, named
from replay_pools.base.errors import InputError

MAX_ROUNDING = 1e-2  # relative change of a frozen weight in a step that merging and unmerging may leave in bfloat16
REPLACED_FIX = "attach after fully_shard or accelerator.prepare, to the optimizer that trains"
Stepped = Set[nn.Parameter]  # the parameters of an optimizer; a tensor is hashed by identity


@dataclass(frozen=True)
class Part:
    """The parameters that move the weight W of one module, and how.

    Attributes:
        moved: (changes, start) -> (r,), the change of c(W) where the parameters came from `start` by `changes`.
        pulled: v (r,) -> J^T v, a tensor in the shape of each parameter.
        is_isometric: J J^T = 1. J g is then the gradient of the loss, too.
    """

    frame: Frame
    parameters: tuple[nn.Parameter, ...]
    stepped: Stepped
    moved: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
    pulled: Callable[[Tensor], list[Tensor]]
    is_isometric: bool = True

    def gradients(self) -> list[Tensor | None]:
        """Return the `.grad` of each parameter; None for one that the optimizer does not step."""
        return [parameter.grad if parameter in self.stepped else None for parameter in self.parameters]

    def step(self) -> Tensor:
        """Return J g (r,), with g in `.grad`."""
        pairs = zip(self.gradients(), self.parameters, strict=True)
        return self.moved([whole(torch.zeros_like(p) if g is None else g) for g, p in pairs], self.parameters)

    def update(self, before: Sequence[Tensor]) -> Tensor:
        """Return (r,) of the weight at the parameters `before`, minus (r,) of the present weight."""
        dtype = self.frame.dtype
        pairs = zip(before, self.parameters, strict=True)
        return self.moved([whole(old.to(dtype) - new.detach().to(dtype)) for old, new in pairs], before)

    def project(self, V: Tensor, wanted: Tensor) -> None:
        """Make the smallest change of `.grad`, in place, for V J g to be `wanted`: V (k, r), wanted (k,)."""
        gradients = self.gradients()
        if not len(V) or all(gradient is None for gradient in gradients):
            return
        gram = V @ V.T  # V J J^T V^T (k, k)
        if not self.is_isometric:
            rows = [zip(gradients, self.pulled(v), strict=True) for v in V]
            R = torch.stack([torch.cat([part.flatten() for g, part in row if g is not None]) for row in rows])
            gram = R @ R.T
        weights = torch.linalg.pinv(gram, hermitian=True) @ (wanted - V @ self.step())
        for gradient, change in zip(gradients, self.pulled(weights @ V), strict=True):
            if gradient is not None:
                gradient.add_(spread_as(gradient, change))


def _linear(frame: Frame, layer: nn.Linear | Conv1D, stepped: Stepped) -> Part:
    """Return the part of a trained weight: J = c."""

    def turned(matrix: Tensor) -> Tensor:
        return matrix.T if isinstance(layer, Conv1D) else matrix

    def pulled(v: Tensor) -> list[Tensor]:
        left, right = frame.factors(v)
        return [turned(left @ right)]

    weight = cast(nn.Parameter, layer.weight)
    return Part(frame, (weight,), stepped, lambda changes, _: frame.coordinates(turned(changes[0])), pulled)


def _lora(frame: Frame, layer: LoraLayer, adapter: str, stepped: Stepped) -> Part:
    """Return the part of a LoRA, W + s B A, with A and B trained, or one of them."""
    factors, scale = lora_factors(layer, adapter), layer.scaling[adapter]

    def moved(changes: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        # With A of the start and B of the end the sum is exact, and a small step is not lost in rounding.
        (d_A, d_B), A, B = changes, whole(start[0]), whole(factors[1])
        return scale * (frame.coordinates(B, d_A) + frame.coordinates(d_B, A))

    def pulled(v: Tensor) -> list[Tensor]:
        left, right = frame.factors(v)
        A, B = (whole(factor).to(left.dtype) for factor in factors)
        return [scale * ((B.T @ left) @ right), scale * (left @ (right @ A.T))]

    return Part(frame, factors, stepped, moved, pulled, is_isometric=False)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The modules as they are trained in a step."""

    state: list[tuple]  # `_state`
    parts: Mapping[str, Part]
    tapped: Mapping[str, nn.Module]  # {module: the Linear below all adapters} that taps read
    witness: nn.Parameter | None  # see `Taps`; None: the optimizer steps nothing of the model
    stepped: Stepped  # parameters of the model that the optimizer steps
    has_unknown: bool  # some trained adapter has no defined step
    idle: Stepped  # factors of LoRAs that are not active, which may have been so within the step
    refusal: InputError | None  # a tap or the projection is not defined


class Measured:
    """A model in the coordinates of a direction file, on its `device`, watched until `stop`.

    Arguments and refusals are those of `probe.attach`. The trainer averages gradients over `groups`; where taps are
    needed, it is refused that no groups are known (None), or that some of their processes do not attach.
    """

    def __init__(
        self,
        where: str,
        model: nn.Module,
        directions: Directions,
        stepped: Stepped,
        groups: Groups | None,
        scaler: torch.amp.GradScaler | None,
        *,
        project: bool,
        cache_dir: Path | None,
    ) -> None:
        fingerprint = directions.metadata["fingerprint"]
        self._model, self._targets, self._project = model, fingerprint["targets"], project
        self._meet, self._scaler = cache(partial(meet, groups)), scaler
        layers = target_layers(model, self._targets)
        bases = {module: base_layer(layer) for module, layer in layers.items()}
        frozen = [m for m, base in bases.items() if not project and not any(p.requires_grad for p in base.parameters())]
        self._frames = dict(make_frames(where, layers, fingerprint, cache_dir, frozen=frozen))
        self.device = _weight(next(iter(bases.values()))).device
        self._frozen: dict[str, Tensor] = {}  # {module: `_sketch` of its weight at the last step}
        self._changed: dict[str, None] = {}  # modules with a frozen weight that changed, in order
        self._taps: Taps | None = None
        self._watched: Setup | None = None  # the set-up that the taps were made for
        self._now = self._setup(layers, stepped, None)
        if self._now.refusal is not None:
            raise self._now.refusal
        self.refresh(stepped)
        self._watch()

    def stop(self) -> None:
        """Stop watching the model."""
        if self._taps is not None:
            self._taps.stop()
        self._taps = self._watched = None

    @torch.no_grad()
    def refresh(self, stepped: Stepped) -> bool:
        """Take the model and the optimizer as they are now.

        Returns:
            True where the trained parameters or the adapters differ from the last step.

        Raises:
            InputError: the optimizer leaves out a trained parameter of a module, or steps none of the model.
        """
        layers = target_layers(self._model, self._targets)
        self._compare_frozen(layers, stepped)
        witness = self._now.witness
        is_witness = witness is not None and witness in stepped and witness.requires_grad
        has_changed = _state(layers, stepped) != self._now.state or not is_witness
        if has_changed:
            self._now = self._setup(layers, stepped, witness)
        for module, part in self._now.parts.items():
            if any(parameter.requires_grad and parameter not in stepped for parameter in part.parameters):
                raise InputError(
                    f"optimizer, module {module}",
                    expected="every trained parameter of the module",
                    found="one that it does not step",
                    fix=f"{REPLACED_FIX}; freeze the parameters that it leaves out on purpose",
                )
        if self._now.witness is None:
            fix = f"give attach the model that it trains; {REPLACED_FIX}"
            raise InputError("optimizer", expected="trained parameters of the model", found="none", fix=fix)
        return has_changed

    def gradients(self, loss_scale: float = 1.0) -> dict[str, Tensor]:
        """Return {module: (r,)}, c(dL/dW) or with `project` J g, times the `loss_scale` of `.grad`; 0 if not known."""
        tapped, taps = self._now.tapped, self._taps
        by_taps = taps.gradients(loss_scale) if tapped and taps is not None else {}
        read = {module: part.step() for module, part in self._now.parts.items() if module not in tapped}
        return self._zeros() | read | {module: g for module, g in by_taps.items() if module in tapped}

    @property
    def reason(self) -> str | None:
        """Why the last `gradients` are no measurement; None where they are."""
        now, watched = self._now, self._watched
        if self._changed:
            return f"the frozen weight changed since attach (a merged adapter?) in {named(self._changed, self._frames)}"
        if now.refusal is not None:
            return f"{now.refusal.where}: found {now.refusal.found}"
        if self._project and self._moves_others():
            return "an adapter that is not active has a gradient, too"
        if not now.tapped:
            return None
        if watched is None or now.tapped.keys() - watched.tapped or now.witness is not watched.witness:
            return "the trained parameters or adapters changed since the last step, and taps start again"
        return None if self._taps is None else self._taps.reason

    def project(self, directions: Mapping[str, Tensor], projected: Mapping[str, Tensor]) -> None:
        """Change `.grad` as little as gives the step the components of `projected` along {module: (k, r)}."""
        for module, part in self._now.parts.items():
            V = directions[module].to(part.frame.dtype)
            part.project(V, V @ projected[module])

    def remember(self) -> None:
        """Copy the parameters that the optimizer is about to step; for trained weights that is a second copy."""
        moving = {m: part for m, part in self._now.parts.items() if any(g is not None for g in part.gradients())}
        self._before = {m: [p.detach().clone() for p in part.parameters] for m, part in moving.items()}

    def update(self) -> dict[str, Tensor] | None:
        """Return {module: (r,)}, weights before minus after the step, None if not known; watch the next step."""
        before, self._before = self._before, {}
        if self._watched is not self._now:
            self._watch()
        elif self._taps is not None:
            self._taps.stepped()
        if self._now.has_unknown or self._moves_others() or self._now.refusal is not None or self._changed:
            return None
        return self._zeros() | {module: self._now.parts[module].update(copies) for module, copies in before.items()}

    def _moves_others(self) -> bool:
        return any(p.grad is not None and bool(whole(p.grad.any())) for p in self._now.idle)

    def is_moved_by(self, stepped: Stepped) -> bool:
        """Return whether an optimizer with these parameters moves a module."""
        return any(p in stepped and p.grad is not None for part in self._now.parts.values() for p in part.parameters)

    def _setup(self, layers: Mapping[str, nn.Module], stepped: Stepped, witness: nn.Parameter | None) -> Setup:
        """Find how the modules are trained; the `witness` of the last step stays if it can."""
        parts: dict[str, Part] = {}
        tapped: dict[str, nn.Module] = {}
        unknown: dict[str, str] = {}  # {module: type of a trained adapter without a defined step}
        for module, layer in layers.items():
            base = base_layer(layer)
            # A LoRA of a parameter (`target_parameters`) changes the weight itself for the time of the forward.
            if _is_trained(_weight(base), stepped) or isinstance(layer, ParamWrapper):
                self._frames[module] = self._frames[module].complete()
            part = _part(self._frames[module], layer, stepped)
            if part is not None:
                parts[module] = part
            elif any(_is_trained(parameter, stepped) for parameter in layer.parameters()):
                unknown[module] = type(layer).__name__
            is_read = part is not None and part.is_isometric and part.parameters[0].requires_grad
            if not (self._project or is_read):
                tapped[module] = base
        refusal = None
        if self._project and (unknown or not parts):
            module, found = next(iter(unknown.items()), ("any", "nothing"))
            expected, fix = "trained weights, plain LoRA or delta_S", "without project=True any model is measured"
            refusal = InputError(f"project: module {module}", expected=expected, found=found, fix=fix)
        moves = Counter(parameter for part in parts.values() for parameter in part.parameters)
        if self._project and (shared := [m for m in parts if any(moves[p] > 1 for p in parts[m].parameters)]):
            expected, found = "parameters that move one module alone", "one that other modules share"
            refusal = InputError(f"project: module {shared[0]}", expected=expected, found=found, fix="untie them")
        try:
            check_adapters(layers, has_dropout=True)
        except InputError as error:
            refusal, tapped = error, {}
        trained = [p for part in parts.values() for p in reversed(part.parameters)]
        # The last parameter of a module comes first: LoRA's B has a gradient at the start, where A has none. Those of
        # the modules come before others, which a backward may not reach (a vision tower).
        of_layers = (p for layer in layers.values() for p in layer.parameters())
        candidates = dict.fromkeys((*trained, *of_layers, *self._model.parameters()))
        witnesses = [p for p in candidates if p.requires_grad and p in stepped]
        return Setup(
            state=_state(layers, stepped),
            parts=parts,
            tapped=tapped,
            witness=next((p for p in witnesses if p is witness), next(iter(witnesses), None)),
            stepped={*witnesses},
            idle={p for layer in layers.values() for p in _idle(layer) if p in stepped},
            has_unknown=bool(unknown),
            refusal=refusal,
        )

    def _compare_frozen(self, layers: Mapping[str, nn.Module], stepped: Stepped) -> None:
        """Note the modules with a frozen weight that moved by more than rounding since the last step."""
        weights = {module: _weight(base_layer(layer)) for module, layer in layers.items()}
        trained = {module for module, weight in weights.items() if _is_trained(weight, stepped)}
        sketches = {m: _sketch(weight) for m, weight in weights.items() if m in self._frozen or m not in trained}
        has_moved = []
        for module, old in self._frozen.items():
            most = min(16 * torch.finfo(old.dtype).eps, MAX_ROUNDING)
            has_moved.append((sketches[module] - old).norm() > most * old.norm())
        # Stacked: a GPU waits for one transfer instead of one for every module.
        flags = torch.stack(has_moved).tolist() if has_moved else []
        self._changed |= dict.fromkeys(module for module, flag in zip(self._frozen, flags, strict=True) if flag)
        self._frozen = {module: sketch for module, sketch in sketches.items() if module not in trained}

    def _watch(self) -> None:
        """Watch the modules that are now read by taps, and no others."""
        self.stop()
        self._watched = now = self._now
        if now.tapped and now.witness is not None:
            self._taps = Taps(now.tapped, self._frames, now.witness, now.stepped, self._meet(), self._scaler)

    def _zeros(self) -> dict[str, Tensor]:
        return {m: torch.zeros(f.size, dtype=f.dtype, device=self.device) for m, f in self._frames.items()}


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight of a Linear or Conv1D, typed."""
    return cast(Tensor, layer.weight)


def _part(frame: Frame, layer: nn.Module, stepped: Stepped) -> Part | None:
    """Return the trained part of a layer; None without one, or if its step is not defined."""
    if isinstance(layer, nn.Linear | Conv1D):
        return _linear(frame, layer, stepped) if _is_trained(_weight(layer), stepped) else None
    if not isinstance(layer, BaseTunerLayer) or _is_trained(_weight(layer.get_base_layer()), stepped):
        return None
    # y = W x + s B A x: neither quantised, nor of an embedding, nor DoRA
    if type(layer) is lora.Linear and not layer.lora_magnitude_vector and not layer.lora_variant:
        factors = {name: lora_factors(layer, name) for name in layer.active_adapters if name in layer.lora_A}
        moving = [name for name, both in factors.items() if any(_is_trained(factor, stepped) for factor in both)]
        return _lora(frame, layer, moving[0], stepped) if len(moving) == 1 else None
    if isinstance(layer, DeltaSLayer) and isinstance(frame, SvdFrame):
        moving = [name for name in layer.active_adapters if _is_trained(layer.delta_S[name], stepped)]
        # The same weight and rank: the same triplets.
        if len(moving) == 1 and layer.S.shape == frame.held.S.shape and torch.allclose(layer.S, frame.held.S):
            return Part(frame, (layer.delta_S[moving[0]],), stepped, lambda changes, _: changes[0], lambda v: [v])
    return None


def _idle(layer: nn.Module) -> list[nn.Parameter]:
    """Return the factors of the LoRAs of a layer that are not active."""
    names = set(layer.lora_A) - {*layer.active_adapters} if isinstance(layer, LoraLayer) else ()
    return [factor for name in names for factor in lora_factors(layer, name)]


def _is_trained(parameter: Tensor, stepped: Stepped) -> bool:
    """Return whether a parameter has gradients, or may be moved by ones that were left in `.grad`."""
    return parameter.requires_grad or parameter in stepped


def _state(layers: Mapping[str, nn.Module], stepped: Stepped) -> list[tuple]:
    """Return everything that a `Setup` follows from: parameters, which are trained, active adapters, scales."""
    rows = []
    for layer in layers.values():
        parameters = {parameter: (parameter.requires_grad, parameter in stepped) for parameter in layer.parameters()}
        adapters = [layer.active_adapters, layer.disable_adapters] if isinstance(layer, BaseTunerLayer) else []
        scales = dict(layer.scaling) if isinstance(layer, LoraLayer) else {}
        rows.append((type(layer), parameters, adapters, scales))
    return rows


@torch.no_grad()
def _sketch(weight: Tensor) -> Tensor:
    """Return (d,), a fixed combination of the rows of a weight: any merge changes it. 0 for a quantised one."""
    if is_quantised(weight):
        return torch.zeros(1, device=weight.device)
    # Every process looks at its own rows.
    rows = (weight.to_local() if isinstance(weight, DTensor) else weight).detach()
    return torch.arange(len(rows), device=rows.device).cos().to(rows.dtype) @ rows
