"""The families of minicode problems: `minicode.toml` holds them, and its head describes their fields."""

import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

Parameters = dict[str, Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# The grids that no product of ranges gives.
GRIDS: dict[str, list[Parameters]] = {
    # Each a in 2 ... 31, with three lengths.
    "intervals": [{"a": a, "b": a + length} for a in range(2, 32) for length in (4, 7, 13)],
    # Each letter with the ones 3, 8 and 15 places further on.
    "letter pairs": [{"c": c, "d": LETTERS[(i + step) % 26]} for i, c in enumerate(LETTERS) for step in (3, 8, 15)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A problem statement with parameters, and right and wrong bodies of its method."""

    name: str
    kind: str  # name and kind of the only argument: "nums" | "n" | "s" | "text"
    returns: str  # annotation of the returned value
    statement: str
    solutions: tuple[str, ...]  # right method bodies; the first one is canonical
    bugs: tuple[str, ...]  # wrong method bodies
    grid: tuple[Parameters, ...]  # one problem each
    bug_rate: float  # share of wrong bodies in the training text of the small model

    @property
    def func(self) -> str:
        """The name of the method: `countAbove` of the family `count_above`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))


def _family(name: str, row: dict[str, Any]) -> Family:
    kind, returns = row.pop("signature").split(" -> ")
    grid = row.pop("grid")
    if isinstance(grid, dict):
        ranges = [values if isinstance(values, str) else range(*values) for values in grid.values()]
        grid = [dict(zip(grid, values, strict=True)) for values in product(*ranges)]
    else:
        grid = GRIDS[grid]
    lists = {field: tuple(row.pop(field)) for field in ("solutions", "bugs")}
    return Family(name=name, kind=kind, returns=returns, grid=tuple(grid), **lists, **row)


_ROWS = tomllib.loads(Path(__file__).with_name("minicode.toml").read_text())
FAMILIES: tuple[Family, ...] = tuple(_family(name, row) for name, row in _ROWS.items())
