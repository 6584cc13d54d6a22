"""One Analysis as plain text, at most 100 columns wide: the output of `probe analyze RUN`, and its tables."""

from collections.abc import Mapping, Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.families import FAMILIES
from probe.analysis.formatting import WIDTH, TextTable, p_value, render_table, short, shown, wrap, yes
from probe.analysis.training_runs import RATES
from probe.analysis.verdict.verdict import MOST_CAVEATS, note_lines, verdict_lines
from probe.settings.words import ALL, DEFAULT_CONDITION

MOST_MODULES = 8  # rows in the module table; its title counts the rest


def format_verdict(analysis: Analysis, most: int | None = MOST_CAVEATS) -> str:
    """Format the first screen: the verdict, the three questions, caveats, and the next command."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    size, verdict = analysis.size, analysis.verdict
    head = (
        f"run {analysis.run}{condition}: {size['num_steps']} groups of {size['num_prompts']} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(size['loss_types']) or 'none'}"
    )
    lines = [*wrap(head), "", *verdict_lines("VERDICT", verdict), "", *note_lines(verdict, most=most)]
    return "\n".join(lines) + "\n"


def format_analysis(analysis: Analysis) -> str:
    """Format the whole analysis: the first screen, then the measures behind its findings, nulls and tables."""
    validity = ["Validity, part by part"]
    for part in analysis.validity:
        validity += wrap(f"  {part.says:<9} {part.name}: {part.text}", indent=" " * 12)
    if analysis.adapted is not None:
        validity += ["", f"{analysis.adapted}."]
    tables = [heldout_table(analysis), *all_tables(analysis)]
    sections = ["\n".join(validity), *filter(None, map(render_table, tables))]
    return "\n\n".join([format_verdict(analysis, most=None).rstrip(), *sections]) + "\n"


def all_tables(analysis: Analysis) -> list[TextTable]:
    """Return the tables that have rows, in reading order."""
    tables = [*(estimate_table(analysis, family) for family in FAMILIES), cell_table(analysis)]
    return [table for table in tables if table.rows]


def estimate_table(analysis: Analysis, family: str) -> TextTable:
    """Return one family's estimates, one row each, without empty columns."""
    shown_as, estimates = FAMILIES[family], analysis.of(family)
    title = shown_as.title.format(arm=analysis.measured_arm)
    if family == "modules" and len(estimates) > MOST_MODULES:
        title += f"; {len(estimates) - MOST_MODULES} more in JSON"
        estimates = estimates[:MOST_MODULES]
    return table_of(family, title, estimates, form=shown_as.form, parts=shown_as.parts)


def table_of(
    name: str, title: str, estimates: Sequence[Estimate], *, form: str = ".2f", parts: Mapping[str, str]
) -> TextTable:
    """Return estimates as a table, one row each, without empty columns; parts: {part: its column}."""
    rows = []
    several, varies = len({row.arm for row in estimates}) > 1, len({row.null for row in estimates} - {None}) > 1
    for row in estimates:
        values = ((column, row.parts.get(part)) for part, column in parts.items())
        rows.append(
            {
                "estimate": short(row.name, 46),
                "arm": (row.arm or "") * several,
                "value": shown(row.value, form),
                "95%": shown(row.interval, form),
                "n": f"{row.n} {row.unit}s" if row.n else "",
                "no signal": shown(row.null, form) if varies else "",  # omitted if always 0 or .5
                "p": p_value(row.p),
                **{column: value if value is None else _number(value) for column, value in values},
                "note": row.why,
            }
        )
    kept = [column for column in (rows[0] if rows else ()) if any(row[column] not in (None, "", "-") for row in rows)]
    taken = sum(2 + max(len(column), *(len(row[column] or "-") for row in rows)) for column in kept if column != "note")
    for row in rows:
        row["note"] = short(row["note"], max(WIDTH - taken - 4, 12))
    cells = [tuple(row[column] or "-" for column in kept) for row in rows]
    return TextTable(name=name, title=title, header=kept, rows=cells, left=1 + ("arm" in kept))


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def cell_table(analysis: Analysis) -> TextTable:
    """Return the origin of the gradient: samples by source, hint, labels and sign of the advantage."""
    header = ("source", "hint", "hacked", "right", "A", "n", "prompts", "mean A", "cos_S_contrib", "cos_S_nll", "dot")
    rows = []
    for cell in analysis.cells:
        labels = (short(cell["src_pool"], 16), *(yes(cell[name]) for name in ("hint", "hacked", "gt_pass")))
        sign, counts = "-0+"[cell["advantage_sign"] + 1], (str(cell["n"]), str(cell["num_prompts"]))
        means = (shown(cell[name], "+.3f") for name in ("mean_advantage", "mean_cos_contrib", "mean_cos_nll"))
        rows.append((*labels, sign, *counts, *means, f"{cell['dot']:+.3g}"))
    title = f"Advantage cells (arm {analysis.measured_arm}; n in samples; dot: sum of cosine x norm)"
    return TextTable(name="cells", title=title, header=header, rows=rows, left=4)


def heldout_table(analysis: Analysis) -> TextTable:
    """Return a training run's evaluations on held-out problems, one row per setting."""
    rows = []
    for evaluation in analysis.outcome.evaluations if analysis.outcome else []:
        moved = evaluation["frozen"] or {}
        moves = [shown(moved.get(name), "+.3f") for name in ("margin", "cos_moved", "hackward_frac_moved")]
        for setting, rates in evaluation["rates"].items():
            # With one setting, the row over all settings would repeat it.
            if setting != ALL or len(evaluation["rates"]) > 2:
                place = (str(evaluation["step"]), evaluation["weights"], setting, str(rates["num_problems"]))
                rows.append((*place, *(shown(rates[rate]["rate"], ".2f") for rate in RATES), *moves))
    header = ("steps", "weights", "setting", "problems", *RATES, "margin", "cos_moved", "hackward_frac")
    title = (
        "Held-out problems (margin: change of held-out logp(hack) - logp(clean); moved: start minus now; Haar 95th: of "
        "hackward_frac along random directions)"
    )
    return TextTable(name="held-out", title=title, header=header, rows=rows, left=3)
