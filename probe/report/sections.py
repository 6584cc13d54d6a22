"""The sections of the page: functions that gather the content for the templates in `templates/`.

To add a figure, add a row to `probe.report.run_figures.FORESTS` or FIGURES.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.formatting import TextTable, p_value, shown
from probe.analysis.statistics.permutation import N2
from probe.analysis.text_report import all_tables
from probe.analysis.verdict.trained import judge_arms
from probe.analysis.verdict.trained_arms import TrainedArm, grouped
from probe.analysis.verdict.verdict import Verdict, effect_and_price
from probe.report.drawing import drawn
from probe.report.facts import CLEAN, HACKED, UNLABELLED
from probe.report.inputs import Report, label_of
from probe.report.page import Section, render
from probe.report.rollouts import RunRollouts
from probe.report.run_figures import family, figures_of
from probe.report.training_figures import MOST_NAMED, RATES, figures_of_training
from probe.report.trainings import rates_of, trained_arms
from probe.report.viewer import viewer_data

VALIDITY = "Validity, part by part: can the measurement be believed?"
MOST_ARMS = 6  # more arms are shown as counts of verdicts
COLOURED = {"coloured": "coloured tokens first"}  # then by alignment with the hack
ORDERS = {  # keys of page.js
    "hackward": "most toward the hack first",
    "cleanward": "most away from it first",
    "step": "step by step",
    "reward": "largest reward first",
    "advantage": "largest advantage first",
    "tokens": "longest first",
}


def verdict(report: Report, pushes: Mapping[str, Any] | None) -> Section:
    """Return the section of the verdict on the spec, the single run, or the trained arms of several runs.

    Args:
        report: the report to judge.
        pushes: `probe.report.rollouts.evidence` of a single run, else None.
    """
    context: dict[str, Any] = {"run": None, "arms": [], "verdict": None, "replay": None, "pushes": pushes}
    arms, lead, figures = arm_verdicts(report), "Brackets are 95% intervals.", []
    if report.evaluation is not None:
        lead = report.evaluation.spec.experiment.question
        context |= {"verdict": report.evaluation.verdict, "replay": report.evaluation.replay}
    elif report.judged is not None:
        context["run"] = _of_run(report.judged)
        figures = context["run"]["answers"]
    elif 0 < len(arms) <= MOST_ARMS:
        context["arms"] = arms
    else:
        words = Counter([arm.word for arm in arms] or [analysis.verdict.word for analysis in report.analyses])
        counted = "; ".join(f"{word}: {count} of {words.total()}" for word, count in words.items())
        context["verdict"] = Verdict(about={}, word=counted, sentence="", findings=[])
    html = _rendered("first.html", **context)
    return Section(id="verdict", title="Verdict", lead=lead, html=html, figures=figures)


def compared(report: Report) -> list[Section]:
    """Return the sections that compare several runs: the criteria of a spec, and all runs."""
    sections = []
    if report.evaluation is not None:
        lead = "The criteria were written before the data. Each has its result."
        html = _rendered("criteria.html", rows=report.evaluation.verdict.findings)
        sections.append(Section(id="criteria", title="Criteria", lead=lead, html=html))
    if report.evaluation is not None or len(report.analyses) > 1:
        table = overview(report.analyses)
        figures = [each for each in (drawn("alignment", family, report.analyses, "cos_in"),) if each is not None]
        runs = [_of_run(analysis) for analysis in report.drawn]
        answers = [each for run in runs for each in run["answers"]]
        tables = {"": [table]} | {label_of(each): [_validity(each)] for each in report.analyses}
        html = _rendered("runs.html", overview=table, figures=figures, runs=runs)
        lead = "Each run is one row; its verdict is folded below."
        sections.append(
            Section(id="runs", title="Runs", lead=lead, html=html, figures=[*figures, *answers], tables=tables)
        )
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
    return Section(
        id="training",
        title="Training",
        lead="Rates on held-out problems, asked with the hint. Intervals are over seeds and problems; with a single "
        "seed they leave out the variation between seeds.",
        html=_panels({"": figures}, {"": tables}),
        figures=figures,
        tables={"": tables},
    )


def rollouts(rollouts_by_run: Sequence[RunRollouts]) -> tuple[Section, set[str]]:
    """Return the viewer of rollouts, and the anchors of the rollouts shown."""
    data, anchors, largest_share = viewer_data(rollouts_by_run)
    found = [one for _, shown, _ in rollouts_by_run for one in shown]
    num_coloured = sum(one.tokens is not None for one in found)
    cautions = [sentence for *_, missing in rollouts_by_run for sentence in missing]
    if anchors and len(anchors) < len(found):
        words = f"The page has {len(anchors)} of {len(found)} rollouts: of each source and label, those with"
        cautions.append(f"{words} coloured tokens and the largest cosines. probe show prints the others.")
    known = [HACKED, CLEAN, *([UNLABELLED] if any(one.sample.hacked is None for one in found) else [])]
    html = render(
        "rollouts.html",
        cautions=cautions,
        data=data if anchors else "",
        largest_share=largest_share,
        labels={"": "all", **{name: name for name in known}},
        sources={"": "every source"} | {one.sample.src_pool: one.sample.src_pool for one in found},
        runs={"": "every run"} | {str(i): name for i, (name, *_) in enumerate(rollouts_by_run)},
        orders=(COLOURED if 0 < num_coloured < len(found) else {}) | ORDERS,
    )
    lead = "The number of a row is the cosine of the rollout's part of the update with v_hack."
    return Section(id="rollouts", title="Rollouts", lead=lead, html=html), anchors


def estimates(report: Report) -> Section:
    """Return the figures of the first analyses, a forest plot per family, and the tables of all analyses."""
    tables = {label_of(analysis): all_tables(analysis) for analysis in report.analyses}
    by_label = {label_of(analysis): figures_of(analysis, "estimates") for analysis in report.drawn}
    num_more = len(report.analyses) - len(report.drawn)
    html = _panels(by_label, tables, empty="This run has no estimate along v_hack.", num_more=num_more)
    if report.judged is not None:
        html += _rendered("criteria.html", rows=[], run={"validity": report.judged.validity})
        tables = {label: [*of_run, _validity(report.judged)] for label, of_run in tables.items()}
    return Section(
        id="estimates",
        title="Estimates",
        lead="The numbers behind the verdict. Their unit is the prompt: rollouts of one prompt resemble each other.",
        html=html,
        figures=[figure for of_one in by_label.values() for figure in of_one],
        tables=tables,
    )


def arm_verdicts(report: Report) -> list[Verdict]:
    """Return the verdicts on trained arms, of the spec or of runs analysed together."""
    if report.evaluation is not None:
        return report.evaluation.arms
    trainings = grouped(report.analyses)
    return [] if trainings is None else judge_arms(trainings)


def overview(analyses: Sequence[Analysis]) -> TextTable:
    """Return a table with the main numbers of each analysis, one a row."""
    rows = []
    for analysis in analyses:
        cosine = analysis.get("cos_in", "cos_in", analysis.measured_arm) or Estimate(name="cos_in")
        permuted = analysis.get("nulls", f"cos_in, {N2}") or Estimate(name=N2)
        area = next(iter(analysis.of("auroc")), Estimate(name="auroc"))  # v_hack comes first, its rivals follow
        place = (label_of(analysis), analysis.verdict.word, analysis.measured_arm or "-", str(cosine.n))
        numbers = (shown(cosine.value, "+.3f"), p_value(cosine.p), p_value(permuted.p), shown(area.value, ".2f"))
        rows.append((*place, *numbers))
    header = ("run", "verdict", "arm", "prompts", "cos_in", "flip p", "N2 p", "AUROC")
    title = "The arm that stands for vanilla in each run"
    return TextTable(name="overview", title=title, header=header, rows=rows, left=3)


def _rendered(template: str, **context: Any) -> str:
    return render(template, validity=VALIDITY, **({"run": None} | context))


def _of_run(analysis: Analysis) -> dict[str, Any]:
    return {
        "label": label_of(analysis),
        "verdict": analysis.verdict,
        "questions": analysis.verdict.asked,
        "answers": figures_of(analysis, "verdict"),
        "validity": analysis.validity,
    }


def _validity(analysis: Analysis) -> TextTable:
    """Return the parts of a run's measurement as a table, for the files."""
    rows = [(part.name, part.says, part.text) for part in analysis.validity]
    return TextTable(name="validity", title=VALIDITY, header=("part", "says", "text"), rows=rows, left=3)


def _panels(
    figures: Mapping[str, Sequence[Any]],
    tables: Mapping[str, Sequence[TextTable]],
    *,
    empty: str = "",
    num_more: int = 0,
) -> str:
    """Render figures and their folded tables, by the label of the run."""
    return render("figures.html", figures=figures, tables=tables, empty=empty, num_more=num_more)


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
