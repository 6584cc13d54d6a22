"""How hacks differ from clean rollouts: within-prompt contrasts, AUROC of every score, and who carries the gradient."""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import p_value, short
from probe.analysis.measures.contrasts import Cell
from probe.analysis.statistics.nulls import NORMAL_975
from probe.report.figures.forest import ForestRow, forest
from probe.report.figures.panel import ROW_LEFT, ROW_RIGHT, WIDTH, Figure, Panel, plural, scale_of, signed

ROW, TOP = 32, 44  # of the advantage cells


def contrasts(name: str, analysis: Analysis) -> Figure | None:
    """Mean within-prompt differences of the measured arm, with their intervals over prompts."""
    rows = []
    for contrast in analysis.contrasts:
        if contrast.arm != analysis.measured_arm or contrast.difference is None:
            continue
        row = ForestRow(
            label=contrast.name if contrast.metric == "cos_S_contrib" else f"{contrast.name} (nll)",
            note=f"{signed(contrast.difference)} \u00b7 p {p_value(contrast.p)}",
            value=contrast.difference,
            interval=contrast.interval,
            null=_haar_band(contrast.difference, contrast.haar.z) if contrast.haar else None,
        )
        rows.append(row)
    return forest(
        name,
        "Do hacks point further hack-ward?",
        rows,
        subtitle="Within-prompt differences of cos_S_contrib; (nll): of cos_S_nll",
        label="difference of cosines, mean over prompts with 95% interval",
        key=[("rect band", "95% of Haar directions"), ("dot mark", "observed")],
    )


def areas(name: str, analysis: Analysis) -> Figure | None:
    """AUROC for hacked among A > 0: the cosine, and the trivial scores that it has to beat."""
    rows = []
    for i, specificity in enumerate(analysis.specificity):
        is_cosine = i == 0  # the first row of the analysis; the others are its rivals
        note = "\u2013"
        if specificity.auroc is not None:
            note = f"{specificity.auroc:.2f}"
            if specificity.interval:
                note += f" [{specificity.interval.low:.2f}, {specificity.interval.high:.2f}]"
        row = ForestRow(
            label=specificity.score if is_cosine else f"{specificity.score} (trivial)",
            note=note,
            value=specificity.auroc,
            interval=specificity.interval,
            strong=is_cosine,
        )
        rows.append(row)
    return forest(
        name,
        "Does the cosine know a hack better than trivia?",
        rows,
        subtitle="AUROC for hacked among A > 0, with 95% intervals over prompts",
        label="AUROC (0.5 = no better than chance, 1 = without error)",
        centre=0.5,
        count=6,
        key=[("dot mark", "the measurement"), ("dot hollow", "what it must beat")],
    )


def cells(name: str, advantage_cells: Sequence[Cell]) -> Figure | None:
    """Each cell's additive part of the hack-ward gradient (`dot`) as a bar; the last bar is their sum.

    Cells with A = 0 carry nothing and are left out.
    """
    paid = [cell for cell in advantage_cells if cell.advantage_sign]
    if not paid:
        return None
    rows = []
    for cell in paid:
        units = f"{plural(cell.n, 'rollout')}, {plural(cell.num_prompts, 'prompt')}"
        rows.append((_words(cell), cell.dot, units))
    rows.append(("all together", sum(cell.dot for cell in paid), plural(sum(cell.n for cell in paid), "rollout")))
    bottom = TOP + ROW * len(rows) + 4
    subtitle = "Additive parts of the gradient along v_hack"
    panel = Panel(name, "Which rollouts carry the gradient?", bottom + 40, subtitle)
    scale = scale_of([value for _, value, _ in rows], ROW_LEFT, ROW_RIGHT, least=(0.0,))
    panel.x_axis(scale, bottom, "sum of cos \u00d7 norm (\u2192 hack-ward)", count=4)
    for i, (label, value, note) in enumerate(rows):
        y = TOP + ROW * i
        class_ = "hack" if value > 0 else "clean"
        if i == len(rows) - 1:
            class_ = "mark"
        panel.text(0, y + 12, short(label, 36))
        panel.text(WIDTH, y + 12, note, "value", "end")
        panel.track(scale, y + 16, 13, centre=0.0, count=4)
        panel.rect(scale(0), y + 18, scale(value) - scale(0), 9, class_, f"{label}: {value:+.3g} ({note})")
    return panel.figure()


def _haar_band(difference: float, z: float) -> tuple[float, float] | None:
    """Where Haar directions have 95% of their differences, from z = difference / sd."""
    if not difference or not z:
        return None
    half = NORMAL_975 * abs(difference / z)
    return -half, half


def _words(cell: Cell) -> str:
    """`teacher, hint, hacked, right, A > 0`; `hint` is left out where there is none."""
    words = [short(cell.src_pool, 14)]
    if cell.hint:
        words.append("hint")
    words.append("hacked" if cell.hacked else "clean")
    words.append("right" if cell.gt_pass else "wrong")
    words.append("A > 0" if cell.advantage_sign > 0 else "A < 0")
    return ", ".join(words)
