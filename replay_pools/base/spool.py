"""A lazily mapped sequence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Each(Sequence[Value], Generic[Item, Value]):
    """A sequence that applies a function to an item whenever it is accessed."""

    items: Sequence[Item]
    make: Callable[[Item], Value]

    def __iter__(self) -> Iterator[Value]:
        return map(self.make, self.items)  # by place, an IndexError inside `make` would look like the end

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: Any) -> Any:
        """Return the value at a place, or the list of values of a slice."""
        if isinstance(place, slice):
            return [*map(self.make, self.items[place])]
        return self.make(self.items[place])
