"""Power and cost: what more data could show, and what these data cost."""

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.analysis.verdict.evidence import PlannedTraining
from probe.experiments.evaluation import go_plan
from probe.records.timings import describe_timings
from probe.report.figures.power import prompts_power, seeds_power
from probe.report.sections.parts import Section, panels, present, prose, table_html
from probe.report.views import Report

if TYPE_CHECKING:
    from probe.experiments.plan import Plan as SpecPlan

LEAD = (
    "An effect that the planned numbers cannot see is not shown to be absent by not being seen. Curves are the "
    "smallest effect that a two-sided test at 5% finds with 80% power."
)


def power(report: Report) -> Section:
    """Detectable effects by prompts and by seeds; times, and for a spec its price."""
    frozen = [view for view in report.drawn if not view.trains]  # in training the prompt is not the unit
    figures = present(*(prompts_power(f"power-{view.slug}", view.label, view.prompt_cosines) for view in frozen))
    figures.append(seeds_power("power-seeds", PlannedTraining() if report.spec is None else go_plan(report.spec)))
    body = panels(figures)
    tables = [_times(report)]
    if report.plan is not None:
        tables += _plan_tables(report.plan)
        body += _notes(report.plan)
    kept = [table for table in tables if table.rows]
    body += [table_html(table) for table in kept]
    return Section(id="power", title="Power and cost", lead=LEAD, body=body, figures=figures, tables={"": kept})


def _times(report: Report) -> TextTable:
    rows = [(run.path.name, words) for run in report.runs if (words := describe_timings(run.path))]
    return TextTable(name="times", title="Times of this machine", header=("run", "wall clock"), rows=rows, left=2)


def _plan_tables(plan: "SpecPlan") -> list[TextTable]:
    """Prices, and parts of the spec that are vacuous."""
    prices = [
        (p.what, str(p.runs), f"{p.hours:.2f}", "-" if p.money is None else f"{p.money:.2f} {p.currency}", p.source)
        for p in plan.prices
    ]
    vacuous = [(part.where, part.why) for part in plan.vacuous]
    return [
        TextTable(
            name="prices", title="What it costs", header=("what", "runs", "hours", "money", "source"), rows=prices
        ),
        TextTable(name="vacuous", title="Vacuous parts of the spec", header=("where", "why"), rows=vacuous, left=2),
    ]


def _notes(plan: "SpecPlan") -> list[Element]:
    return [prose(note, class_="soft-text") for note in plan.notes]
