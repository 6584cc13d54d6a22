"""What more prompts, or more seeds, could show: the smallest effect seen with 80% power at 5%."""

import math
from collections.abc import Sequence

import numpy as np

from probe.analysis.formatting import short
from probe.analysis.statistics.power import mde
from probe.analysis.statistics.thresholds import NEAR_ZERO
from probe.analysis.verdict.evidence import PlannedTraining
from probe.report.panel import LEFT, RIGHT, Figure, Panel, Scale

TOP, BOTTOM = 62, 206
SEEDS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
PROMPTS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ONE_SAMPLE = 0.5  # a correlation of .5 makes the paired error sd / sqrt(n), which is that of one sample's mean


def prompts_power(name: str, label: str, cosines: Sequence[float]) -> Figure | None:
    """Smallest mean cos_in that n prompts show, given how much the prompts of this run vary."""
    sd = float(np.std(cosines, ddof=1)) if len(cosines) > 1 else 0.0
    if not sd > 0:
        return None
    here = len(cosines)
    effects = {n: mde(sd, n, paired_correlation=ONE_SAMPLE) for n in sorted({*PROMPTS, here}) if n > 1}
    subtitle = f"smallest mean cos_in seen; {short(label, 20)}: sd {sd:.3f}"
    panel, x, y = _frame(name, "How many prompts are enough?", subtitle, effects)
    _log_ticks(panel, x, (4, 8, 16, 32, 64, 128, 256), "prompts")
    _mark_line(panel, y, NEAR_ZERO, f"{NEAR_ZERO}: aligned (R1)")
    panel.path([(x(math.log2(n)), y(effect)) for n, effect in effects.items()], "curve")
    at, height = x(math.log2(here)), y(effects[here])
    panel.dot(at, height, "mark", f"{here} prompts: {effects[here]:.3f}", r=4)
    close = abs(height - y(NEAR_ZERO)) < 18
    panel.text(at + 8, height + (18 if close else -7), f"this run: {here} prompts, {effects[here]:.3f}")
    return panel.figure()


def seeds_power(name: str, plan: PlannedTraining) -> Figure:
    """Smallest difference of two arms that n seeds each show, as rule R7 counts it."""
    numbers = sorted({*SEEDS, plan.seeds} - {1})
    rho = 0.5 if plan.paired_correlation is None else plan.paired_correlation
    unpaired = {n: mde(plan.sd, n) for n in numbers}
    paired = {n: mde(plan.sd, n, paired_correlation=rho) for n in numbers}
    both = {**unpaired, -1: min(paired.values()), -2: max(paired.values())}
    subtitle = f"smallest difference of two arms seen; sd {plan.sd:g} between seeds"
    panel, x, y = _frame(name, "What could a training run show?", subtitle, both)
    panel.key(46, [("line curve", "unpaired"), ("line soft-curve", f"paired, correlation {rho:g}")])
    _log_ticks(panel, x, (2, 3, 5, 8, 12, 20), "seeds of each arm")
    _mark_line(panel, y, plan.expected_effect, f"expected: {plan.expected_effect:g}")
    for effects, class_, dot in ((unpaired, "curve", "mark"), (paired, "soft-curve", "hollow")):
        panel.path([(x(math.log2(n)), y(effect)) for n, effect in effects.items()], class_)
        if plan.seeds in effects:
            tip = f"{plan.seeds} seeds, as planned: {effects[plan.seeds]:.2f}"
            panel.dot(x(math.log2(plan.seeds)), y(effects[plan.seeds]), dot, tip, r=4)
    return panel.figure()


def _mark_line(panel: Panel, y: Scale, value: float, words: str) -> None:
    """A dashed line at a value, if it is inside."""
    if y.low < value < y.high:
        panel.line(LEFT, y(value), RIGHT, y(value), "edge")
        panel.text(RIGHT, y(value) - 5, words, "soft", "end")


def _frame(name: str, title: str, subtitle: str, effects: dict[int, float]) -> tuple[Panel, Scale, Scale]:
    """An empty panel whose horizontal axis is log2 n."""
    numbers = [n for n in effects if n > 0]
    panel = Panel(name, title, BOTTOM + 40, subtitle)
    x = Scale(math.log2(min(numbers)) - 0.2, math.log2(max(numbers)) + 0.2, LEFT, RIGHT)
    y = Scale(0.0, 1.08 * max(effects.values()), BOTTOM, TOP)
    panel.y_axis(y, "", count=4)
    return panel, x, y


def _log_ticks(panel: Panel, x: Scale, numbers: Sequence[int], label: str) -> None:
    for n in numbers:
        if x.low <= math.log2(n) <= x.high:
            panel.text(x(math.log2(n)), BOTTOM + 16, str(n), "tick", "middle")
    panel.text((LEFT + RIGHT) / 2, BOTTOM + 31, label, "label", "middle")
