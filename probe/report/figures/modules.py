"""The module map: the cosine of every module as a cell of layer by projection type, with the family-wise threshold."""

import math
import re
from collections.abc import Sequence

from probe.analysis.formatting import p_value, short
from probe.analysis.statistics.permutation import ModuleRow
from probe.report.figures.panel import Figure, Panel, signed

LEFT, WIDTH, TOP = 84, 252, 62
LEVELS = 5  # of colour on each side: o1 to o5 in figures.css
_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


def module_map(name: str, rows: Sequence[ModuleRow], critical: float | None) -> Figure | None:
    """Heat map of z under permuted labels.

    Args:
        name: of the SVG file.
        rows: one per module.
        critical: a module with a larger |z| has a family-wise p below .05 (max-T), and a ring; None: not known.
    """
    if not rows:
        return None
    places = {row.module: place(row.module) for row in rows}
    layers = sorted({layer for layer, _ in places.values()})
    kinds = list(dict.fromkeys(kind for _, kind in places.values()))
    width, height = min(56.0, WIDTH / len(layers)), 20.0
    bottom = TOP + height * len(kinds)
    num_beyond = sum(_is_beyond(row, critical) for row in rows)
    subtitle = f"{num_beyond} of {len(rows)} modules beyond the threshold that holds for all of them"
    panel = Panel(name, "Where in the network?", bottom + 74, subtitle)
    for i, kind in enumerate(kinds):
        panel.text(LEFT - 6, TOP + height * (i + 0.5) + 4, short(kind, 13), "label", "end")
    stride = math.ceil(len(layers) / 12)  # more numbers would touch
    for j, layer in enumerate(layers):
        if j % stride == 0:
            panel.text(LEFT + width * (j + 0.5), TOP - 6, str(layer), "tick", "middle")
    panel.text(LEFT - 6, TOP - 6, "layer", "label", "end")
    largest = max(abs(row.z) for row in rows)
    for row in rows:
        layer, kind = places[row.module]
        x, y = LEFT + width * layers.index(layer), TOP + height * kinds.index(kind)
        _draw_module(panel, row, x, y, width, height, largest, _is_beyond(row, critical))
    _legend(panel, bottom + 28, largest, critical)
    return panel.figure()


def place(module: str) -> tuple[int, str]:
    """(layer, projection type) of a dotted path: its first number, and its last part; layer -1 without a number."""
    match = _NUMBER.search(module)
    return (int(match[1]) if match else -1), module.rpartition(".")[2]


def _is_beyond(row: ModuleRow, critical: float | None) -> bool:
    return critical is not None and abs(row.z) > critical


def _draw_module(
    panel: Panel, row: ModuleRow, x: float, y: float, width: float, height: float, largest: float, ringed: bool
) -> None:
    level = max(1, round(LEVELS * abs(row.z) / largest)) if largest else 1
    tip = f"{row.module}: cos_in {signed(row.mean_cos)}, z {signed(row.z, 1)}, family-wise p {p_value(row.p_max_t)}"
    panel.rect(x, y, width, height, "cell")
    panel.rect(x + 0.5, y + 0.5, width - 1, height - 1, f"{_side(row.z)} o{level}", tip)
    if ringed:
        inset = min(1.8, width / 6)
        panel.rect(x + inset, y + inset, width - 2 * inset, height - 2 * inset, "ring", tip)


def _legend(panel: Panel, y: float, largest: float, critical: float | None) -> None:
    """Swatches from the most clean-ward to the most hack-ward z, and what a ring means."""
    swatch, start = 24.0, LEFT
    for i, level in enumerate([*range(-LEVELS, 0), *range(1, LEVELS + 1)]):
        panel.rect(start + swatch * i, y - 9, swatch - 1, 10, f"{_side(level)} o{abs(level)}")
    panel.text(start, y + 15, f"z \u2212{largest:.1f}", "tick")
    panel.text(start + swatch * LEVELS, y + 15, "0", "tick", "middle")
    panel.text(start + 2 * swatch * LEVELS, y + 15, f"+{largest:.1f}", "tick", "end")
    panel.text(start - 6, y, "clean-ward", "label", "end")
    panel.text(start + 2 * swatch * LEVELS - 1, y - 14, "hack-ward", "label", "end")
    if critical is not None:
        panel.rect(start, y + 24, 14, 11, "ring")
        panel.text(start + 20, y + 33, f"|z| > {critical:.2f}: family-wise p < .05 (max-T)", "soft")


def _side(z: float) -> str:
    return "hack" if z > 0 else "clean"
