"""One Analysis as plain text, at most 100 columns wide: what `probe analyze RUN` prints."""

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import render_table, wrap
from probe.analysis.tables import all_tables, basis_table, heldout_table, power_table
from probe.analysis.verdict.text import finding_lines, note_lines, verdict_lines
from probe.settings.words import DEFAULT_CONDITION, Word

SEED_TABLES = "The seed's tables V and D (no verdict rests on them; mechanism: an identity)"


def format_verdict(analysis: Analysis) -> str:
    """The first screen: the verdict, the three questions, what to keep in mind, and the next command."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} groups of {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    verdict, bases = analysis.verdict, render_table(basis_table(analysis))
    asked = verdict.word not in (Word.BROKEN, Word.TRAINED)
    lines = [*wrap(head), "", *verdict_lines("VERDICT", verdict, asked=asked), "", *([bases, ""] if bases else [])]
    return "\n".join([*lines, *note_lines(verdict)]) + "\n"


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the first screen, then the measures behind its findings, nulls and tables."""
    validity = ["Validity, part by part"]
    for part in analysis.validity:
        validity += wrap(f"  {part.says:<9} {part.name}: {part.text}", indent=" " * 12)
    rows = [SEED_TABLES, *(line for row in analysis.checks for line in finding_lines(row))]
    tables = [heldout_table(analysis), *all_tables(analysis), power_table(analysis)]
    sections = ["\n".join(validity), *filter(None, map(render_table, tables)), "\n".join(rows)]
    return "\n\n".join([format_verdict(analysis).rstrip(), *sections]) + "\n"
