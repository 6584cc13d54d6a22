"""Trajectories: the cosines of one arm, step by step, before and after its gate, over 95% of Haar directions."""

from collections.abc import Sequence

from probe.analysis.formatting import short
from probe.analysis.statistics.nulls import NORMAL_975
from probe.records.records import StepRecord
from probe.report.figures.panel import LEFT, RIGHT, Figure, Panel, Scale, scale_of, signed
from probe.settings.arms import ARMS

MOST_DOTS = 60  # with more steps, curves are drawn in the place of a mark per step
TOP, BOTTOM = 62, 176
DIRECTIONS = {"v_hack": "v_hack", "haar": "Haar directions", "permuted": "permuted labels", "placebo": "placebo pairs"}


def trajectory(name: str, steps: Sequence[StepRecord], extent: tuple[float, float], *, trains: bool) -> Figure | None:
    """cos_in and cos_out of one arm.

    Args:
        name: of the SVG file.
        steps: of one arm, in order.
        extent: of the vertical axis, which the arms of a run share (`extent_of`).
        trains: whether they are steps of a training, along one path.
    """
    if not steps:
        return None
    arm = steps[0].arm
    panel = Panel(name, f"{arm}: cosine by step", BOTTOM + 40, _describe(arm))
    x = Scale(steps[0].step - 0.7, max(steps[-1].step, steps[0].step) + 0.7, LEFT, RIGHT)
    y = scale_of(extent, BOTTOM, TOP)
    _draw_bands(panel, x, y, steps)
    panel.y_axis(y, "", count=4)
    panel.x_axis(x, BOTTOM, "step", count=6, whole=True)
    with_dots = len(steps) <= MOST_DOTS
    before, after = ("dot mark", "dot hollow") if with_dots else ("line curve", "line thin")
    third = ("line soft-curve", "of the update") if trains else ("rect band", "95% of Haar")
    panel.key(46, [(before, "cos_in"), (after, "cos_out"), third])
    panel.text(RIGHT, 46, "\u00d7 no gradient", "soft", "end")
    # Steps of training are one path and are joined; at frozen weights their order means nothing.
    if trains:
        _draw_curve(panel, x, y, steps, "cos_update", "soft-curve")
        _draw_curve(panel, x, y, steps, "cos_in", "thin")
    if with_dots:
        _draw_dumbbells(panel, x, y, steps)
    else:
        _draw_curve(panel, x, y, steps, "cos_out", "thin")
        _draw_curve(panel, x, y, steps, "cos_in", "curve")
    return panel.figure()


def extent_of(steps: Sequence[StepRecord]) -> tuple[float, float]:
    """The lowest and highest of every cosine and Haar band of a run, with 0 between them."""
    values = [0.0]
    for step in steps:
        values += [cosine for cosine in (step.cos_in, step.cos_out, step.cos_update) if cosine is not None]
        if step.haar_sd:
            values += [-NORMAL_975 * step.haar_sd, NORMAL_975 * step.haar_sd]
    return min(values), max(values)


def _describe(arm: str) -> str:
    """`against v_hack (svd), gated`; nothing for an arm that is not in the table of arms."""
    row = ARMS.get(arm)
    if row is None:
        return ""
    gate = "gated" if row.projects else "left alone"
    return f"against {DIRECTIONS[row.directions]} ({row.basis}), {gate}"


def _draw_bands(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord]) -> None:
    for step in steps:
        if step.haar_sd:
            left, right = x(step.step - 0.5), x(step.step + 0.5)
            top, bottom = y(NORMAL_975 * step.haar_sd), y(-NORMAL_975 * step.haar_sd)
            panel.rect(left, top, right - left, bottom - top, "band")


def _draw_dumbbells(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord]) -> None:
    """A mark before and one after the gate, joined; a cross at the bottom where there is no gradient."""
    for step in steps:
        center = x(step.step)
        where = f"step {step.step} ({short(step.problem_id, 40)})"
        if step.cos_in is None or step.cos_out is None:
            for slope in (-3, 3):
                ends = (center - 3, BOTTOM - 6 - slope, center + 3, BOTTOM - 6 + slope)
                panel.line(*ends, "none", f"{where}: {step.null_reason}")
            continue
        tip = f"{where}: cos_in {signed(step.cos_in)}, cos_out {signed(step.cos_out)}"
        if step.cos_in != step.cos_out:
            panel.line(center, y(step.cos_in), center, y(step.cos_out), "link")
            panel.dot(center, y(step.cos_out), "hollow", tip, r=3)
        panel.dot(center, y(step.cos_in), "mark", tip, r=3)


def _draw_curve(panel: Panel, x: Scale, y: Scale, steps: Sequence[StepRecord], field: str, class_: str) -> None:
    """One field of the records by step; the line is broken where the field is None."""
    for part in _unbroken([(step.step, getattr(step, field)) for step in steps]):
        panel.path([(x(number), y(value)) for number, value in part], class_, f"{field} by step")


def _unbroken(values: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    """(step, value) in stretches without a missing value."""
    parts: list[list[tuple[int, float]]] = [[]]
    for step, value in values:
        if value is None:
            parts.append([])
        else:
            parts[-1].append((step, value))
    return [part for part in parts if part]
