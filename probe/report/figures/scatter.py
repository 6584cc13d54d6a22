"""Is the score about something trivial? Sample cosines against length and likelihood, one mark per rollout.

To add a panel: add a `Rival` here, and name it in `trivia` of `probe/report/sections/evidence.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from probe.analysis.formatting import short
from probe.analysis.measures.specificity import SCORES
from probe.records.records import SampleRecord
from probe.report.figures.panel import LEFT, RIGHT, Figure, Panel, scale_of, signed, tooltip
from probe.report.html import node, number

TOP, BOTTOM = 62, 226


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A trivial score that the cosine competes with, and the words of its panel."""

    score: str  # a key of `probe.analysis.measures.specificity.SCORES`
    title: str
    label: str  # of the axis, with the unit


LENGTH = Rival(score="comp_len", title="Is the score about length?", label="completion length (tokens)")
LIKELIHOOD = Rival(
    score="nll", title="Is the score about likelihood?", label="mean nll of the completion (nats a token)"
)


def scatter(
    name: str,
    rival: Rival,
    samples: Sequence[SampleRecord],
    link: Callable[[SampleRecord], str | None],
    *,
    most: int,
) -> Figure | None:
    """cos_S_contrib against a rival: colour is the label, a circle the first source, a square every other.

    Args:
        name: of the SVG file.
        rival: the trivial score along x.
        samples: of one arm.
        link: the address of a rollout in the page, or None if it is not shown.
        most: marks; of more rollouts, evenly spaced ones are drawn.
    """
    points = []
    for sample in samples:
        value = SCORES[rival.score](sample)
        if sample.cos_S_contrib is not None and value is not None:
            points.append((sample, value, sample.cos_S_contrib))
    if not points:
        return None
    drawn = points[:: math.ceil(len(points) / most)]
    note = "" if len(drawn) == len(points) else f"; {len(drawn)} of {len(points)} drawn"
    panel = Panel(name, rival.title, BOTTOM + 40, f"cos_S_contrib of each rollout{note}")
    x = scale_of([value for _, value, _ in drawn], LEFT, RIGHT)
    y = scale_of([cosine for _, _, cosine in drawn], BOTTOM, TOP, least=(0.0,))
    panel.y_axis(y, "", count=5)
    panel.x_axis(x, BOTTOM, rival.label)
    pools = list(dict.fromkeys(sample.src_pool for sample in samples))
    panel.key(46, [("dot hack", "hacked"), ("dot clean", "clean")])
    if len(pools) > 1:
        panel.text(RIGHT, 46, f"\u25cf {short(pools[0], 14)}  \u25a0 {short(', '.join(pools[1:]), 18)}", "soft", "end")
    for sample, value, cosine in drawn:
        mark = _mark(sample, x(value), y(cosine), circle=sample.src_pool == pools[0])
        href = link(sample)
        panel.add(mark if href is None else node("a", mark, href=href))
    return panel.figure()


def _mark(sample: SampleRecord, x: float, y: float, *, circle: bool) -> Element:
    """A circle or a square, with what it stands for as its tooltip."""
    class_ = f"{'hack' if sample.hacked else 'clean'} point"
    where = f"step {sample.step}, sample {sample.sample_id} ({sample.src_pool})"
    tip = tooltip(f"{where}: {signed(sample.cos_S_contrib)}, {sample.comp_len} tokens")
    if circle:
        return node("circle", tip, cx=x, cy=y, r=3.4, class_=class_)
    return node("rect", tip, x=number(x - 3), y=number(y - 3), width=6, height=6, class_=class_)
