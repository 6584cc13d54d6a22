"""One Analysis as plain text, at most 100 columns wide: what `probe analyze RUN` prints.

format_verdict     the first screen: verdict, three questions, caveats, next command
format_analysis    with --full: the first screen, and the measures and tables behind it
"""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import picture, render_table, wrap
from probe.analysis.statistics.intervals import Bounded
from probe.analysis.tables import (
    arm_table,
    basis_table,
    bucket_table,
    ceiling_table,
    cell_table,
    comparison_table,
    contrast_tables,
    forecast_table,
    gate_table,
    hackward_table,
    heldout_table,
    module_table,
    null_table,
    power_table,
    share_table,
    specificity_table,
    step_table,
)
from probe.analysis.verdict.evidence import VerdictRow
from probe.analysis.verdict.questions import Finding
from probe.analysis.verdict.validity import ValidityPart
from probe.settings.words import DEFAULT_CONDITION


def format_verdict(analysis: Analysis) -> str:
    """The first screen: the verdict, the three questions, what to keep in mind, and the next command."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} groups of {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    decision = analysis.decision
    lines = [*wrap(head), "", f"VERDICT: {decision.outcome}"]
    if decision.outcome in ("BROKEN", "TRAINED"):
        lines += wrap(f"  {decision.why}", indent="  ")
    else:
        for finding in analysis.questions:
            lines += _question(finding)
    bases = render_table(basis_table(analysis))
    lines += ["", *([bases, ""] if bases else [])]
    for caveat in analysis.caveats:
        lines += wrap(f"- {caveat}", indent="  ")
    lines += wrap(f"NEXT: {decision.next.text}", indent="  ")
    lines += [f"  {command}" for command in decision.next.command.splitlines()]
    return "\n".join(lines) + "\n"


def _question(finding: Finding) -> list[str]:
    """A question with what its number says, the picture of its interval, and the sentence."""
    line = f"  {finding.question:<46}{finding.says.upper():<11}"
    if finding.number is not None:
        line += share_picture(finding.number, finding.counts_from)
    return [line.rstrip(), *wrap(f"      {finding.text}", indent="      ")]


def share_picture(number: Bounded, counts_from: float) -> str:
    """A share drawn on a line from -0.5 to 1.5, with a mark where it begins to matter."""
    return picture(number.value, number.interval, low=-0.5, high=1.5, mark=counts_from)


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the first screen, then the measures behind its findings, nulls and tables."""
    sections = [
        format_verdict(analysis).rstrip(),
        render_table(share_table(analysis)),
        render_table(ceiling_table(analysis)),
        render_table(hackward_table(analysis)),
        render_table(forecast_table(analysis)),
        _validity(analysis.validity),
        render_table(heldout_table(analysis)),
        render_table(null_table(analysis)),
        render_table(specificity_table(analysis)),
        render_table(power_table(analysis)),
        _verdict_rows("The seed's tables V and D (no verdict rests on them; mechanism: an identity)", analysis.checks),
        render_table(arm_table(analysis)),
        render_table(comparison_table(analysis)),
        render_table(gate_table(analysis)),
        render_table(cell_table(analysis)),
        render_table(bucket_table(analysis)),
        _contrasts(analysis),
        render_table(module_table(analysis)),
        render_table(step_table(analysis)),
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
    lines = ["Validity, part by part"]
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
