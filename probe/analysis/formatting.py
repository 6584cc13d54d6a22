"""Tables of texts, and plain text at most 100 columns wide: tables, numbers, wrapped lines."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from probe.analysis.statistics.stats import Interval

WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Rows of texts under a header; whoever shows it chooses the form."""

    name: str  # unique among the tables of an analysis
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # columns flush left; the others, numbers mostly, flush right


def render_table(table: TextTable) -> str:
    """Aligned columns under the title; '' without rows."""
    if not table.rows:
        return ""
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i < table.left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (table.header, *table.rows)
    ]
    return "\n".join([*wrap(table.title), *(f"  {line}".rstrip() for line in lines)])


def wrap(text: str, *, indent: str = "") -> list[str]:
    """Lines of at most WIDTH columns; later lines start with `indent`."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent)


def number(value: float | None, digits: int = 3) -> str:
    """A signed number, or '-' for null."""
    return "-" if value is None else f"{value:+.{digits}f}"


def share(value: float | None) -> str:
    """A number in [0, 1], or '-' for null."""
    return "-" if value is None else f"{value:.2f}"


def p_value(value: float | None) -> str:
    """A p-value to two digits, or '-' for null; below 1e-9 the exact size says nothing."""
    return "-" if value is None else "<1e-9" if value < 1e-9 else f"{value:.2g}"


def interval(value: Interval | None) -> str:
    """[low, high], or '-' for null."""
    return "-" if value is None else f"[{value.low:+.3f}, {value.high:+.3f}]"


def area(value: Interval | None) -> str:
    """[low, high] of a share, or '-' for null."""
    return "-" if value is None else f"[{value.low:.2f}, {value.high:.2f}]"


def short(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else f"{text[: width - 2]}.."


def yes(value: bool) -> str:
    """yes or no."""
    return "yes" if value else "no"
