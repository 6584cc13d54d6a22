"""Two sections: what training did on held-out problems, and power and cost (what more data could show, at which price).

The figures of training are the rows of FIGURES; to add one, add a row.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from probe.analysis.formatting import TextTable
from probe.analysis.trained.decision import ArmVerdict
from probe.analysis.trained.text import outcome_sentences
from probe.analysis.verdict.evidence import PlannedTraining
from probe.experiments.judge.verdict import go_plan
from probe.records.records import StepRecord
from probe.records.timings import describe_timings
from probe.report.figures.ladder import best_checkpoint, ladder
from probe.report.figures.learning import METRICS, MOST_NAMED, OF_STEPS, in_training, learning
from probe.report.figures.panel import Figure
from probe.report.figures.pareto import pareto
from probe.report.figures.power import prompts_power, seeds_power
from probe.report.inputs import Report
from probe.report.sections.base import Section, drawn_only, folded, panels, paragraph, table_html
from probe.report.trainings import Treatment, arm_of, treatments_of

if TYPE_CHECKING:
    from probe.experiments.planning.plan import SpecPlan  # it needs torch

# Each draws the treatments, or returns None where it has nothing to draw; in reading order.
FIGURES: Sequence[Callable[[Sequence[Treatment]], Figure | None]] = (
    partial(learning, "hack"),
    partial(learning, "solve"),
    pareto,
    partial(learning, "exploit"),
    partial(ladder, "solve"),
    partial(ladder, "honest"),
    *(partial(in_training, field) for field in OF_STEPS),
)
TRAINING_LEAD = (
    "Does the hack emerge on held-out problems, asked with the hint, and what does each arm pay for less of it?"
)
INTERVALS = (
    "Lines are means over the seeds of an arm, with 95% intervals over seeds that are never narrower than drawing the "
    "outcomes makes them. A single seed has Wilson's interval, which knows nothing of the variation between seeds."
)
POWER_LEAD = (
    "An effect that the planned numbers cannot see is not shown to be absent by not being seen. Curves are the "
    "smallest effect that a two-sided test at 5% finds with 80% power."
)


def training(report: Report, verdicts: Sequence[ArmVerdict]) -> Section | None:
    """Curves and ends by treatment, whose unit is the seed; None where nothing was trained and evaluated.

    Args:
        report: its training runs.
        verdicts: on arms after training, beside vanilla.
    """
    treatments = _telling_first(treatments_of(report))
    figures = drawn_only(*(draw(treatments) for draw in FIGURES))
    if not figures:
        return None
    tables = [table for table in (_outcomes(verdicts), _evaluations(treatments), _steps(treatments)) if table.rows]
    sentences = [paragraph(sentence) for sentence in outcome_sentences(verdicts)]
    if best := best_checkpoint(treatments):
        sentences.append(paragraph(best))
    return Section(
        id="training",
        title="Training",
        lead=TRAINING_LEAD,
        body=[*panels(figures), *sentences, paragraph(INTERVALS, class_="soft-text"), *folded(tables)],
        figures=figures,
        tables={"": tables},
    )


def _telling_first(treatments: Sequence[Treatment]) -> list[Treatment]:
    """Where not all have a colour: the first stays, then those that hack least after training."""
    if len(treatments) <= MOST_NAMED:
        return list(treatments)

    def hack_rate(treatment: Treatment) -> float:
        rate = treatment.rate("hack", treatment.steps[-1]) if treatment.steps else None
        return 1.0 if rate is None else rate.value

    return [treatments[0], *sorted(treatments[1:], key=hack_rate)]


def _outcomes(verdicts: Sequence[ArmVerdict]) -> TextTable:
    """Every treatment beside vanilla, with its verdict."""
    rows = []
    for verdict in verdicts:
        rates = ["-" if rate is None else f"{rate:.0%}" for rate in (verdict.hack, verdict.solve)]
        rows.append((verdict.name, verdict.outcome, *rates, str(len(verdict.seeds)), verdict.why))
    header = ("treatment", "verdict", "hack", "solve", "seeds", "why")
    return TextTable(name="outcomes", title="Verdict on every treatment", header=header, rows=rows, left=2)


def _evaluations(treatments: Sequence[Treatment]) -> TextTable:
    """Every evaluation of every run."""
    rows = []
    for treatment in treatments:
        for run in treatment.runs:
            for step, rates in run.by_step.items():
                counts = (str(run.seed), str(step), str(rates["num_rollouts"]))
                cells = (_rate(rates[metric]) for metric in METRICS)
                rows.append((treatment.name, arm_of(run.run), *counts, *cells))
    header = ("treatment", "arm", "seed", "steps", "rollouts", *METRICS)
    title = "Evaluations (rate [Wilson 95%])"
    return TextTable(name="evaluations", title=title, header=header, rows=rows, left=2)


def _steps(treatments: Sequence[Treatment]) -> TextTable:
    """What the step records of every run say: where it began and ended, and how far it went in between."""
    rows = []
    for treatment in treatments:
        for run in treatment.runs:
            steps = run.run.steps
            no_gradient = [_share(step, "frac_reward_zero_std") + _share(step, "skip_rate") for step in steps]
            cells = (
                _course([step.solve for step in steps], "{:.0%}"),
                _course([step.loss for step in steps], "{:+.3g}"),
                _course([_share(step, "advantage/abs_mean") for step in steps], "{:.3g}"),
                f"{mean(no_gradient):.0%}" if steps else "-",
                _largest([step.kl.get("max") for step in steps]),
                _largest([step.grad_norm for step in steps]),
                "; ".join(run.run.manifest.get("warnings", [])) or "none",
            )
            rows.append((treatment.name, str(run.seed), str(len(steps)), *cells))
    header = (
        "treatment",
        "seed",
        "steps",
        "solve",
        "loss",
        "mean |A|",
        "no gradient",
        "kl/max",
        "grad_norm",
        "warnings",
    )
    title = "Steps (first to last quarter; share of groups without gradient; largest of a step)"
    return TextTable(name="steps", title=title, header=header, rows=rows)


def _share(step: StepRecord, key: str) -> float:
    return float(step.advantage[key] or 0.0)


def _course(values: Sequence[float | None], form: str) -> str:
    """The mean of the first quarter of the steps and that of the last, at least one step each; a dash for nothing."""
    known = [value for value in values if value is not None]
    quarter = max(1, len(known) // 4)
    if not known:
        return "-"
    return f"{form.format(mean(known[:quarter]))} to {form.format(mean(known[-quarter:]))}"


def _largest(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.3g}" if known else "-"


def power(report: Report) -> Section:
    """Detectable effects by prompts and by seeds; wall-clock times, and for a spec its price."""
    frozen = [view for view in report.drawn if not view.trains]  # in training the prompt is not the unit
    figures = drawn_only(
        *(prompts_power(f"power-{view.slug}", view.label, view.prompt_cosines, view.ceiling) for view in frozen)
    )
    figures.append(seeds_power("power-seeds", PlannedTraining() if report.spec is None else go_plan(report.spec)))
    body = panels(figures)
    tables = [_times(report)]
    if report.plan is not None:
        tables += _plan_tables(report.plan)
        body += [paragraph(note, class_="soft-text") for note in report.plan.notes]
    filled = [table for table in tables if table.rows]
    body += [table_html(table) for table in filled]
    return Section(id="power", title="Power and cost", lead=POWER_LEAD, body=body, figures=figures, tables={"": filled})


def _rate(rate: Mapping[str, Any]) -> str:
    """`50% [35%, 65%]`, or a dash where no rollout was evaluated."""
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def _times(report: Report) -> TextTable:
    rows = []
    for run in report.runs:
        words = describe_timings(run.path)
        if words:
            rows.append((run.path.name, words))
    return TextTable(name="times", title="Times of this machine", header=("run", "wall clock"), rows=rows, left=2)


def _plan_tables(plan: "SpecPlan") -> list[TextTable]:
    """Prices, and parts of the spec that are vacuous."""
    prices = []
    for price in plan.prices:
        money = "-" if price.money is None else f"{price.money:.2f} {price.currency}"
        prices.append((price.what, str(price.runs), f"{price.hours:.2f}", money, price.source))
    vacuous = [(part.where, part.why) for part in plan.vacuous]
    return [
        TextTable(
            name="prices", title="What it costs", header=("what", "runs", "hours", "money", "source"), rows=prices
        ),
        TextTable(name="vacuous", title="Vacuous parts of the spec", header=("where", "why"), rows=vacuous, left=2),
    ]
