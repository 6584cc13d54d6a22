"""Sequences that hold one item in memory at a time: a list on disk, and a lazily mapped sequence."""

import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
IN_MEMORY = 8 << 20  # bytes kept in memory; the rest goes to an unnamed temporary file


class Spool(Sequence[Item]):
    """An append-only list of plain values; each access returns a copy."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (stays open as long as the spool)
        self._ends = array("q", [0])

    def __del__(self) -> None:
        self._file.close()

    def append(self, item: Item) -> None:
        """Add an item at the end."""
        data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        try:
            self._file.seek(self._ends[-1])
            self._file.write(data)
        except OSError as error:  # a full disk
            error.filename = error.filename or gettempdir()
            raise
        self._ends.append(self._ends[-1] + len(data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: Any) -> Any:
        """Return the item at a place, from 0."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        self._file.seek(self._ends[place])
        return pickle.loads(self._file.read(self._ends[place + 1] - self._ends[place]))


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
