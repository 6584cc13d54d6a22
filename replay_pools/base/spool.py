"""Sequences of which an item is in memory while it is asked for: a list on disk, and what is made of each item."""

import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
IN_MEMORY = 8 << 20  # bytes; what comes after them goes to a file without a name, which only this process can open


class Spool(Sequence[Item]):
    """Items of plain types (a class of its own costs time), appended and never changed; each access makes a copy."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (open as long as the spool is there)
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
        """The item of a place from 0 on."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        self._file.seek(self._ends[place])
        return pickle.loads(self._file.read(self._ends[place + 1] - self._ends[place]))


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
