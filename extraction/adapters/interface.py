"""Coordinates: the interface of an adapted model, in which the adapter of every module is a flat vector (r,).

    basis    adapter of a module                  coordinates                     code
    svd      delta_S (r,)                         delta_S                         extraction.adapters.singular
    lora     A (rank, d_in), B (d_out, rank)      B flattened, A frozen           extraction.adapters.lora

Shapes: G samples, T tokens, r coordinates of a module; d_in, d_out of a module's weight.
All gradients are of a LOSS: a descent step moves along -g.

`StackedCoordinates` are several bases in one forward and backward: where all adapters are at zero their models are the
base model, so the pass of the first one serves them all, and the coordinates of a module are those of every part.

    stacked = StackedCoordinates([svd_coordinates, lora_coordinates])
    svd_gradients, lora_gradients = stacked.split(per_sample_gradients(stacked, batch).gradients)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, final

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.adapters.sharded import spread_as, whole
from extraction.batch import Segments
from extraction.words import Adapted, Basis
from replay_pools.errors import InputError
from replay_pools.policy.adapters import quiet_peft
from replay_pools.storage.tensors import seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Gradients of a module's coordinates, from what is held of a forward and the gradient that comes back.

    With `keep`, that is what it makes of the module's input and output, and dL/dy. Without, it is the input x and the
    dL/dx that flows back through this module alone.
    """

    module: str
    start: int = 0  # index of the first of the module's coordinates that this tap gives
    keep: Callable[[Tensor, Tensor], Tensor] | None = None  # x (..., d_in), y (..., d_out) -> what is held
    reduce: Callable[[Tensor, Tensor, Segments], Tensor]  # held (T, d), gradient (T, d_in or d_out) -> (G, r)
    along: Callable[[Tensor, Tensor, Tensor], Tensor]  # the same two and u (r,) -> (T,): <u, what token t adds>


class Coordinates(ABC):
    """A model with an adapter, seen as {module: (r,)}.

    Modules are named by their dotted path in the base model (`model.layers.0.self_attn.q_proj`), in the order of
    `named_modules()`; that order is the order of every dictionary that comes out of here.

    To add a basis, subclass: set `basis`, write `trainable`, `taps` and `is_zero`, and put whatever makes two bases
    different into `identity`. Override `folded` and `truncation` where the basis can do them.

    Attributes:
        model: the PEFT model.
        layers: the adapter layer of each module.
        sizes: the number of coordinates r of each module.
        adapted: how much of the model they are; None of an adapter that was there already.
    """

    basis: Basis
    adapted: Adapted | None = None

    def __init__(self, model: PeftModel, layers: Mapping[str, nn.Module], identity: Mapping[str, Any]) -> None:
        self.model = model
        self.layers = dict(layers)
        self._identity = dict(identity)
        self.sizes: dict[str, int] = {}
        for module in self.layers:
            self.sizes[module] = sum(parameter.numel() for parameter in self.trainable(module))

    @abstractmethod
    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of a module, in the order in which they are flattened into its coordinates."""

    @abstractmethod
    def taps(self) -> list[Tap]:
        """Where to read per-sample gradients off a forward and backward inside `lean_forward`; one or more a module.

        The reductions sum over tokens in float32 (float64 for a float64 model).
        """

    @abstractmethod
    def is_zero(self) -> bool:
        """True when the adapted model is exactly the base model."""

    @contextmanager
    def lean_forward(self) -> Iterator[None]:
        """While open, the forward skips the adapter's own products where that is exact.

        At zero the base model runs; elsewhere see `folded`.
        """
        with self.model.disable_adapter() if self.is_zero() else self.folded():
            yield

    def folded(self) -> AbstractContextManager[object]:
        """While open, the adapter is merged into the base weights, for a basis that can undo that exactly."""
        return nullcontext()

    def truncation(self) -> dict[str, Any] | None:
        """For manifests: what a basis of a lower rank leaves out of the weights; None where that is nothing."""
        return None

    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters, module by module: what an optimizer is given."""
        parameters = []
        for module in self.layers:
            parameters += self.trainable(module)
        return parameters

    def values(self) -> dict[str, Tensor]:
        """A copy of the coordinates, {module: (r,)}."""
        values = {}
        for module in self.layers:
            values[module] = torch.cat([whole(parameter).flatten() for parameter in self.trainable(module)])
        return values

    @torch.no_grad()
    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the coordinates; InputError when modules or sizes differ."""
        for parameter, part in self._parts(values):
            parameter.copy_(spread_as(parameter, part))

    @contextmanager
    def at(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """While open, the coordinates are `values`; InputError when modules or sizes differ."""
        previous = self.values()
        self.load_values(values)
        try:
            yield
        finally:
            self.load_values(previous)

    def gradients(self) -> dict[str, Tensor]:
        """A copy of every `.grad`, {module: (r,)}; 0 for a parameter without one."""
        gradients = {}
        for module in self.layers:
            parts = []
            for parameter in self.trainable(module):
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parts.append(whole(gradient).flatten())
            gradients[module] = torch.cat(parts)
        return gradients

    @torch.no_grad()
    def replace_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Overwrite each existing `.grad` in place by its part of {module: (r,)}; InputError when sizes differ.

        A parameter without a gradient stays without one: an optimizer skips it, but would decay or move it by momentum
        if its gradient were zero.
        """
        for parameter, part in self._parts(gradients):
            if parameter.grad is not None:
                parameter.grad.copy_(spread_as(parameter.grad, part))

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Set every `.grad` to its part of {module: (r,)}; InputError when modules or sizes differ."""
        for parameter, part in self._parts(gradients):
            parameter.grad = part.detach().to(parameter, copy=True)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the basis: basis, model_id, weights_sha256, targets, rank, alpha, init_seed, ...

        Numbers in two bases can be compared only if these agree (`check_fingerprint`). `weights_sha256` covers names
        and values of the adapted base weights when the adapter was attached.
        """
        return {"basis": self.basis, **self._identity}

    def save(self, directory: Path) -> None:
        """Save the adapter as a peft directory; its weights are a checked file (`replay_pools.storage.tensors`)."""
        # peft keeps a set, whose order differs between processes: sorted, the file has the same bytes every time.
        for config in self.model.peft_config.values():
            config.target_modules = sorted(config.target_modules)  # type: ignore[union-attr]
        self.model.save_pretrained(str(directory), save_embedding_layers=False)
        seal(directory / "adapter_model.safetensors")

    def _parts(self, vectors: Mapping[str, Tensor]) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of {module: (r,)}, in its shape.

        Raises:
            InputError: other modules or sizes, the first of them by name, before any part is given.
        """
        shapes = {module: tuple(vector.shape) for module, vector in vectors.items()}
        expected_shapes = {module: (size,) for module, size in self.sizes.items()}
        differing = [m for m in expected_shapes | shapes if expected_shapes.get(m) != shapes.get(m)]
        if differing:
            module = min(differing)
            raise InputError(
                f"module {module}",
                expected=f"coordinates of shape {expected_shapes.get(module, 'no such module')}",
                found=f"{shapes.get(module, 'nothing')} ({len(differing)} modules differ)",
            )
        for module, vector in vectors.items():
            parameters = self.trainable(module)
            parts = vector.split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                yield parameter, part.view(parameter.shape)


def wrap(model: PreTrainedModel, config: PeftConfig) -> PeftModel:
    """`get_peft_model` without its warning.

    peft draws initial weights; inside the fork the caller's global RNG stays where it is.
    """
    with quiet_peft(), torch.random.fork_rng(devices=[]):
        wrapped = get_peft_model(model, config)
    assert isinstance(wrapped, PeftModel)
    return wrapped


def check_fingerprint(where: object, *, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse directions, gradients or an adapter that belong to another basis.

    Args:
        where: the file or object that carries `found`, for the message.
        expected: the fingerprint of the model at hand.
        found: the fingerprint stored with directions, gradients or an adapter.

    Raises:
        InputError: the two differ; the message shows both values of each differing field.
    """
    current, stored = comparable(expected), comparable(found)
    differing = [field for field in {**current, **stored} if current.get(field) != stored.get(field)]
    if differing:
        raise InputError(
            where,
            expected=f"basis {describe(expected, differing)}",
            found=describe(found, differing),
            fix="extract the directions again in this basis",
        )


def comparable(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which bases are compared: all but `model_id`.

    The hash of the weights says more than a name, and the same model may lie in different places.
    """
    return {field: value for field, value in fingerprint.items() if field != "model_id"}


def describe(fingerprint: Mapping[str, Any], fields: list[str]) -> str:
    """`field=value` of the named fields; a long value (the targets of a big model) is cut."""
    parts = []
    for field in fields:
        text = str(fingerprint.get(field))
        if len(text) > 80:
            text = text[:77] + "..."
        parts.append(f"{field}={text}")
    return ", ".join(parts)


@final
class StackedCoordinates(Coordinates):
    """The coordinates of a module are [part 1; part 2; ...]. Valid at zero only, so nothing is trained through it.

    Raises:
        ValueError: the parts adapt different modules.
    """

    def __init__(self, parts: Sequence[Coordinates]) -> None:
        self.parts = tuple(parts)
        if any(list(part.layers) != list(self.parts[0].layers) for part in self.parts):
            raise ValueError("stacked coordinates: expected parts with the same modules in the same order")
        identity = {part.basis: part.fingerprint() for part in self.parts}
        super().__init__(self.parts[0].model, self.parts[0].layers, identity)

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """The parameters of every part, part after part."""
        return tuple(chain.from_iterable(part.trainable(module) for part in self.parts))

    def taps(self) -> list[Tap]:
        """The taps of every part, moved behind the coordinates of the parts before it."""
        taps, offsets = [], dict.fromkeys(self.layers, 0)
        for part in self.parts:
            taps += [replace(tap, start=tap.start + offsets[tap.module]) for tap in part.taps()]
            for module, size in part.sizes.items():
                offsets[module] += size
        return taps

    def is_zero(self) -> bool:
        """True when every part is at zero: only then are the parts' models one and the same."""
        return all(part.is_zero() for part in self.parts)

    def embed(self, part: int, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{module: (r,)} of the part of index `part`, as vectors of the stacked coordinates: 0 in every other part."""
        embedded = {}
        for module, u in vectors.items():
            pieces = [u.new_zeros(coordinates.sizes[module]) for coordinates in self.parts]
            pieces[part] = u
            embedded[module] = torch.cat(pieces)
        return embedded

    def split(self, gradients: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Stacked {module: (G, r)} -> {module: (G, r)} of every part, in the order of the parts."""
        gradients_by_part: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for module, stacked in gradients.items():
            pieces = stacked.split([part.sizes[module] for part in self.parts], dim=1)
            for part_gradients, piece in zip(gradients_by_part, pieces, strict=True):
                part_gradients[module] = piece
        return gradients_by_part
