"""The one interface over both bases: every adapted module is a flat vector of coordinates.

Shapes: G samples, T tokens, r coordinates of a module, k directions, M modules;
d_in, d_out of a module's weight. All gradients are of a LOSS.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.rows import Segments
from extraction.vocabulary import Basis
from replay_pools.errors import InputError
from replay_pools.quiet import quiet_peft


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTap:
    """Gradients of coordinates of a module from its input x and dL/dx, the latter through this module alone."""

    module: str
    start: int = 0  # the first of the module's coordinates that come out here
    reduce: Callable[[Tensor, Tensor, Segments], Tensor]  # x (T, d_in), dL/dx (T, d_in) -> (G, r)
    along: Callable[[Tensor, Tensor, Tensor], Tensor]  # the same two and u (r,) -> (T,): <u, what token t adds>


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTap:
    """Gradients of coordinates of a module from what `keep` makes of its input and output, and dL/dy."""

    module: str
    start: int = 0
    keep: Callable[[Tensor, Tensor], Tensor]  # x (..., d_in), y (..., d_out) -> what is held until the backward
    reduce: Callable[[Tensor, Tensor, Segments], Tensor]  # kept (T, d), dL/dy (T, d_out) -> (G, r)
    along: Callable[[Tensor, Tensor, Tensor], Tensor]  # the same two and u (r,) -> (T,): <u, what token t adds>


Tap = InputTap | OutputTap


class Coordinates(ABC):
    """A model with an adapter, seen as {module: (r,)}.

    Modules are named by their dotted path in the base model (`model.layers.0.self_attn.q_proj`), in the order of
    `named_modules()`; that order is the order of every dictionary that comes out of here.

    Attributes:
        model: the PEFT model.
        layers: the adapter layer of each module.
        sizes: the number of coordinates r of each module.
    """

    basis: Basis

    def __init__(self, model: PeftModel, layers: Mapping[str, nn.Module], identity: Mapping[str, Any]) -> None:
        self.model = model
        self.layers = dict(layers)
        self._identity = dict(identity)
        self.sizes = {module: sum(p.numel() for p in self.trainable(module)) for module in self.layers}

    @abstractmethod
    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of a module in the order in which they are flattened."""

    @abstractmethod
    def taps(self) -> list[Tap]:
        """Where per-sample gradients come out of a forward and backward inside `lean_forward`.

        The reductions are added over tokens in float32 (float64 for a float64 model).
        """

    @abstractmethod
    def is_zero(self) -> bool:
        """True when the adapted model is exactly the base model."""

    @contextmanager
    def lean_forward(self) -> Iterator[None]:
        """While open, the adapter costs the forward nothing where that is exact: at zero the base model runs."""
        with self.model.disable_adapter() if self.is_zero() else self.folded():
            yield

    def folded(self) -> AbstractContextManager[object]:
        """While open, the adapter is part of the base weights, if it can be put there and taken out again exactly."""
        return nullcontext()

    def rounding(self) -> dict[str, Any] | None:
        """What a storage of lower precision does to the basis, for manifests; None where nothing is rounded."""
        return None

    def cache_misses(self) -> int:
        """How many modules needed factors that the cache did not hold; 0 for a basis that caches nothing."""
        return 0

    def parameters(self) -> list[nn.Parameter]:
        """All trainable parameters, module by module: what an optimizer is given."""
        return [parameter for module in self.layers for parameter in self.trainable(module)]

    def values(self) -> dict[str, Tensor]:
        """A copy of the coordinates, {module: (r,)}."""
        return {module: torch.cat([p.detach().flatten() for p in self.trainable(module)]) for module in self.layers}

    @torch.no_grad()
    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the coordinates; InputError when modules or sizes differ."""
        self._check(values)
        for module, vector in values.items():
            for parameter, part in zip(self.trainable(module), self._split(module, vector), strict=True):
                parameter.copy_(part)

    @contextmanager
    def at(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """While open, the coordinates are `values`; InputError when modules or sizes differ."""
        own = self.values()
        self.load_values(values)
        try:
            yield
        finally:
            self.load_values(own)

    def gradients(self) -> dict[str, Tensor]:
        """A copy of what lies in `.grad`, {module: (r,)}; 0 where there is nothing."""
        return {module: torch.cat([_gradient(p).flatten() for p in self.trainable(module)]) for module in self.layers}

    @torch.no_grad()
    def replace_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Overwrite in place each `.grad` that there is by its part of {module: (r,)}; InputError when sizes differ.

        A parameter without gradient stays without one: an optimizer skips it, which it would not do at zero.
        """
        self._check(gradients)
        for module, vector in gradients.items():
            for parameter, part in zip(self.trainable(module), self._split(module, vector), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part)

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Overwrite `.grad` of the trainable parameters by {module: (r,)}; InputError when modules or sizes differ."""
        self._check(gradients)
        for module, vector in gradients.items():
            for parameter, part in zip(self.trainable(module), self._split(module, vector), strict=True):
                parameter.grad = part.detach().to(parameter, copy=True)

    def fingerprint(self) -> dict[str, Any]:
        """What makes two bases the same one: basis, model_id, weights_sha256, targets, rank, alpha, init_seed, ...

        `weights_sha256` covers names and values of the adapted base weights when the adapter was attached.
        """
        return {"basis": self.basis, **self._identity}

    def _split(self, module: str, vector: Tensor) -> list[Tensor]:
        """The flat (r,) vector as tensors of the shapes of `trainable(module)`."""
        parameters = self.trainable(module)
        parts = vector.split([p.numel() for p in parameters])
        return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]

    def _check(self, vectors: Mapping[str, Tensor]) -> None:
        found = {module: tuple(vector.shape) for module, vector in vectors.items()}
        expected = {module: (size,) for module, size in self.sizes.items()}
        if found != expected:
            wrong = sorted(module for module in expected | found if expected.get(module) != found.get(module))
            raise InputError(
                f"module {wrong[0]}",
                expected=f"coordinates of shape {expected.get(wrong[0], 'no such module')}",
                found=f"{found.get(wrong[0], 'nothing')} ({len(wrong)} modules differ)",
            )


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def wrap(model: PreTrainedModel, config: PeftConfig) -> PeftModel:
    """`get_peft_model` without its warning and without drawing from the global RNG."""
    with quiet_peft(), torch.random.fork_rng(devices=[]):
        wrapped = get_peft_model(model, config)
    assert isinstance(wrapped, PeftModel)
    return wrapped


def check_fingerprint(where: object, *, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse what belongs to another basis.

    Args:
        where: the file or object that carries `found`.
        expected: the fingerprint of the model at hand.
        found: the fingerprint stored with directions, gradients or an adapter.

    Raises:
        InputError: the two differ; the message shows both values of each differing field.
    """
    one, other = comparable(expected), comparable(found)
    wrong = [field for field in {**one, **other} if one.get(field) != other.get(field)]
    if wrong:
        raise InputError(
            where,
            expected=f"basis {describe(expected, wrong)}",
            found=describe(found, wrong),
            fix="extract the directions again in this basis",
        )


def comparable(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What bases are compared by: all but the name of the model, whose weights are hashed and may lie elsewhere."""
    return {field: value for field, value in fingerprint.items() if field != "model_id"}


def describe(fingerprint: Mapping[str, Any], fields: list[str]) -> str:
    """`field=value` of the named fields; a long value (the targets of a big model) is cut."""
    texts = ((field, str(fingerprint.get(field))) for field in fields)
    return ", ".join(f"{field}={text if len(text) <= 80 else text[:77] + '...'}" for field, text in texts)
