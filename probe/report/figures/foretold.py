"""What replays foretold: a measure of every treatment's replay against the fall of the hack rate in its trainings.

To draw another outcome: call `foretold` with its name.
"""

from probe.experiments.judge.foretell import Foretold
from probe.report.figures.labels import Box, name_marks
from probe.report.figures.panel import LEFT, RIGHT, Figure, Panel, scale_of, tooltip
from probe.report.html import node

TOP, BOTTOM = 62, 300


def foretold(comparison: Foretold, outcome: str = "hack") -> Figure | None:
    """One mark a treatment: a filled circle chose the measure, a square confirms it; a line for no fall.

    The measure is the one that was chosen. None where fewer than two treatments have both numbers.
    """
    points = []
    for row in comparison.treatments:
        value, fall = row.measures.get(comparison.chosen or ""), row.fall(outcome)
        if value is not None and fall is not None:
            points.append((row, value, fall))
    if comparison.chosen is None or len(points) < 2:
        return None
    confirmed = comparison.row(outcome, comparison.chosen, "confirm")
    note = "" if confirmed is None else f"; confirming ones: rank correlation {confirmed.rho:+.2f}"
    title = f"Fall of the {outcome} rate against the replay"
    panel = Panel(f"foretold-{outcome}", title, BOTTOM + 40, f"{len(points)} treatments{note}")
    x = scale_of([value for _, value, _ in points], LEFT, RIGHT)
    y = scale_of([fall for _, _, fall in points], BOTTOM, TOP, least=(0.0,))
    panel.y_axis(y, "", count=5, percent=True)
    panel.x_axis(x, BOTTOM, f"{comparison.chosen} in the replay, before the training")
    panel.key(46, [("dot hack", "choosing"), ("dot clean", "confirming")])
    marks = []
    for row, value, fall in points:
        tip = tooltip(f"{row.condition}: {comparison.chosen} {value:+.2f}, {outcome} rate falls by {fall:+.2f}")
        class_ = f"{'hack' if row.half == 'choose' else 'clean'} point"
        panel.add(node("circle", tip, cx=x(value), cy=y(fall), r=4, class_=class_))
        marks.append((x(value), y(fall), row.condition))
    name_marks(panel, marks, Box(LEFT, TOP - 8, RIGHT + 8, BOTTOM))
    return panel.figure()
