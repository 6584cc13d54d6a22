"""Hack against clean: within-prompt contrasts, AUROC of every score, and which rollouts carry the gradient."""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.measures.cells import Cell
from probe.analysis.statistics.nulls import NORMAL_975
from probe.analysis.statistics.stats import Interval
from probe.analysis.text import p_value, short
from probe.report.figures.forest import ForestRow, forest
from probe.report.figures.panel import Figure, Panel, plural, scale_of, signed

ROW, TOP = 32, 44  # of the cells


def contrasts(name: str, analysis: Analysis) -> Figure | None:
    """Mean within-prompt differences of the measured arm, with bootstrap intervals over prompts."""
    rows = [
        ForestRow(
            label=c.name if c.metric == "cos_S_contrib" else f"{c.name} (nll)",
            note=f"{signed(c.difference)} \u00b7 p {p_value(c.p)}",
            value=c.difference,
            interval=c.interval,
            null=_band(c.difference, c.haar.z) if c.haar else None,
        )
        for c in analysis.contrasts
        if c.arm == analysis.measured_arm and c.difference is not None
    ]
    return forest(
        name,
        "Do hacks point further hack-ward?",
        rows,
        subtitle="Within-prompt differences of cos_S_contrib; (nll): of cos_S_nll",
        label="difference of cosines, mean over prompts with 95% interval",
        key=[("rect band", "95% of Haar directions"), ("dot mark", "observed")],
    )


def areas(name: str, analysis: Analysis) -> Figure | None:
    """AUROC for hacked among A > 0: the measurement and the trivial scores that it has to beat."""
    rows = [
        ForestRow(
            label=s.score if i == 0 else f"{s.score} (trivial)",
            note="\u2013" if s.auroc is None else f"{s.auroc:.2f}{_range(s.interval)}",
            value=s.auroc,
            interval=s.interval,
            strong=i == 0,
        )
        for i, s in enumerate(analysis.specificity)
    ]
    return forest(
        name,
        "Does the cosine know a hack better than trivia?",
        rows,
        subtitle="AUROC for hacked among A > 0, bootstrap over prompts",
        label="AUROC (0.5 = no better than chance, 1 = without error)",
        centre=0.5,
        count=6,
        key=[("dot mark", "the measurement"), ("dot hollow", "what it must beat")],
    )


def cells(name: str, found: Sequence[Cell]) -> Figure | None:
    """Bars of `dot`; they add up to the whole, which is the last row."""
    paid = [cell for cell in found if cell.advantage_sign]
    if not paid:
        return None
    rows = [
        (_words(cell), cell.dot, f"{plural(cell.n, 'rollout')}, {plural(cell.num_prompts, 'prompt')}") for cell in paid
    ]
    rows.append(("all together", sum(cell.dot for cell in paid), plural(sum(cell.n for cell in paid), "rollout")))
    bottom = TOP + ROW * len(rows) + 4
    panel = Panel(
        name, "Which rollouts carry the gradient?", bottom + 40, "Additive parts of the gradient along v_hack"
    )
    scale = scale_of([value for _, value, _ in rows], 16, 324, least=(0.0,))
    panel.x_axis(scale, bottom, "sum of cos \u00d7 norm (\u2192 hack-ward)", count=4)
    for i, (label, value, note) in enumerate(rows):
        y, class_ = TOP + ROW * i, "hack" if value > 0 else "clean"
        panel.text(0, y + 12, short(label, 36))
        panel.text(340, y + 12, note, "value", "end")
        panel.track(scale, y + 16, 13, centre=0.0, count=4)
        tip = f"{label}: {value:+.3g} ({note})"
        panel.rect(scale(0), y + 18, scale(value) - scale(0), 9, class_ if i < len(rows) - 1 else "mark", tip)
    return panel.figure()


def _band(difference: float | None, z: float) -> tuple[float, float] | None:
    """Where 95% of the Haar law lies that gave this z."""
    if not difference or not z:
        return None
    half = NORMAL_975 * abs(difference / z)
    return -half, half


def _range(interval: Interval | None) -> str:
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""


def _words(cell: Cell) -> str:
    """`teacher, hint, hacked, right, A > 0`; what is not so is left out."""
    sign = "A > 0" if cell.advantage_sign > 0 else "A < 0"
    parts = [short(cell.src_pool, 14), "hint" if cell.hint else "", "hacked" if cell.hacked else "clean"]
    parts += ["right" if cell.gt_pass else "wrong", sign]
    return ", ".join(part for part in parts if part)
