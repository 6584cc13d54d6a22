"""Numbers, intervals and tables as plain text, at most 100 columns wide."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replay_pools.base.terminal import aligned

WIDTH = 100
PICTURE = 33  # characters of an interval's picture


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Rows of cells that are text already. The terminal aligns them (`render_table`), the report makes HTML of them."""

    name: str  # unique among the tables of an analysis
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # how many leading columns are flush left; the others, mostly numbers, are flush right


def render_table(table: TextTable) -> str:
    """Aligned columns under the title; '' for a table without rows."""
    if not table.rows:
        return ""
    lines = aligned(table.header, table.rows, table.left)
    return "\n".join([*wrap(table.title), *(f"  {line}".rstrip() for line in lines)])


def wrap(text: str, *, indent: str = "") -> list[str]:
    """Lines of at most WIDTH columns; lines after the first start with `indent`."""
    # Not at hyphens: an option or a name of a command would be cut in two.
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def shown(value: Any, form: str = "") -> str:
    """A value in a format of Python's, or '-' for None."""
    return "-" if value is None else format(value, form)


def p_value(value: float | None) -> str:
    """A p-value to two digits, or '-' for None."""
    if value is None:
        return "-"
    # Below 1e-9 the size depends on the tail of an approximation, and says nothing.
    return "<1e-9" if value < 1e-9 else f"{value:.2g}"


def picture(low: float, value: float, high: float, *, ends: tuple[float, float], mark: float | None = None) -> str:
    """Draw an interval on a line of 33 characters between `ends`: `=` inside, `o` the value, `|` a mark.

    An end beyond the line is an arrow.

    >>> picture(0.25, 0.5, 0.75, ends=(0.0, 1.0), mark=0.1)
    '...|....========o========........'
    """
    last, (first_x, last_x) = PICTURE - 1, ends

    def place(x: float) -> int:
        return round(min(max((x - first_x) / (last_x - first_x), 0.0), 1.0) * last)

    line = ["."] * PICTURE
    for i in range(place(low), place(high) + 1):
        line[i] = "="
    if low < first_x:
        line[0] = "<"
    if high > last_x:
        line[-1] = ">"
    if mark is not None:
        line[place(mark)] = "|"
    line[place(value)] = "o"
    return "".join(line)


def short(text: str, width: int) -> str:
    """The text, cut to `width` characters with '..' at its end."""
    return text if len(text) <= width else f"{text[: width - 2]}.."


def yes(value: bool | None) -> str:
    """'yes' or 'no'; '?' where it is not known."""
    return {True: "yes", False: "no", None: "?"}[value]
