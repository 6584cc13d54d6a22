"""Cosines step by step, before and after the gate of one arm, over the band of 95% of Haar directions."""

from collections.abc import Sequence

from probe.analysis.formatting import short
from probe.analysis.statistics.nulls import NORMAL_975
from probe.records.records import StepRecord
from probe.report.panel import LEFT, RIGHT, Figure, Panel, Scale, scale_of, signed
from probe.settings.arms import ARMS

MOST_DOTS = 60  # above it, lines without a mark a step
TOP, BOTTOM = 62, 176
DIRECTIONS = {"v_hack": "v_hack", "haar": "Haar directions", "permuted": "permuted labels", "placebo": "placebo pairs"}


def trajectory(name: str, steps: Sequence[StepRecord], extent: tuple[float, float]) -> Figure | None:
    """cos_in and cos_out of one arm.

    Args:
        steps: of one arm, in order.
        extent: of the vertical axis, which the arms of a run share (`extent_of`).
    """
    if not steps:
        return None
    arm = steps[0].arm
    row = ARMS.get(arm)
    gate = "left alone" if row is not None and not row.projects else "gated"
    against = f"against {DIRECTIONS[row.directions]} ({row.basis}), {gate}" if row is not None else ""
    panel = Panel(name, f"{arm}: cosine by step", BOTTOM + 40, against)
    x = Scale(steps[0].step - 0.7, max(steps[-1].step, steps[0].step) + 0.7, LEFT, RIGHT)
    y = scale_of(extent, BOTTOM, TOP)
    _band(panel, x, y, steps)
    panel.y_axis(y, "", count=4)
    panel.x_axis(x, BOTTOM, "step", count=6, whole=True)
    trains = any(s.cos_update is not None for s in steps)
    last = ("line soft-curve", "of the update") if trains else ("rect band", "95% of Haar")
    dots = len(steps) <= MOST_DOTS
    marks = ("dot mark", "dot hollow") if dots else ("line curve", "line thin")
    panel.key(46, [(marks[0], "cos_in"), (marks[1], "cos_out"), last])
    panel.text(RIGHT, 46, "\u00d7 no gradient", "soft", "end")
    if trains:
        _curve(panel, x, y, steps, "cos_update", "soft-curve")
        _curve(panel, x, y, steps, "cos_in", "thin")
    if dots:
        _dumbbells(panel, x, y, steps)
    else:
        _curve(panel, x, y, steps, "cos_out", "thin")
        _curve(panel, x, y, steps, "cos_in", "curve")
    return panel.figure()


def extent_of(steps: Sequence[StepRecord]) -> tuple[float, float]:
    """The lowest and highest of every cosine and band of a run."""
    values = [v for s in steps for v in (s.cos_in, s.cos_out, s.cos_update) if v is not None]
    values += [sign * NORMAL_975 * s.haar_sd for s in steps if s.haar_sd for sign in (-1, 1)]
    return min([*values, 0.0]), max([*values, 0.0])


def _band(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord]) -> None:
    for s in steps:
        if s.haar_sd:
            top, bottom = (y(sign * NORMAL_975 * s.haar_sd) for sign in (1, -1))
            panel.rect(x(s.step - 0.5), top, x(s.step + 0.5) - x(s.step - 0.5), bottom - top, "band")


def _dumbbells(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord]) -> None:
    """A mark before and one after the gate, joined; a cross at the bottom where there is no gradient."""
    for s in steps:
        at, problem = x(s.step), short(s.problem_id, 40)
        if s.cos_in is None or s.cos_out is None:
            tip = f"step {s.step} ({problem}): {s.null_reason}"
            for slope in (-3, 3):
                panel.line(at - 3, BOTTOM - 6 - slope, at + 3, BOTTOM - 6 + slope, "none", tip)
            continue
        tip = f"step {s.step} ({problem}): cos_in {signed(s.cos_in)}, cos_out {signed(s.cos_out)}"
        if s.cos_in != s.cos_out:
            panel.line(at, y(s.cos_in), at, y(s.cos_out), "link")
            panel.dot(at, y(s.cos_out), "hollow", tip, r=3)
        panel.dot(at, y(s.cos_in), "mark", tip, r=3)


def _curve(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord], field: str, class_: str) -> None:
    for part in _unbroken([(s.step, getattr(s, field)) for s in steps]):
        panel.path([(x(step), y(value)) for step, value in part], class_, f"{field} by step")


def _unbroken(values: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    """Stretches without a missing value."""
    parts: list[list[tuple[int, float]]] = [[]]
    for step, value in values:
        if value is None:
            parts.append([])
        else:
            parts[-1].append((step, value))
    return [part for part in parts if part]
