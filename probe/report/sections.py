"""The sections of the page: functions that gather the content for the templates in `templates/`.

To add a section of figures, add a row to EVIDENCE and its figures under its id in `probe.report.run_figures.FIGURES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.formatting import TextTable
from probe.analysis.text_report import all_tables
from probe.analysis.verdict.trained_arms import TrainedArm
from probe.analysis.verdict.verdict import Verdict, arm_sentences, effect_and_price
from probe.records.timings import describe_timings
from probe.report.drawing import Figure
from probe.report.facts import CLEAN, HACKED, UNLABELLED
from probe.report.inputs import Report, label_of
from probe.report.page import Section, render
from probe.report.rollouts import RunRollouts, string_tables
from probe.report.run_figures import figures_of
from probe.report.training_figures import MOST_NAMED, RATES, figures_of_training
from probe.report.trainings import rates_of, trained_arms
from probe.report.viewer import viewer_data

# (id, title, lead, names of the tables, text shown without figures), in reading order
EVIDENCE: Sequence[tuple[str, str, str, Sequence[str], str]] = (
    (
        "trajectories",
        "Trajectories",
        "The cosine between the step's gradient and the direction, before (cos_in) and after the gate (cos_out). Above "
        "zero a descent step makes the hack more likely. At frozen weights the steps are independent prompts and their "
        "order means nothing; in training they are one autocorrelated path. After a one-sided gate a cosine at or "
        "below zero is an identity of the gate, not a finding.",
        ("cos_in", "nulls", "lookahead", "steps"),
        "No step was recorded.",
    ),
    (
        "distributions",
        "Hack versus clean",
        "Rollouts of one prompt resemble one another: the prompt is the unit, with one mark a prompt, within-prompt "
        "differences and intervals over prompts. A hack and a solution that are both paid get the same advantage: the "
        "contrast that counts is among A > 0, and a cosine about hacks tells them apart better than length, likelihood "
        "or the hint do. Cells say which rollouts carry the gradient.",
        ("contrasts", "auroc", "own", "cells"),
        "No rollout has a cosine.",
    ),
    (
        "modules",
        "Module map",
        "Mean cosine of every adapted module, in standard deviations of its null (labels permuted across pairs).",
        ("modules",),
        "A map needs the inner products that a replay at frozen weights stores in gram/, and there are none here.",
    ),
)
COLOURED = {"coloured": "coloured tokens first"}  # then by alignment with the hack
ORDERS = {  # keys of page.js
    "hackward": "most toward the hack first",
    "cleanward": "most away from it first",
    "step": "step by step",
    "reward": "largest reward first",
    "advantage": "largest advantage first",
    "tokens": "longest first",
}


def measured(report: Report) -> list[Section]:
    """Return a section for each row of EVIDENCE, with the figures of the first analyses and the tables of all."""
    sections = []
    for id, title, lead, names, empty in EVIDENCE:
        tables = {label_of(analysis): all_tables(analysis, names) for analysis in report.analyses}
        by_label = {label_of(analysis): figures_of(analysis, id) for analysis in report.drawn}
        num_more = len(report.analyses) - len(report.drawn)
        html = _panels(by_label, tables, empty=empty, num_more=num_more)
        figures = [figure for of_one in by_label.values() for figure in of_one]
        sections.append(Section(id=id, title=title, lead=lead, html=html, figures=figures, tables=tables))
    return sections


def training(report: Report, verdicts: Sequence[Verdict]) -> Section | None:
    """Return training curves and final rates by treatment, over seeds; None without evaluated trainings.

    Args:
        report: a report with training runs.
        verdicts: verdicts on arms after training, compared with vanilla.
    """
    arms = _telling_first(trained_arms(report))
    figures = figures_of_training(arms)
    if not figures:
        return None
    tables = [table for table in (_outcomes(verdicts), _evaluations(arms)) if table.rows]
    sentences = arm_sentences(verdicts)
    return Section(
        id="training",
        title="Training",
        lead="Does the hack emerge on held-out problems, asked with the hint, and what does each arm pay for less of "
        "it? Intervals over seeds are never narrower than drawing the outcomes makes them; that of a single seed knows "
        "nothing of the variation between seeds.",
        html=_panels({"": figures}, {"": tables}, sentences=sentences),
        figures=figures,
        tables={"": tables},
    )


def times(report: Report) -> Section | None:
    """Return the section of wall-clock times; None if no run has any."""
    rows = [(run.path.name, words) for run in report.runs if (words := describe_timings(run.path))]
    if not rows:
        return None
    tables = [TextTable(name="times", title="Times of this machine", header=("run", "wall clock"), rows=rows, left=2)]
    return Section(
        id="times",
        title="Times",
        lead="What this machine took.",
        html=_panels({}, {"": tables}, open=True),
        figures=[],
        tables={"": tables},
    )


def rollouts(rollouts_by_run: Sequence[RunRollouts], budget: int) -> tuple[Section, set[str]]:
    """Return the viewer of rollouts, and the anchors of the rollouts shown.

    Args:
        rollouts_by_run: the rollouts of each run.
        budget: total bytes of JSON for the rollouts of all runs.
    """
    data = viewer_data(rollouts_by_run, budget)
    shown = [one for run in rollouts_by_run for one in run.shown]
    num_coloured = sum(one.tokens is not None for one in shown)
    cautions = [sentence for run in rollouts_by_run for sentence in run.missing]
    if data.anchors and len(data.anchors) < len(shown):
        words = f"{len(data.anchors)} of {len(shown)} rollouts are in this page, those with the largest cosines of each"
        cautions.append(f"{words} run, source and label.")
    known = [HACKED, CLEAN, *([UNLABELLED] if any(one.sample.hacked is None for one in shown) else [])]
    tables = {run.run.path.name: strings for run in rollouts_by_run if (strings := string_tables(run.shown))}
    html = render(
        "rollouts.html",
        cautions=cautions,
        data=data.json if data.anchors else "",
        largest_share=data.largest_share,
        labels={"": "all", **{name: name for name in known}},
        sources={"": "every source"} | {one.sample.src_pool: one.sample.src_pool for one in shown},
        runs={"": "every run"} | {str(i): run.run.path.name for i, run in enumerate(rollouts_by_run)},
        orders=(COLOURED if 0 < num_coloured < len(shown) else {}) | ORDERS,
        strings=tables,
    )
    lead = (
        "Search, filter and open what the policy wrote. Orange pushes toward the hack, blue away. The number of a row "
        "is its cos_S_contrib, the cosine of its part of the update with the direction."
    )
    return Section(id="rollouts", title="Rollouts", lead=lead, html=html, tables=tables), data.anchors


def _panels(
    figures: Mapping[str, Sequence[Figure]],
    tables: Mapping[str, Sequence[TextTable]],
    *,
    sentences: Sequence[str] = (),
    empty: str = "",
    num_more: int = 0,
    open: bool = False,
) -> str:
    """Render figures and their tables, by the label of the run; tables are folded unless `open`."""
    context = {"sentences": sentences, "empty": empty, "num_more": num_more, "open": open}
    return render("figures.html", figures=figures, tables=tables, **context)


def _telling_first(arms: Sequence[TrainedArm]) -> list[TrainedArm]:
    """Keep the first arm and, if not all have a colour, sort the others by final hack rate, lowest first."""
    if len(arms) <= MOST_NAMED:
        return list(arms)
    return [arms[0], *sorted(arms[1:], key=lambda arm: arm.mean("hack", "final"))]


def _outcomes(verdicts: Sequence[Verdict]) -> TextTable:
    rows = []
    for verdict in verdicts:
        about = verdict.about
        rates = ["-" if rate is None else f"{rate:.0%}" for rate in (about["hack"], about["solve"])]
        seeds = str(len(about["seeds"]))
        rows.append((about["name"], verdict.word, *rates, *effect_and_price(verdict), seeds, verdict.sentence))
    header = ("treatment", "verdict", "hack", "solve", "hacks less, points", "solving lost, points", "seeds", "why")
    return TextTable(name="outcomes", title="Verdict on every treatment", header=header, rows=rows, left=2)


def _evaluations(arms: Sequence[TrainedArm]) -> TextTable:
    rows = []
    for arm in arms:
        for seed, run in zip(arm.seeds, arm.runs, strict=True):
            for step, rates in rates_of(run).items():
                counts = (str(seed), str(step), str(rates["num_rollouts"]))
                rows.append((arm.name, arm.arm, *counts, *(_rate(rates[metric]) for metric in RATES)))
    header = ("treatment", "arm", "seed", "steps", "rollouts", *RATES)
    return TextTable(name="evaluations", title="Evaluations (rate [Wilson 95%])", header=header, rows=rows, left=2)


def _rate(rate: Mapping[str, Any]) -> str:
    """Format a rate, `50% [35%, 65%]`; a dash without evaluated rollouts."""
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"
