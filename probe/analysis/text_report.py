"""format_analysis: one Analysis as plain text, at most 100 columns wide. This is what `probe analyze RUN` prints."""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import render_table, wrap
from probe.analysis.tables import (
    arm_table,
    bucket_table,
    cell_table,
    comparison_table,
    contrast_tables,
    gate_table,
    heldout_table,
    module_table,
    null_table,
    other_k_table,
    specificity_table,
    step_table,
)
from probe.analysis.verdict.evidence import VerdictRow
from probe.analysis.verdict.validity import ValidityPart
from probe.records.records import DEFAULT_CONDITION


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the verdict, the reasons for it, the tables that they rest on, and the verdict once more."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} steps, {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    verdict = f"VERDICT (R6): {analysis.decision.outcome}: {analysis.decision.why}"
    conclusions: list[str] = []
    for sentence in analysis.conclusions:
        conclusions += wrap(f"- {sentence}", indent="  ")
    sections = [
        "\n".join(wrap(head)),
        "\n".join(wrap(verdict, indent="  ")),
        "\n".join(conclusions),
        _verdict_rows("Rules R0 to R7 (METHOD section 7; mechanism rows are no evidence)", analysis.rules),
        _validity(analysis.validity),
        render_table(heldout_table(analysis)),
        render_table(null_table(analysis)),
        _verdict_rows(
            "Verification (the seed's table V and decision rules D; mechanism rows are no evidence)", analysis.checks
        ),
        render_table(arm_table(analysis)),
        render_table(comparison_table(analysis)),
        render_table(gate_table(analysis)),
        render_table(cell_table(analysis)),
        render_table(bucket_table(analysis)),
        _contrasts(analysis),
        render_table(specificity_table(analysis)),
        render_table(module_table(analysis)),
        render_table(other_k_table(analysis)),
        render_table(step_table(analysis)),
        # The verdict again: the top of so long a text has scrolled away in a terminal.
        "\n".join(wrap(f"again, {verdict}", indent="  ")),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _verdict_rows(title: str, rows: Sequence[VerdictRow]) -> str:
    lines = [title]
    for row in rows:
        lines += wrap(f"  {row.row:<4}{row.verdict:<13}{row.kind:<10} {row.condition}", indent=" " * 28)
        value = f"{row.value}; " if row.value else ""
        lines += wrap(f"      n = {row.n} {row.unit}s: {value}{row.why}", indent=" " * 6)
    return "\n".join(lines)


def _validity(parts: Sequence[ValidityPart]) -> str:
    words = {True: "holds", False: "BROKEN", None: "not seen"}
    lines = ["R0 part by part"]
    for part in parts:
        lines += wrap(f"  {words[part.holds]:<9} {part.name}: {part.text}", indent=" " * 12)
    return "\n".join(lines)


def _contrasts(analysis: Analysis) -> str:
    """The tables of contrasts under one common title; '' where none has rows."""
    tables = contrast_tables(analysis)
    if not any(table.rows for table in tables):
        return ""
    title = (
        "Contrasts a - b: Welch's unit is the sample (naive); within-prompt sign flip, unit: prompt; Holm: over the "
        "contrasts of an arm; adj: regression within prompts on source, gt_pass, log length and hint"
    )
    return "\n".join([*wrap(title), *map(render_table, tables)])
