"""Is the score about something trivial? Sample cosines against length and likelihood, one mark a rollout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probe.analysis.formatting import short
from probe.analysis.measures.specificity import SCORES
from probe.records.records import SampleRecord
from probe.report.markup import node, number
from probe.report.panel import LEFT, RIGHT, Figure, Panel, Scale, scale_of, signed, tooltip

TOP, BOTTOM = 62, 226


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A trivial score, by its name in `probe.analysis.measures.specificity`, and how the panel speaks of it."""

    score: str
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
        samples: of one arm.
        link: where a rollout is shown, if it is.
        most: marks; of more rollouts, evenly spaced ones are drawn.
    """
    known = [
        (s, value) for s in samples if s.cos_S_contrib is not None and (value := SCORES[rival.score](s)) is not None
    ]
    if not known:
        return None
    shown = known[:: -(-len(known) // most)]
    note = "" if len(shown) == len(known) else f"; {len(shown)} of {len(known)} drawn"
    panel = Panel(name, rival.title, BOTTOM + 40, f"cos_S_contrib of each rollout{note}")
    x = scale_of([value for _, value in shown], LEFT, RIGHT)
    y = scale_of([s.cos_S_contrib or 0.0 for s, _ in shown], BOTTOM, TOP, least=(0.0,))
    panel.y_axis(y, "", count=5)
    panel.x_axis(x, BOTTOM, rival.label)
    pools = list(dict.fromkeys(s.src_pool for s in samples))
    panel.key(46, [("dot hack", "hacked"), ("dot clean", "clean")])
    if len(pools) > 1:
        panel.text(RIGHT, 46, f"\u25cf {short(pools[0], 14)}  \u25a0 {short(', '.join(pools[1:]), 18)}", "soft", "end")
    for s, value in shown:
        _mark(panel, x(value), y, s, s.src_pool == pools[0], link(s))
    return panel.figure()


def _mark(panel: Panel, px: float, y: Scale, s: SampleRecord, first: bool, href: str | None) -> None:
    assert s.cos_S_contrib is not None
    class_ = f"{'hack' if s.hacked else 'clean'} point"
    tip = tooltip(f"step {s.step}, sample {s.sample_id} ({s.src_pool}): {signed(s.cos_S_contrib)}, {s.comp_len} tokens")
    py = y(s.cos_S_contrib)
    if first:
        mark = node("circle", tip, cx=px, cy=py, r=3.4, class_=class_)
    else:
        mark = node("rect", tip, x=number(px - 3), y=number(py - 3), width=6, height=6, class_=class_)
    panel.add(mark if href is None else node("a", mark, href=href))
