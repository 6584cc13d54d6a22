"""Matplotlib figures with the colours of the page; `drawn` passes empty axes to a function.

figure = drawn("learning-hack", learning, arms, "hack")    draw(axes, data) labels its axes
figure.svg                                                 for the page: text as text, colours as CSS variables
figure.save(folder, "pdf")                                 for a paper
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

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
    "svg.hashsalt": "gradient-probe",
    "pdf.fonttype": 42,
}
_UNDATED: dict[Format, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
_DECIMALS = re.compile(r"-?\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawn figure; `name` is the stem of its file."""

    name: str
    title: str
    canvas: Canvas

    @cached_property
    def svg(self) -> str:
        """SVG element for a page, without styles, addresses or ids that another figure may have."""
        return _for_page(self._drawing, self.name, self.title)

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
        with _styled():
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
            text.set_text(visible(text.get_text(), kept=""))
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


def _for_page(svg: bytes, name: str, title: str) -> str:
    """Turn styles into attributes, since the page forbids inline styles, and put the figure's name into ids."""
    text = svg.decode()
    for variable, color in COLORS.items():
        text = text.replace(color, f"var(--{variable})")
    root = ElementTree.fromstring(text[text.index("<svg") :])
    addressed = re.findall(r"#([\w.]+)", " ".join(value for node in root.iter() for value in node.attrib.values()))
    names = {old: f"{name}-{place}" for place, old in enumerate(dict.fromkeys(addressed))}
    for parent in list(root.iter()):
        for node in list(parent):
            if node.tag.endswith(("metadata", "style")):
                parent.remove(node)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.text, node.tail = (text if text and text.strip() else None for text in (node.text, node.tail))
        attributes = {}
        for key, value in node.attrib.items():
            key = key.rpartition("}")[2]
            if key == "style":
                attributes |= dict(part.strip().split(": ", 1) for part in value.split(";") if part.strip())
            elif key == "id":
                attributes |= {"id": names[value]} if value in names else {}
            elif key != "transform" or not value.startswith("rotate(-0 "):
                value = re.sub(r"#([\w.]+)", lambda address: f"#{names[address[1]]}", value)
                attributes[key] = _DECIMALS.sub(lambda number: f"{float(number[0]):.1f}", " ".join(value.split()))
        attributes.pop("font-family", None)
        node.attrib.clear()
        node.attrib.update(attributes)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib |= {"viewBox": f"0 0 {width} {height}", "class": "fig", "role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")
