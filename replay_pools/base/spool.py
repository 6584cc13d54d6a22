"""A sequence that makes each item when it is asked for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Each(Sequence[Value], Generic[Item, Value]):
    """What a function makes of each item, whenever it is asked for."""

    items: Sequence[Item]
    make: Callable[[Item], Value]

    def __iter__(self) -> Iterator[Value]:
        return map(self.make, self.items)  # not by places, where an IndexError of `make` would be taken for the end

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: Any) -> Any:
        """That of a place; a list of those of a slice."""
        if isinstance(place, slice):
            return [*map(self.make, self.items[place])]
        return self.make(self.items[place])
