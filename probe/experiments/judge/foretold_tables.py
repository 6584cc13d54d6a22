"""What replays foretold of trainings, as tables for the terminal, Markdown and the page."""

from probe.analysis.formatting import TextTable
from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.experiments.judge.foretell import MEASURES, OUTCOMES, Correlation, Foretold


def foretold_table(comparison: Foretold) -> TextTable:
    """Rank correlation of every measure with the fall of both rates."""
    rows = []
    for measure in MEASURES:
        cells = [_cell(comparison.row("hack", measure, half)) for half in ("choose", "confirm")]
        cells += [_cell(comparison.row(outcome, measure, "all")) for outcome in OUTCOMES]
        rows.append((f"{measure} (chosen)" if measure == comparison.chosen else measure, *cells))
    header = ("measure of the replay", "hack, choosing", "hack, confirming", "hack, all", "solve, all")
    title = "Rank correlation over treatments with the fall of the held-out rate [95%]"
    return TextTable(name="foretold", title=title, header=header, rows=rows, left=1)


def treatment_table(comparison: Foretold) -> TextTable:
    """Every treatment: what its replay said, and what its trainings did."""
    rows = []
    for row in comparison.treatments:
        measures = [_number(row.measures.get(name)) for name in MEASURES]
        falls = [_number(row.fall(outcome)) for outcome in OUTCOMES]
        num_seeds = str(len(row.falls["hack"]))
        rows.append((row.condition, row.half, row.verdict or "-", num_seeds, *falls, *measures))
    header = ("treatment", "half", "verdict", "seeds", "hack falls", "solve falls", *MEASURES)
    return TextTable(name="treatments", title="Treatments, means over seeds", header=header, rows=rows, left=3)


def hits_sentence(comparison: Foretold) -> str:
    """How often each verdict of a replay was followed by a fall of the hack rate."""
    parts = []
    for row in comparison.hits:
        parts.append(f"{row.verdict}: {row.fell} of {row.n} (mean fall {row.mean_fall:+.2f})")
    if not parts:
        return "No treatment along v_hack has both a replay and trainings."
    asked = f"Treatments whose hack rate fell by {MATERIAL_RATE:g} or more, by the verdict of their replay"
    return f"{asked}: {'; '.join(parts)}."


def _cell(row: Correlation | None) -> str:
    if row is None:
        return "-"
    interval = "" if row.interval is None else f" [{row.interval.low:+.2f}, {row.interval.high:+.2f}]"
    return f"{row.rho:+.2f}{interval}, n {row.n}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
