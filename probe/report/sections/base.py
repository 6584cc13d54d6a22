"""`Section`, and the blocks that sections are made of: paragraphs, rows of figures, tables that fold away."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.analysis.statistics.intervals import Bounded
from probe.report.drawing import Figure
from probe.report.html import Child, node
from probe.report.inputs import slug

# A minus stands before a number; a hyphen inside a word (`demo-2`) or between numbers is left alone.
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
LONGEST_NUMBER = 36  # characters; a longer cell is a sentence, which may break
MARKS = {
    "PASS": "\u2713",
    "YES": "\u2713",
    "FAIL": "\u2715",
    "NO": "\u2715",
    "INCONCLUSIVE": "?",
    "UNCLEAR": "?",
    "UNDERPOWERED": "?",
    "WORKS": "\u2713",
    "CONFOUNDED": "?",
    "UNMEASURED": "?",
    "VACUOUS": "\u2205",
    "holds": "\u2713",
    "BROKEN": "\u2715",
    "not seen": "?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page, with the figures and tables that are also written as files."""

    id: str
    title: str
    lead: str  # the question of the section, and how to read the answer
    body: list[Element]
    figures: list[Figure] = field(default_factory=list)
    tables: dict[str, list[TextTable]] = field(
        default_factory=dict
    )  # by the label of their view; "" for the whole report


def paragraph(*children: Child, class_: str | None = None) -> Element:
    """A paragraph."""
    return node("p", *children, class_=class_)


def typeset(text: str) -> str:
    """Plain text with true signs: a minus before a number, plus-minus."""
    return _MINUS.sub("\u2212", text.replace("+-", "\u00b1"))


def panels(figures: Sequence[Figure]) -> list[Element]:
    """Figures beside one another, below one another on a phone."""
    if not figures:
        return []
    return [node("div", *_framed(figures), class_="panels")]


def drawn_only(*figures: Figure | None) -> list[Figure]:
    """The figures without the Nones of those that had nothing to draw."""
    return [figure for figure in figures if figure is not None]


def heading(text: str, *, needed: bool) -> list[Element]:
    """The label of a view, needed where there are several."""
    return [node("h3", text)] if needed else []


def chip(verdict: str) -> Element:
    """A verdict, told by its word and its mark, not by its colour alone."""
    return node("span", f"{MARKS.get(verdict, '')} {verdict}".strip(), class_=f"chip {slug(verdict)}")


def table_html(table: TextTable) -> Element:
    """The table, in a box that scrolls where the page is narrower."""
    header = node("tr")
    for i, text in enumerate(table.header):
        header.append(node("th", *_breakable(text), scope="col", class_="left" if i < table.left else None))
    rows = [node("tr", *(_cell(text, i < table.left) for i, text in enumerate(row))) for row in table.rows]
    caption = node("caption", typeset(table.title))
    content = node("table", caption, node("thead", header), node("tbody", *rows))
    return node("div", content, class_="scroll", tabindex="0")  # tabindex: scrolled by keyboard too


def folded(tables: Sequence[TextTable]) -> list[Element]:
    """Tables that open when their title is clicked."""
    folds = []
    for table in tables:
        title = table.title.partition(" (")[0].partition(": Welch")[0]  # what follows is in the caption
        folds.append(node("details", node("summary", title), table_html(table), class_="fold"))
    return folds


def _framed(figures: Sequence[Figure]) -> list[Element]:
    return [node("figure", ElementTree.fromstring(figure.svg)) for figure in figures]


def _breakable(name: str) -> list[Child]:
    """A name such as `hackward_frac` with a place to break after each underscore."""
    parts: list[Child] = []
    for part in name.split("_"):
        parts += ["_", node("wbr"), part] if parts else [part]
    return parts


def _cell(text: str, left: bool) -> Element:
    if left:
        return node("td", text, class_="left")
    if len(text) > LONGEST_NUMBER:
        return node("td", typeset(text), class_="words")
    return node("td", "\u2013" if text == "-" else typeset(text))


def share_bar(number: Bounded, counts_from: float) -> Element:
    """A line from -0.5 to 1.5 with marks at 0, 1 and where the share counts; ends beyond it lie at its ends."""

    def place(value: float) -> str:
        return f"{4 + 71 * (min(max(value, -0.5), 1.5) + 0.5):.1f}"

    bounds = number.interval
    words = f"{number.value:.2f}, 95% interval {bounds.low:.2f} to {bounds.high:.2f}; counts from {counts_from:g} on"
    marks = [node("line", x1=place(-0.5), y1=9, x2=place(1.5), y2=9, class_="grid")]
    marks += [node("line", x1=place(at), y1=3, x2=place(at), y2=15, class_="zero") for at in (0.0, 1.0)]
    marks.append(node("line", x1=place(counts_from), y1=1, x2=place(counts_from), y2=17, class_="edge"))
    marks.append(node("line", x1=place(bounds.low), y1=9, x2=place(bounds.high), y2=9, class_="bar"))
    marks.append(node("circle", cx=place(number.value), cy=9, r=4, class_="mark"))
    title = node("title", words)
    return node("svg", title, *marks, viewBox="0 0 150 18", class_="share", role="img", aria_label=words)
