"""Sections for the verdict (of one run, trained arms or a spec), its measures, the criteria and all runs.

`templates/first.html`, `verdict.html` and `runs.html` define the layout.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.families import FAMILIES
from probe.analysis.formatting import TextTable, p_value, shown
from probe.analysis.statistics.permutation import N2
from probe.analysis.text_report import all_tables, basis_table
from probe.analysis.verdict.trained import judge_arms
from probe.analysis.verdict.trained_arms import grouped
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.report.drawing import drawn
from probe.report.inputs import Report, label_of
from probe.report.page import Section, render
from probe.report.run_figures import alignment, figures_of
from probe.report.sections import EVIDENCE

LEAD = "What the data say, why, and what to do next. Brackets hold 95% intervals."
VALIDITY = "Validity, part by part: can the measurement be believed?"
RESTS_ON = {"hackward": "measures", "about": "distributions", "removable": "measures"}  # {finding: its section}
MOST_ARMS = 6  # more arms are shown as counts of verdicts


def verdict(report: Report, pushes: Mapping[str, Any] | None) -> Section:
    """Return the section of the verdict on the spec, the single run, or the trained arms of several runs.

    Args:
        report: the report to judge.
        pushes: `probe.report.rollouts.evidence` of a single run, else None.
    """
    context: dict[str, Any] = {"run": None, "arms": [], "verdict": None, "replay": None, "pushes": pushes}
    arms, lead, figures = arm_verdicts(report), LEAD, []
    if report.evaluation is not None:
        lead = report.evaluation.question
        context |= {"verdict": report.evaluation.verdict, "replay": report.evaluation.replay}
    elif report.judged is not None:
        run = _of_run(report.judged)
        context["run"], figures = run | {"rests_on": RESTS_ON}, run["answers"]
    elif 0 < len(arms) <= MOST_ARMS:
        context["arms"] = arms
    else:
        words = Counter([arm.word for arm in arms] or [analysis.verdict.word for analysis in report.analyses])
        counted = "; ".join(f"{word}: {count} of {words.total()}" for word, count in words.items())
        context["verdict"] = Verdict(about={}, word=counted, sentence="", findings=[])
    html = _rendered("first.html", **context)
    return Section(id="verdict", title="Verdict", lead=lead, html=html, figures=figures)


def measures(report: Report) -> Section | None:
    """Return the measures behind the verdict of a single run; None for several, which show them in the comparison."""
    analysis = report.judged
    if analysis is None:
        return None
    figures = figures_of(analysis, "measures")
    return Section(
        id="measures",
        title="Measures",
        lead="How large is it compared with what no signal reads, and can the measurement be believed?",
        html=_rendered("measures.html", run=_of_run(analysis), figures=figures),
        figures=figures,
        tables={label_of(analysis): _tables(analysis)},
    )


def compared(report: Report) -> list[Section]:
    """Return the sections that compare several runs: the criteria of a spec, and all runs."""
    sections = []
    if report.evaluation is not None:
        lead = "Written down before the data were there. What a criterion asks, and what the data say to it."
        html = _rendered("criteria.html", rows=report.evaluation.verdict.findings)
        sections.append(Section(id="criteria", title="Criteria", lead=lead, html=html))
    if report.evaluation is not None or len(report.analyses) > 1:
        figure, table = drawn("alignment", alignment, report.analyses), overview(report.analyses)
        runs = [_of_run(analysis) for analysis in report.drawn]
        figures = [*([] if figure is None else [figure]), *(each for run in runs for each in run["answers"])]
        tables = {"": [table]} | {label_of(each): _tables(each) for each in report.analyses}
        lead = "Every run in one row, and its verdict folded away below."
        html = _rendered("runs.html", overview=table, figures=figures[:1] if figure else [], runs=runs)
        sections.append(Section(id="runs", title="Runs", lead=lead, html=html, figures=figures, tables=tables))
    return sections


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
    return render(template, validity=VALIDITY, **context)


def _of_run(analysis: Analysis) -> dict[str, Any]:
    return {
        "label": label_of(analysis),
        "verdict": analysis.verdict,
        "questions": analysis.verdict.asked,
        "answers": figures_of(analysis, "verdict"),
        "rests_on": {},
        "bases": basis_table(analysis),
        "measures": _measures(analysis),
        "validity": analysis.validity,
    }


def _measures(analysis: Analysis) -> list[TextTable]:
    """Return the tables of estimates that no other section shows, such as those behind the three questions."""
    elsewhere = {name for *_, names, _ in EVIDENCE for name in names}
    return all_tables(analysis, [family for family in FAMILIES if family not in elsewhere])


def _tables(analysis: Analysis) -> list[TextTable]:
    """Return the content of a run's verdict as tables; the page shows the last one as a list."""
    bases = basis_table(analysis)
    parts = _list("validity", VALIDITY, analysis.validity)
    return [*([bases] if bases.rows else []), *_measures(analysis), parts]


def _list(name: str, title: str, findings: Sequence[Finding]) -> TextTable:
    rows = [
        (row.name, row.says, row.role, row.question, f"{row.n} {row.unit}s" if row.unit else "", row.text)
        for row in findings
    ]
    return TextTable(name=name, title=title, header=("row", "says", "role", "asked", "n", "text"), rows=rows, left=6)
