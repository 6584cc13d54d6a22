"""The verdict first: the decision, what the numbers say in words, and the rules that it follows from."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import TextTable, number, p_value, share
from probe.analysis.verdict.evidence import VerdictRow
from probe.experiments.evaluation import Evaluation
from probe.report.figures.alignment import alignment, nulls
from probe.report.markup import node
from probe.report.panel import Figure, plural
from probe.report.sections.parts import Section, beside, chip, present, prose, table_html, typeset
from probe.report.views import Report, View

LEAD = "What the data say, why, and what they cannot say. A mechanism row is an identity of the code and no evidence."
HOLDS = {True: "PASS", False: "FAIL", None: "INCONCLUSIVE"}


def verdict(report: Report) -> Section:
    """Of the spec where there is one, and of every view."""
    arms = present(alignment([(view.label, view.analysis) for view in report.views]))
    drawn = {view.slug: present(nulls(f"nulls-{view.slug}", view.analysis)) for view in report.drawn}
    figures = arms + [own for row in drawn.values() for own in row]
    tables: dict[str, list[TextTable]] = {}
    if report.evaluation is None and len(report.views) == 1:
        body = _view(report.views[0].analysis, figures)
    else:
        tables[""] = [overview(report.views)]
        body = [] if report.evaluation is None else _experiment(report.evaluation)
        body += [node("h3", "Runs side by side"), *beside(arms, [table_html(tables[""][0])])]
        for view in report.drawn:
            title = node("summary", f"{view.label}: {view.analysis.decision.outcome}")
            body.append(node("details", title, *_view(view.analysis, drawn[view.slug]), class_="fold wide"))
    for view in report.views:
        tables[view.label] = [
            _rules_table("rules", "Rules R0 to R7", view.analysis.rules),
            _rules_table("verification", "The seed's verification table", view.analysis.checks),
        ]
    return Section(id="verdict", title="Verdict", lead=LEAD, body=body, figures=figures, tables=tables)


def overview(views: Sequence[View]) -> TextTable:
    """One row a view: what a comparison looks at first."""
    rows = []
    for view in views:
        a = view.analysis
        own = next((s for s in a.summaries if s.arm == a.measured_arm), None)
        permuted = a.permutation.get("cos_in", "N2") if a.permutation else None
        area = a.specificity[0].auroc if a.specificity else None
        rows.append(
            (
                view.label,
                a.decision.outcome,
                a.measured_arm or "-",
                str(own.num_prompts if own else 0),
                number(own.mean_cos_in if own else None),
                p_value(own.sign_flip_p if own else None),
                p_value(permuted.p if permuted else None),
                share(area),
            )
        )
    header = ("run", "verdict", "arm", "prompts", "cos_in", "flip p", "N2 p", "AUROC")
    return TextTable(
        name="overview", title="The arm that stands for vanilla in each run", header=header, rows=rows, left=3
    )


def _view(a: Analysis, figures: Sequence[Figure]) -> list[Element]:
    """The decision of one run, the sentences with figures beside them, the rules."""
    parts = [node("li", chip(HOLDS[part.holds]), node("b", part.name), " ", typeset(part.text)) for part in a.validity]
    seeds = "The seed's verification table, each row with a verdict that can say no"
    return [
        _decision(a.decision.outcome, a.decision.why),
        *beside(figures, [node("ul", *map(_finding, a.conclusions), class_="findings")], first=False),
        node("h3", "Rules"),
        node("div", *map(_rule, a.rules), class_="rules"),
        node("details", node("summary", "R0, part by part"), node("ul", *parts, class_="parts"), class_="fold"),
        node("details", node("summary", seeds), node("div", *map(_rule, a.checks), class_="rules"), class_="fold"),
    ]


def _experiment(found: Evaluation) -> list[Element]:
    """The decision of a spec, its cautions and criteria."""
    refused = [
        prose(node("b", f"Not {name}: "), ", ".join(rows), class_="refused") for name, rows in found.refused.items()
    ]
    cautions = [prose(node("b", "Caution. "), caution, class_="caution") for caution in found.cautions]
    rows = [
        _row(row.name, row.verdict, row.role, row.condition, row.n, row.unit, row.value, row.why) for row in found.rows
    ]
    return [
        prose(found.question, class_="question"),
        _decision(found.decision, found.then),
        *refused,
        *cautions,
        node("h3", "Criteria, fixed before the data"),
        node("div", *rows, class_="rules"),
        node("h3", f"Rules (run {found.rules_run})"),
        node("div", *map(_rule, found.rules), class_="rules"),
    ]


def _decision(outcome: str, why: str) -> Element:
    return node("div", node("strong", outcome), prose(typeset(why)), class_="decision")


def _finding(sentence: str) -> Element:
    """A sentence with what it is about, before the colon, set off."""
    topic, colon, rest = sentence.partition(": ")
    return node("li", node("b", topic + colon), typeset(rest))


def _rule(check: VerdictRow) -> Element:
    return _row(check.row, check.verdict, check.kind, check.condition, check.n, check.unit, check.value, check.why)


def _row(name: str, verdict: str, kind: str, asked: str, n: int, unit: str, value: str, why: str) -> Element:
    """One rule or criterion: its verdict, what was asked, what was found."""
    found = f"{plural(n, unit)}: {value + '; ' if value else ''}{why}"
    mechanism = node("span", " mechanism", class_="soft-text") if kind == "mechanism" else None
    return node(
        "div",
        node("div", node("b", name), chip(verdict), class_="rule-head"),
        node("div", prose(typeset(asked), mechanism), prose(typeset(found), class_="soft-text")),
        class_="rule",
    )


def _rules_table(name: str, title: str, checks: Sequence[VerdictRow]) -> TextTable:
    rows = [(c.row, c.verdict, c.kind, c.condition, f"{c.n} {c.unit}s", c.value, c.why) for c in checks]
    header = ("rule", "verdict", "kind", "asked", "n", "found", "why")
    return TextTable(name=name, title=title, header=header, rows=rows, left=7)
