"""Forest plots: one row per estimate, with its interval, over the band where its null has 95% of its values."""

from collections.abc import Sequence
from dataclasses import dataclass

from probe.analysis.formatting import short
from probe.analysis.statistics.intervals import Interval
from probe.report.figures.panel import ROW_LEFT, ROW_RIGHT, WIDTH, Figure, Panel, Scale, scale_of

ROW, TOP, LONGEST = 34, 44, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """One estimate."""

    label: str
    note: str  # beside the label: the numbers
    value: float | None
    interval: Interval | None = None
    null: tuple[float, float] | None = None  # where the null has 95%: its mean +- 1.96 sd
    strong: bool = True  # the measurement itself, not what it is compared with


def forest(
    name: str,
    title: str,
    rows: Sequence[ForestRow],
    *,
    label: str,
    subtitle: str = "",
    centre: float = 0.0,
    key: Sequence[tuple[str, str]] = (),
    count: int = 5,
) -> Figure | None:
    """Rows below one another, each label above its marks; None if no row has a value.

    Args:
        name: of the SVG file.
        title: of the panel, a question.
        rows: from top to bottom.
        label: of the axis, with the unit.
        subtitle: what is measured.
        centre: what no effect reads: 0 of a cosine, .5 of an AUROC.
        key: what the marks mean.
        count: of ticks, about.
    """
    if not any(row.value is not None for row in rows):
        return None
    top = TOP + (16 if key else 0)
    bottom = top + ROW * len(rows) + 4
    panel = Panel(name, title, bottom + 40, subtitle)
    scale = scale_of(_extent(rows), ROW_LEFT, ROW_RIGHT, least=(centre,))
    if key:
        panel.key(top - 6, key)
    panel.x_axis(scale, bottom, label, count=count)
    for i, row in enumerate(rows):
        y = top + ROW * i + 17
        panel.track(scale, y, 15, centre=centre, count=count)
        _draw_row(panel, scale, row, top + ROW * i)
    return panel.figure()


def _draw_row(panel: Panel, scale: Scale, row: ForestRow, y: float) -> None:
    panel.text(0, y + 12, short(row.label, LONGEST))
    panel.text(WIDTH, y + 12, row.note, "value", "end")
    middle = y + 24.5
    if row.null is not None:
        low, high = (scale(end) for end in row.null)
        tip = f"null: {row.null[0]:+.3f} to {row.null[1]:+.3f}"
        panel.rect(low, middle - 4.5, high - low, 9, "band", tip)
    if row.interval is not None:
        panel.line(scale(row.interval.low), middle, scale(row.interval.high), middle, "bar", f"95% interval {row.note}")
    if row.value is not None:
        panel.dot(scale(row.value), middle, "mark" if row.strong else "hollow", f"{row.label}: {row.value:+.4f}", r=4)


def _extent(rows: Sequence[ForestRow]) -> list[float]:
    """Every value, and both ends of every interval and null: what the axis has to hold."""
    ends = [row.value for row in rows if row.value is not None]
    for row in rows:
        if row.interval is not None:
            ends += [row.interval.low, row.interval.high]
        if row.null is not None:
            ends += row.null
    return ends
