"""Stacks: {module: tensor} whose tensors of one shape lie in one tensor.

Reads as the dictionary it stands for; arithmetic on `stacks` takes a few calls instead of one for each of hundreds of
modules, which on a GPU would cost more time on the host than on the device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, final

import torch
from torch import Tensor

Value = TypeVar("Value")


@final
class Stacks(Mapping[str, Tensor]):
    """{module: (...)} as {names of n modules: (n, ...)}; a module's tensor is a view.

    Args:
        stacks: the tensors of the modules of each name tuple, one after the other.
        order: all modules, in the order in which they are read.
    """

    def __init__(self, stacks: Mapping[tuple[str, ...], Tensor], order: Sequence[str]) -> None:
        self.stacks = dict(stacks)
        self._views = {}
        for names, stack in self.stacks.items():
            self._views.update(zip(names, stack.unbind(), strict=True))
        self._order = tuple(order)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Stacks":
        """A copy of `tensors`, stacked by shape; Stacks themselves are returned as they are."""
        if isinstance(tensors, Stacks):
            return tensors
        shapes = {module: tensor.shape for module, tensor in tensors.items()}
        stacks = {names: torch.stack([tensors[module] for module in names]) for names in by_value(shapes).values()}
        return cls(stacks, list(tensors))

    def __getitem__(self, module: str) -> Tensor:
        return self._views[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def rows(self, names: tuple[str, ...]) -> Tensor:
        """(n, ...) of some modules of one shape; without a copy where they are a stack."""
        stack = self.stacks.get(names)
        return torch.stack([self[module] for module in names]) if stack is None else stack

    def map(self, change: Callable[[Tensor], Tensor]) -> "Stacks":
        """The modules with every stack (n, ...) replaced by `change` of it, (n, ...)."""
        return Stacks({names: change(stack) for names, stack in self.stacks.items()}, self._order)


def by_value(values: Mapping[str, Value]) -> dict[Value, tuple[str, ...]]:
    """The names of each value, both in order of first appearance."""
    groups: dict[Value, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return {value: tuple(names) for value, names in groups.items()}
