"""Hack and solve curves of runs that train; power and cost: what more data could show, and what these data cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from probe.analysis.text import Table
from probe.analysis.verdict.evidence import Plan
from probe.analysis.verdict.siblings import shared_settings
from probe.experiments.evaluation import go_plan
from probe.records.timings import describe_timings
from probe.report.figures.learning import METRICS, Curve, learning
from probe.report.figures.power import prompts_power, seeds_power
from probe.report.inputs import Report, trained
from probe.report.sections.base import Section, folded, panels, present, prose, table_html
from replay_pools.nested import flat

if TYPE_CHECKING:
    from probe.experiments.plan import Plan as SpecPlan

TRAINING_LEAD = (
    "Rates on held-out problems, with the hint, while the policy trains: a thin line a seed, a thick one the mean "
    "of an arm's seeds; a single seed has its Wilson 95% intervals, which know nothing of the variation between "
    "seeds. Runs of one arm under other settings than its first are named after the first setting that differs."
)
POWER_LEAD = (
    "An effect that the planned numbers cannot see is not shown to be absent by not being seen. Curves are the "
    "smallest effect that a two-sided test at 5% finds with 80% power."
)


def training(report: Report) -> Section:
    """Curves by arm; the unit of every comparison is the seed."""
    found = trained(report.runs)
    names = group_names([(arm, run.config) for run, arm, _, _ in found])
    curves = [Curve(arm=name, seed=seed, rows=rows) for (_, _, seed, rows), name in zip(found, names, strict=True)]
    figures = present(*(learning(metric, curves) for metric in METRICS))
    rows = [
        (
            *(run.path.name, arm, name, str(seed), str(row["step"]), str(row["rates"]["all"]["num_rollouts"])),
            *(_cell(row["rates"]["all"][metric]) for metric in METRICS),
        )
        for (run, arm, seed, evaluations), name in zip(found, names, strict=True)
        for row in evaluations
    ]
    header = ("run", "arm", "curve", "seed", "steps", "rollouts", *METRICS)
    table = Table(name="evaluations", title="Evaluations (rate [Wilson 95%])", header=header, rows=rows, left=3)
    empty = "Nothing was trained in these runs: curves come from probe train."
    body = [*panels(figures), *folded([table])] if figures else [prose(empty, class_="empty")]
    tables = {"": [table]} if rows else {}
    return Section(id="training", title="Training", lead=TRAINING_LEAD, body=body, figures=figures, tables=tables)


def power(report: Report) -> Section:
    """Detectable effects by prompts and by seeds; times, and for a spec its price."""
    frozen = [view for view in report.drawn if not view.trains]  # in training the prompt is not the unit
    figures = present(*(prompts_power(f"power-{view.slug}", view.label, view.prompt_cosines) for view in frozen))
    figures.append(seeds_power("power-seeds", Plan() if report.spec is None else go_plan(report.spec)))
    body = panels(figures)
    tables = [_times(report)]
    if report.plan is not None:
        tables += _plan_tables(report.plan)
        body += _notes(report.plan)
    kept = [table for table in tables if table.rows]
    body += [table_html(table) for table in kept]
    return Section(id="power", title="Power and cost", lead=POWER_LEAD, body=body, figures=figures, tables={"": kept})


def group_names(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A name for each (arm, config.json), the same for runs that differ in their seed alone.

    It is the arm; where runs of one arm have other settings than its first one, it is the first of those settings.
    """
    firsts: dict[str, dict[str, Any]] = {}
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    found = []
    for arm, config in runs:
        own = flat(shared_settings(config))
        first = firsts.setdefault(arm, own)
        changed = [key for key in sorted(own.keys() | first.keys()) if own.get(key) != first.get(key)]
        name = f"{changed[0].rpartition('.')[2]} {own.get(changed[0])}" if changed else arm
        if names.setdefault(name, (arm, own)) != (arm, own):
            name = f"{arm}: {', '.join(key.rpartition('.')[2] for key in changed)}"
        found.append(name)
    return found


def _cell(rate: dict) -> str:
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def _times(report: Report) -> Table:
    rows = [(run.path.name, words) for run in report.runs if (words := describe_timings(run.path))]
    return Table(name="times", title="Times of this machine", header=("run", "wall clock"), rows=rows, left=2)


def _plan_tables(plan: "SpecPlan") -> list[Table]:
    """Prices, and parts of the spec that are vacuous."""
    prices = [
        (p.what, str(p.runs), f"{p.hours:.2f}", "-" if p.money is None else f"{p.money:.2f} {p.currency}", p.source)
        for p in plan.prices
    ]
    vacuous = [(part.where, part.why) for part in plan.vacuous]
    return [
        Table(name="prices", title="What it costs", header=("what", "runs", "hours", "money", "source"), rows=prices),
        Table(name="vacuous", title="Vacuous parts of the spec", header=("where", "why"), rows=vacuous, left=2),
    ]


def _notes(plan: "SpecPlan") -> list[Element]:
    return [prose(note, class_="soft-text") for note in plan.notes]
