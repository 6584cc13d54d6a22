"""Which rollouts carry the gradient: the additive part of every advantage cell in its hack-ward component."""

from collections.abc import Sequence

from probe.analysis.formatting import short
from probe.analysis.measures.cells import Cell
from probe.report.panel import Figure, Panel, plural, scale_of

ROW, TOP = 32, 44


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


def _words(cell: Cell) -> str:
    """`teacher, hint, hacked, right, A > 0`; what is not so is left out."""
    sign = "A > 0" if cell.advantage_sign > 0 else "A < 0"
    parts = [short(cell.src_pool, 14), "hint" if cell.hint else "", "hacked" if cell.hacked else "clean"]
    parts += ["right" if cell.gt_pass else "wrong", sign]
    return ", ".join(part for part in parts if part)
