"""Numbers, intervals and tables as plain text, at most 100 columns wide."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 100
PICTURE = 33  # width of an interval's picture, in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Rows of text cells. `render_table` aligns them for the terminal; the report renders them as HTML."""

    name: str  # unique within an analysis
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # number of leading left-aligned columns; the others, mostly numbers, are right-aligned


def render_table(table: TextTable) -> str:
    """Return aligned columns under the title; '' for a table without rows."""
    if not table.rows:
        return ""
    lines = aligned(table.header, table.rows, table.left)
    return "\n".join([*wrap(table.title), *(f"  {line}".rstrip() for line in lines)])


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return the lines of a table; the first `left` columns are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def wrap(text: str, *, indent: str = "") -> list[str]:
    """Return lines of at most WIDTH columns; lines after the first start with `indent`."""
    # Do not break at hyphens: that would split options and command names.
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def shown(value: Any, form: str = "") -> str:
    """Format a value with a Python format spec; '-' for None."""
    return "-" if value is None else format(value, form)


def rate_text(rate: Mapping[str, Any]) -> str:
    """Format a rate with its interval, `50% [35%, 65%]`; '-' without evaluated rollouts."""
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def p_value(value: float | None) -> str:
    """Format a p-value to two digits; '-' for None."""
    if value is None:
        return "-"
    # Below 1e-9 the size depends on the tail of an approximation and carries no information.
    return "<1e-9" if value < 1e-9 else f"{value:.2g}"


def picture(low: float, value: float, high: float, *, ends: tuple[float, float], mark: float | None = None) -> str:
    """Draw an interval on a line of 33 characters between `ends`: `=` inside, `o` the value, `|` a mark.

    An arrow marks an end beyond the line; a value there stands beside it.

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
    line[min(max(place(value), value < first_x), last - (value > last_x))] = "o"
    return "".join(line)


def short(text: str, width: int) -> str:
    """Cut the text to `width` characters, ending in '..'."""
    return text if len(text) <= width else f"{text[: width - 2]}.."


def yes(value: bool | None) -> str:
    """Return 'yes' or 'no'; '?' if unknown."""
    return {True: "yes", False: "no", None: "?"}[value]
