"""What sections are made of: paragraphs, rows of panels, tables that fold away."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.report.markup import Child, node
from probe.report.panel import Figure
from probe.report.views import slug

_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
MARKS = {"PASS": "\u2713", "FAIL": "\u2715", "INCONCLUSIVE": "?", "VACUOUS": "\u2205"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page, with what is also written beside it."""

    id: str
    title: str
    lead: str  # what is asked here, and how to read the answer
    body: list[Element]
    figures: list[Figure] = field(default_factory=list)
    # By the label of their view; "" for the whole report.
    tables: dict[str, list[TextTable]] = field(default_factory=dict)


def prose(*children: Child, class_: str | None = None) -> Element:
    """A paragraph."""
    return node("p", *children, class_=class_)


def typeset(text: str) -> str:
    """Plain text with true signs: a minus before a number, plus-minus."""
    return _MINUS.sub("\u2212", text.replace("+-", "\u00b1"))


def panels(figures: Sequence[Figure]) -> list[Element]:
    """Figures beside one another, below one another on a phone."""
    if not figures:
        return []
    return [node("div", *(node("figure", own.svg) for own in figures), class_="panels")]


def beside(figures: Sequence[Figure], content: Sequence[Element], *, first: bool = True) -> list[Element]:
    """A column of figures and one of other content; below one another where there is no room."""
    column = node("div", *(node("figure", own.svg) for own in figures), class_="column")
    rest = node("div", *content)
    return [node("div", *((column, rest) if first else (rest, column)), class_="split" if first else "split last")]


def present(*figures: Figure | None) -> list[Figure]:
    """Those that could be drawn."""
    return [own for own in figures if own is not None]


def heading(text: str, many: bool) -> list[Element]:
    """The label of a view, where there are several."""
    return [node("h3", text)] if many else []


def chip(verdict: str) -> Element:
    """A verdict, told by its word and its mark, not by its colour alone."""
    return node("span", f"{MARKS.get(verdict, '')} {verdict}".strip(), class_=f"chip {slug(verdict)}")


def table_html(table: TextTable) -> Element:
    """The table, in a box that scrolls where the page is narrower."""
    sides = ("left" if i < table.left else None for i in range(len(table.header)))
    cells = (node("th", text, scope="col", class_=side) for text, side in zip(table.header, sides, strict=True))
    head = node("tr", *cells)
    rows = [node("tr", *(_cell(cell, i < table.left) for i, cell in enumerate(row))) for row in table.rows]
    caption = node("caption", typeset(table.title))
    return node("div", node("table", caption, node("thead", head), node("tbody", *rows)), class_="scroll", tabindex="0")


def _cell(text: str, left: bool) -> Element:
    return node("td", text, class_="left") if left else node("td", "\u2013" if text == "-" else typeset(text))


def folded(tables: Sequence[TextTable]) -> list[Element]:
    """Tables that open when their title is clicked."""
    return [
        node(
            "details",
            node("summary", table.title.partition(" (")[0].partition(": Welch")[0]),
            table_html(table),
            class_="fold",
        )
        for table in tables
    ]
