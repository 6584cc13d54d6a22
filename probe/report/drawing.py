"""Matplotlib figures with the colours of the page; `drawn` passes empty axes to a function.

figure = drawn("learning-hack", learning, arms, "hack")    draw(axes, data) labels its axes
figure.svg                                                 for the page: text as text, colours as CSS variables
figure.save(folder, "pdf")                                 for a paper
"""

import contextlib
import html
import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from probe.report.facts import typeset
from replay_pools.base.files import write_atomic
from replay_pools.base.terminal import visible

Format = Literal["svg", "pdf", "png"]

# Colours of the light scheme. Each is unique, because the page replaces a colour by `var(--NAME)` of page.css.
COLORS = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "soft": "#59636d",
    "edge": "#8a939b",
    "rule": "#dfe3e6",
    "hack": "#c4500a",
    "clean": "#0069a8",
    "arm-1": "#0b7a5b",
    "arm-2": "#8a4fa3",
    "arm-3": "#a06a00",
    "arm-4": "#b01b47",
}
PAPER, INK, SOFT, EDGE, RULE, HACK, CLEAN, *_ = COLORS.values()
ARMS = [INK, *(color for name, color in COLORS.items() if name.startswith("arm-"))]
WIDTH = 4.4  # inches: 9-point text is legible in a paper's column and on a phone
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the layout is the same on every machine
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": SOFT,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
    "xtick.color": EDGE,
    "ytick.color": EDGE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.markersize": 5,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_UNDATED: dict[Format, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
_TAG = re.compile("<[^>]+>")
_STYLE = re.compile('style="([^"]*)"')
_ID = re.compile(r' id="[A-Za-z0-9.]+_\d+"')  # `axes_1`; what is linked has a hash
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawn figure; `name` is the stem of its file."""

    name: str
    title: str
    canvas: Canvas

    @cached_property
    def svg(self) -> str:
        """SVG element for a page."""
        return _for_page(self._drawing, self.title)

    @cached_property
    def _drawing(self) -> bytes:
        return self._bytes("svg")

    def save(self, folder: Path, kind: Format) -> Path:
        """Write `folder`/NAME.KIND and return it."""
        path = folder / f"{self.name}.{kind}"
        write_atomic(path, self._drawing if kind == "svg" else self._bytes(kind))
        return path

    def _bytes(self, kind: Format) -> bytes:
        buffer = io.BytesIO()
        with _styled(), mpl.rc_context({"svg.hashsalt": self.name}):  # no id is that of another figure
            self.canvas.savefig(buffer, format=kind, metadata=_UNDATED[kind])
        return buffer.getvalue()


def drawn(name: str, draw: Callable[..., object], *data: Any, **more: Any) -> Figure | None:
    """Return the figure that `draw(axes, *data, **more)` draws, with a legend below; None if it draws nothing."""
    with _styled():
        canvas = Canvas(figsize=(WIDTH, 2.9), layout="constrained")
        axes = canvas.add_subplot()
        draw(axes, *data, **more)
        if not axes.has_data():
            return None
        handles, labels = axes.get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))  # one entry per label
        if legend:
            columns = min(4, 68 // (max(map(len, legend)) + 6) or 1)
            canvas.legend(legend.values(), legend.keys(), loc="outside lower left", ncols=columns)
            set_height(axes, canvas.get_figheight() + 0.19 * -(-len(legend) // columns))
        for text in canvas.findobj(Text):
            text.set_text(typeset(visible(text.get_text(), kept="")))
    return Figure(name=name, title=axes.get_title(loc="left"), canvas=canvas)


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    """Apply STYLE and ignore missing glyphs: matplotlib estimates their width, and the page uses its own font."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def set_height(axes: Axes, inches: float) -> None:
    """Set the height of the figure of these axes, without the legend."""
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    canvas.set_figheight(inches)


def _for_page(svg: bytes, title: str) -> str:
    """Return the SVG element with its colours as variables of page.css and, since the page forbids them, no styles."""
    text = svg.decode()
    for variable, color in COLORS.items():
        text = text.replace(color, f"var(--{variable})")
    head, _, body = text[text.index("<svg") :].partition(">")
    (box,) = re.findall(r'viewBox="[^"]*"', head)
    body = _TAG.sub(_bare, re.sub("<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL))
    return f'<svg {box} class="fig" role="img" aria-label="{html.escape(title)}">{body}'


def _bare(tag: re.Match[str]) -> str:
    """Return a tag with styles as attributes and short numbers, without ids of no drawing and old names of links."""
    text = _STYLE.sub(lambda style: re.sub(r"([\w-]+): ([^;]+);? ?", r'\1="\2" ', style[1]), _ID.sub("", tag[0]))
    text = _DECIMALS.sub(lambda number: f"{float(number[0]):.1f}", " ".join(text.split()))
    return text.replace("xlink:href", "href")
