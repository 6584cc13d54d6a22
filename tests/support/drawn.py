"""What a figure has drawn: its axes, and the points of every labelled series."""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probe.report.drawing import STYLE

Points = list[tuple[float, float]]


def axes_of(draw: Callable[..., object], *data: Any) -> Axes:
    """The axes on which `draw(axes, *data)` has drawn."""
    with mpl.rc_context(STYLE):
        axes = Figure().add_subplot()
        draw(axes, *data)
    return axes


def series(axes: Axes) -> dict[str, Points]:
    """{label: its points}; marks with one label are one series."""
    points: dict[str, Points] = {}
    for line in axes.lines:
        points.setdefault(str(line.get_label()), []).extend(zip(map(float, line.get_xdata()), line.get_ydata()))
    return {label: of for label, of in points.items() if not label.startswith("_")}


def intervals(axes: Axes) -> Points:
    """(low, high) of every interval of a curve, from left to right."""
    lines = [line for line in axes.lines if line.get_alpha() == 0.45 and str(line.get_label()).startswith("_")]
    ordered = sorted(lines, key=lambda line: line.get_xdata()[0])
    return [(float(line.get_ydata()[0]), float(line.get_ydata()[1])) for line in ordered]
