"""A share with its interval as a small bar in a line of text: what `share_picture` draws in the terminal."""

from xml.etree.ElementTree import Element

from probe.analysis.statistics.intervals import Bounded
from probe.report.figures.panel import Scale, tooltip
from probe.report.html import node

WIDTH, HEIGHT = 150, 18
LOW, HIGH = -0.5, 1.5  # as in the terminal


def share_bar(number: Bounded, counts_from: float) -> Element:
    """A line from -0.5 to 1.5 with marks at 0, 1 and where the share counts; ends beyond it lie at its ends."""
    scale, middle = Scale(LOW, HIGH, 4, WIDTH - 4), HEIGHT / 2
    bounds = number.interval
    words = f"{number.value:.2f}, 95% interval {bounds.low:.2f} to {bounds.high:.2f}; counts from {counts_from:g} on"
    marks = [node("line", x1=scale(LOW), y1=middle, x2=scale(HIGH), y2=middle, class_="grid")]
    marks += [node("line", x1=scale(at), y1=3, x2=scale(at), y2=HEIGHT - 3, class_="zero") for at in (0.0, 1.0)]
    marks.append(node("line", x1=scale(counts_from), y1=1, x2=scale(counts_from), y2=HEIGHT - 1, class_="edge"))
    marks.append(node("line", x1=scale(bounds.low), y1=middle, x2=scale(bounds.high), y2=middle, class_="bar"))
    marks.append(node("circle", cx=scale(number.value), cy=middle, r=4, class_="mark"))
    return node(
        "svg", tooltip(words), *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="share", role="img", aria_label=words
    )
