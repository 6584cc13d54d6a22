"""What the report shows first: for one run its verdict and evidence, for a spec its question and decision.

Of one run, `_run_verdict` says what stands where; of a spec, `_experiment_verdict`. What they rest on follows in
sections of its own: `measures` of a run; criteria and runs (`compared`). The
order of the sections is in `probe/report/build.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import TextTable, number, p_value, share
from probe.analysis.tables import basis_table, ceiling_table, forecast_table, hackward_table, share_table
from probe.analysis.trained.arms import grouped
from probe.analysis.trained.decision import ArmVerdict, judge_arms
from probe.analysis.verdict.evidence import VerdictRow
from probe.analysis.verdict.questions import Finding
from probe.experiments.judge.verdict import SpecVerdict
from probe.report.drawing import Figure, drawn
from probe.report.facts import plural
from probe.report.html import node
from probe.report.inputs import Report, View
from probe.report.run_figures import alignment, figures_of
from probe.report.sections.base import (
    Section,
    chip,
    drawn_only,
    panels,
    paragraph,
    share_bar,
    table_html,
    typeset,
)

LEAD = "What the data say, why, and what to do next."
MEASURES_LEAD = "How large is it beside what no signal reads, and can the measurement be believed?"
CRITERIA_LEAD = "Written down before the data were there. What a criterion asks, and what the data say to it."
RUNS_LEAD = "Every run in one row, and its verdict folded away below."
VALIDITY = "Validity, part by part: can the measurement be believed?"
SEED_TABLES = "The seed's tables V and D, on which no verdict rests"
MEASURES = "The measures behind the three questions"
MOST_ARMS = 6  # with a line of their own; of more, their verdicts are counted
HOLDS = {True: "holds", False: "BROKEN", None: "not seen"}


def verdict(report: Report, evidence: Element | None) -> Section:
    """The verdict of the spec, or of the one run; of several runs what training made of their arms.

    Args:
        report: what is judged.
        evidence: of the one run: what pushes. None for several.
    """
    if report.evaluation is not None:
        return _section("verdict", "Verdict", report.evaluation.question, _experiment_verdict(report.evaluation))
    if len(report.views) > 1:
        verdicts = arm_verdicts(report)
        if 0 < len(verdicts) <= MOST_ARMS:
            arms = node("div", *map(_arm, verdicts), class_="rules")
            return _section("verdict", "Verdict", LEAD, [arms])
        outcomes = [arm.outcome for arm in verdicts] or [view.analysis.decision.outcome for view in report.views]
        return _section("verdict", "Verdict", LEAD, [_decision(_counted(outcomes), "")])
    return _section("verdict", "Verdict", LEAD, _run_verdict(report.views[0].analysis, evidence))


def measures(report: Report) -> Section | None:
    """What the verdict of a single run rests on; several runs have it folded away in their comparison."""
    if len(report.views) > 1 or report.evaluation is not None:
        return None
    view = report.views[0]
    figures = figures_of(view, "measures")
    section = _section("measures", "Measures", MEASURES_LEAD, _measures_of(view.analysis, figures))
    return replace(section, figures=figures, tables={view.label: _tables(view.analysis)})


def arm_verdicts(report: Report) -> list[ArmVerdict]:
    """What the judge says of arms after training, of the spec or of runs that were given together."""
    if report.evaluation is not None:
        return report.evaluation.arms
    trainings = grouped([(view.run, view.analysis.outcome) for view in report.views])
    return [] if trainings is None else judge_arms(trainings)


def compared(report: Report) -> list[Section]:
    """What several runs are compared by: of a spec its criteria, and all runs."""
    sections = []
    if report.evaluation is not None:
        sections.append(_section("criteria", "Criteria", CRITERIA_LEAD, [_criteria(report.evaluation)]))
    if report.evaluation is not None or len(report.views) > 1:
        sections.append(_runs(report))
    return sections


def _counted(outcomes: Sequence[str]) -> str:
    """`GO: 3 of 4; SKIP: 1 of 4`."""
    return "; ".join(f"{outcome}: {count} of {len(outcomes)}" for outcome, count in Counter(outcomes).items())


def _arm(verdict: ArmVerdict) -> Element:
    """One arm after its training, in one line."""
    rates = []
    for name, rate in (("hacks", verdict.hack), ("solves", verdict.solve)):
        if rate is not None:
            rates.append(f"{name} {rate:.0%}")
    words = ", ".join([*rates, plural(len(verdict.seeds), "seed")])
    return node(
        "div",
        node("div", chip(verdict.outcome), class_="rule-head"),
        paragraph(node("b", verdict.name), " ", node("span", words, class_="soft-text")),
        class_="rule",
    )


def _section(id: str, title: str, lead: str, body: list[Element]) -> Section:
    return Section(id=id, title=title, lead=lead, body=body)


def _runs(report: Report) -> Section:
    """The comparison of the runs stands open, and the verdict of each is folded away below it."""
    table = overview(report.views)
    tables: dict[str, list[TextTable]] = {"": [table]}
    figures = drawn_only(drawn("alignment", alignment, report.views))
    body = [table_html(table), *panels(figures)]
    for view in report.drawn:
        summary = node("summary", f"{view.label}: {view.analysis.decision.outcome}")
        content = [*_run_verdict(view.analysis, None), *_measures_of(view.analysis, [])]
        body.append(node("details", summary, *content, class_="fold wide"))
    for view in report.views:
        tables[view.label] = _tables(view.analysis)
    return Section(id="runs", title="Runs", lead=RUNS_LEAD, body=body, figures=figures, tables=tables)


def _tables(analysis: Analysis) -> list[TextTable]:
    """All that is in the verdict of a run; the last two are lists in the page, and tables beside it."""
    bases = basis_table(analysis)
    several = [bases] if bases.rows else []
    return [*several, *_measures(analysis), _validity_table(analysis), _checks_table(analysis)]


def overview(views: Sequence[View]) -> TextTable:
    """One row a view: what a comparison of runs looks at first."""
    rows = []
    for view in views:
        analysis = view.analysis
        num_prompts, mean_cos_in, flip_p = 0, None, None
        for summary in analysis.summaries:
            if summary.arm == analysis.measured_arm:
                num_prompts, mean_cos_in, flip_p = summary.num_prompts, summary.mean_cos_in, summary.sign_flip_p
        null = analysis.permutation.get("cos_in", "N2") if analysis.permutation else None
        area = analysis.specificity[0].auroc if analysis.specificity else None  # the cosine's; its rivals follow
        rows.append(
            (
                view.label,
                analysis.decision.outcome,
                analysis.measured_arm or "-",
                str(num_prompts),
                number(mean_cos_in),
                p_value(flip_p),
                p_value(null.p if null else None),
                share(area),
            )
        )
    header = ("run", "verdict", "arm", "prompts", "cos_in", "flip p", "N2 p", "AUROC")
    return TextTable(
        name="overview", title="The arm that stands for vanilla in each run", header=header, rows=rows, left=3
    )


def _run_verdict(analysis: Analysis, evidence: Element | None) -> list[Element]:
    """The decision of one run, the questions beside the evidence, what to keep in mind, and the next command."""
    decision = analysis.decision
    answered = _is_answered(analysis)
    questions = node("div", *map(_question, analysis.questions), class_="rules") if answered else None
    first = [element for element in (questions, evidence) if element is not None]
    bases = basis_table(analysis)
    caveats = [node("li", typeset(caveat)) for caveat in analysis.caveats]
    return [
        _decision(decision.outcome, "" if answered else decision.why),
        *([node("div", *first, class_="first-screen" if len(first) > 1 else None)] if first else []),
        *([table_html(bases)] if bases.rows else []),
        *([node("h3", "Keep in mind"), node("ul", *caveats, class_="caveats")] if caveats else []),
        paragraph(node("b", "Next. "), typeset(decision.next.text), class_="question"),
        *([node("pre", decision.next.command)] if decision.next.command else []),
    ]


def _measures_of(analysis: Analysis, figures: Sequence[Figure]) -> list[Element]:
    """The figures, the tables behind the questions, and the checks, which open when they are asked for."""
    parts = []
    for part in analysis.validity:
        parts.append(node("li", chip(HOLDS[part.holds]), node("b", part.name), " ", typeset(part.text)))
    return [
        *panels(figures),
        *_folded_together(MEASURES, _measures(analysis)),
        node("details", node("summary", VALIDITY), node("ul", *parts, class_="parts"), class_="fold"),
        node("details", node("summary", SEED_TABLES), _checks(analysis.checks), class_="fold"),
    ]


def _folded_together(title: str, tables: Sequence[TextTable]) -> list[Element]:
    """Several tables that open together."""
    if not tables:
        return []
    return [node("details", node("summary", title), *map(table_html, tables), class_="fold")]


def _measures(analysis: Analysis) -> list[TextTable]:
    """The tables behind the three questions, those that have rows."""
    tables = (share_table(analysis), ceiling_table(analysis), hackward_table(analysis), forecast_table(analysis))
    return [table for table in tables if table.rows]


def _is_answered(analysis: Analysis) -> bool:
    """Whether the verdict follows from the three questions; otherwise it is said in one sentence."""
    return analysis.decision.outcome not in ("BROKEN", "TRAINED")


def _question(finding: Finding) -> Element:
    """One of the three questions: what it says, the picture of its interval, and the sentence."""
    drawn = None if finding.number is None else share_bar(finding.number, finding.counts_from)
    return node(
        "div",
        node("div", chip(finding.says.upper()), drawn, class_="rule-head"),
        node("div", paragraph(node("b", finding.question)), paragraph(typeset(finding.text), class_="soft-text")),
        class_="rule",
    )


def _experiment_verdict(evaluation: SpecVerdict) -> list[Element]:
    """The decision of a spec, why the ones before it were refused, and its cautions; the question is the lead."""
    refused, replay = [], evaluation.replay
    for name, requirements in evaluation.refused.items():
        refused.append(node("li", node("b", f"Not {name}: "), ", ".join(requirements)))
    cautions = [node("li", caution) for caution in evaluation.cautions]
    return [
        _decision(evaluation.decision, evaluation.then),
        *([] if replay is None else [paragraph(node("b", f"Verdict of {replay.run}: {replay.verdict}. "), replay.why)]),
        *([node("ul", *refused, class_="caveats")] if refused else []),
        *([node("ul", *cautions, class_="caveats caution")] if cautions else []),
    ]


def _criteria(evaluation: SpecVerdict) -> Element:
    rows = [
        _rule_row(row.name, row.verdict, row.role, row.condition, row.n, row.unit, row.value, row.why, row.reported)
        for row in evaluation.rows
    ]
    return node("div", *rows, class_="rules")


def _decision(outcome: str, why: str) -> Element:
    return node("div", node("strong", outcome), paragraph(typeset(why)) if why else None, class_="decision")


def _checks(checks: Sequence[VerdictRow]) -> Element:
    rows = [
        _rule_row(check.row, check.verdict, check.kind, check.condition, check.n, check.unit, check.value, check.why)
        for check in checks
    ]
    return node("div", *rows, class_="rules")


def _rule_row(
    name: str, verdict: str, kind: str, condition: str, n: int, unit: str, value: str, why: str, reported: str = ""
) -> Element:
    """One rule or criterion: its verdict, its condition in words, what the data say, and what was reported."""
    actual = f"{value}; {why}" if value else why
    mechanism = node("span", " mechanism", class_="soft-text") if kind == "mechanism" else None
    return node(
        "div",
        node("div", node("b", name), chip(verdict), class_="rule-head"),
        node(
            "div",
            paragraph(typeset(condition), mechanism),
            paragraph(typeset(f"{plural(n, unit)}: {actual}"), class_="soft-text"),
            paragraph(typeset(f"reported: {reported}"), class_="soft-text") if reported else None,
        ),
        class_="rule",
    )


def _validity_table(analysis: Analysis) -> TextTable:
    rows = [(part.name, HOLDS[part.holds], part.text) for part in analysis.validity]
    return TextTable(name="validity", title=VALIDITY, header=("part", "holds", "found"), rows=rows, left=3)


def _checks_table(analysis: Analysis) -> TextTable:
    rows = [
        (check.row, check.verdict, check.kind, check.condition, f"{check.n} {check.unit}s", check.value, check.why)
        for check in analysis.checks
    ]
    header = ("row", "verdict", "kind", "asked", "n", "found", "why")
    return TextTable(name="verification", title=SEED_TABLES, header=header, rows=rows, left=7)
