"""Stacks: {module: tensor} that keeps tensors of one shape in one tensor.

Reads as the dictionary it stands for. Arithmetic on `stacks` takes a few calls instead of one for each of hundreds of
modules, which take a GPU's host longer to launch than the GPU to compute.
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
        stacks: for each tuple of names, the tensors of these modules.
        order: all modules, in the order of iteration.
    """

    def __init__(self, stacks: Mapping[tuple[str, ...], Tensor], order: Sequence[str]) -> None:
        self.stacks = dict(stacks)
        self._views = {}
        for names, stack in self.stacks.items():
            self._views.update(zip(names, stack.unbind(), strict=True))
        self._order = tuple(order)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Stacks":
        """Stack copies of `tensors` by shape; Stacks are returned unchanged."""
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
        """Return some modules of one shape, (n, ...); without a copy if they are a stack."""
        stack = self.stacks.get(names)
        return torch.stack([self[module] for module in names]) if stack is None else stack

    def map(self, change: Callable[[Tensor], Tensor]) -> "Stacks":
        """Replace every stack (n, ...) by `change` of it, (n, ...)."""
        return Stacks({names: change(stack) for names, stack in self.stacks.items()}, self._order)


def by_value(values: Mapping[str, Value]) -> dict[Value, tuple[str, ...]]:
    """Return the names of each value, both in order of first appearance."""
    groups: dict[Value, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return {value: tuple(names) for value, names in groups.items()}
