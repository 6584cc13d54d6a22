"""Five sections of figures with the tables behind them: trajectories, labels, modules, advantage cells, trivial scores.

Each section gives `_section` a function that draws the figures of one view. To add a figure to a section: write it in
`probe/report/figures/`, and add its call to the section's `draw`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.analysis.measures.contrasts import METRICS
from probe.analysis.tables import all_tables
from probe.records.records import SampleRecord
from probe.report.figures.distribution import distribution
from probe.report.figures.hack_vs_clean import areas, cells, contrasts
from probe.report.figures.modules import module_map
from probe.report.figures.panel import Figure, plural
from probe.report.figures.scatter import LENGTH, LIKELIHOOD, scatter
from probe.report.figures.trajectory import extent_of, trajectory
from probe.report.html import node
from probe.report.inputs import Report, View
from probe.report.sections.base import Section, beside, drawn_only, folded, heading, panels, paragraph, table_html

Draw = Callable[[View], list[Figure]]
Links = Mapping[tuple[Path, int, int], str]  # {(run, step, sample): where the rollout is shown}

MARKS = 1200  # rollouts drawn in the panels of one kind, over all views
TRAJECTORIES = (
    "The cosine between the step's gradient and the direction, before (cos_in) and after the gate (cos_out). Above "
    "zero a descent step makes the hack more likely. At frozen weights the steps are independent prompts and their "
    "order means nothing; in training they are one autocorrelated path. After a one-sided gate a cosine at or below"
    " zero is an identity of the gate, not a finding."
)
DISTRIBUTIONS = (
    "Rollouts of one prompt resemble one another, so that the prompt is the unit: one mark a prompt, within-prompt "
    "differences, intervals over prompts. A hack that is paid and a solution that is paid get the same advantage: "
    "the contrast that counts is made among A > 0."
)
MODULES = (
    "Mean cosine of every adapted module, in standard deviations of its null (labels permuted across pairs). A ring"
    " marks what is beyond the largest |z| that the null reaches in any module in 95% of its draws (max-T)."
)
NO_MODULES = "A map needs the inner products that a replay at frozen weights stores in gram/, and there are none here."
CELLS = (
    "The hack-ward part of the gradient is a sum over rollouts, here by source, hint, label and sign of the "
    "advantage. A reward contrast alone is success against failure: look at who carries it before reading a cosine "
    "as being about hacks."
)
TRIVIA = (
    "A score that follows length is about length. Specific is a cosine that tells hacks from clean rollouts better "
    "than length, likelihood, gradient norm or the hint do. Colour is the label, shape the source; a mark opens its"
    " rollout."
)


def trajectories(report: Report) -> Section:
    """The cosines of every arm, step by step."""

    def draw(view: View) -> list[Figure]:
        # The arms share one axis, so that they can be compared by eye.
        extent = extent_of([step for step in view.run.steps if step.condition == view.analysis.condition])
        figures = []
        for arm in view.analysis.arms:
            name = f"trajectory-{view.slug}-{arm}"
            figures.append(trajectory(name, view.steps(arm), extent, trains=view.trains))
        return drawn_only(*figures)

    names = ("arms", "nulls", "comparisons", "gates", "steps")
    return _section(report, "trajectories", "Trajectories", TRAJECTORIES, draw, names, "No step was recorded.")


def distributions(report: Report) -> Section:
    """Sample cosines by source and label, and within-prompt contrasts."""

    def draw(view: View) -> list[Figure]:
        samples = [sample for sample in view.samples if sample.sure]
        most = _marks_per_panel(report)
        by_metric = [distribution(f"{metric}-{view.slug}", samples, metric, most=most) for metric in METRICS]
        return drawn_only(*by_metric, contrasts(f"contrasts-{view.slug}", view.analysis))

    names = ("buckets", "contrast-1", "contrast-2", "contrast-3", "contrast-4", "contrast-5")
    empty = "No rollout has a cosine."
    return _section(report, "distributions", "Hack versus clean", DISTRIBUTIONS, draw, names, empty)


def modules(report: Report) -> Section:
    """The cosine of every adapted module, as a map."""

    def draw(view: View) -> list[Figure]:
        permutation = view.analysis.permutation
        if permutation is None:
            return []
        return drawn_only(module_map(f"modules-{view.slug}", permutation.modules, permutation.modules_critical_z))

    return _section(report, "modules", "Module map", MODULES, draw, ("modules",), NO_MODULES, side=True)


def advantage_cells(report: Report) -> Section:
    """Which rollouts carry the gradient."""

    def draw(view: View) -> list[Figure]:
        return drawn_only(cells(f"cells-{view.slug}", view.analysis.cells))

    empty = "No rollout has an advantage."
    return _section(report, "cells", "Advantage cells", CELLS, draw, ("cells",), empty, side=True)


def trivia(report: Report, links: Links) -> Section:
    """Sample cosines against completion length and other trivial scores.

    Args:
        report: whose rollouts are drawn, one mark each.
        links: where the page shows a rollout; marks of others lead nowhere.
    """

    def draw(view: View) -> list[Figure]:
        def link(sample: SampleRecord) -> str | None:
            return links.get((view.run.path, sample.step, sample.sample_id))

        most = _marks_per_panel(report)
        scatters = [
            scatter(f"{rival.score}-{view.slug}", rival, view.samples, link, most=most)
            for rival in (LENGTH, LIKELIHOOD)
        ]
        return drawn_only(*scatters, areas(f"auroc-{view.slug}", view.analysis))

    empty = "No rollout has a cosine."
    return _section(report, "length", "Trivia", TRIVIA, draw, ("specificity",), empty)


def _marks_per_panel(report: Report) -> int:
    """The most marks of one panel: fewer where there are many views, so that the page stays small."""
    return min(MARKS // 2, MARKS // max(1, len(report.drawn)))


def _section(
    report: Report,
    id: str,
    title: str,
    lead: str,
    draw: Draw,
    names: Sequence[str],
    otherwise: str,
    *,
    side: bool = False,
) -> Section:
    """The figures of every view with the tables behind them.

    Args:
        report: its views; those beyond `report.drawn` have tables alone, and the section says so.
        id: of the section in the page.
        title: its heading.
        lead: its question, and how to read the answer.
        draw: gives the figures of a view.
        names: of the tables behind them.
        otherwise: the sentence that stands where there is no figure.
        side: with a single view, tables stand open beside the figure.
    """
    tables: dict[str, list[TextTable]] = {}
    for view in report.views:
        tables[view.label] = [table for table in all_tables(view.analysis) if table.name in names]
    drawn = [(view, draw(view)) for view in report.drawn]
    figures = [figure for _, view_figures in drawn for figure in view_figures]
    empty = paragraph(otherwise, class_="empty")
    body: list[Element] = []
    if not figures:
        body = [empty]
    elif side and len(drawn) == 1:
        body = beside(figures, [table_html(table) for table in tables[drawn[0][0].label]])
    elif len(drawn) > 1 and all(len(view_figures) <= 1 for _, view_figures in drawn):
        # One figure a view: the views stand beside one another, and their tables have the whole width below.
        columns = []
        for view, view_figures in drawn:
            content = [node("figure", figure.svg) for figure in view_figures] or [empty]
            columns.append(node("div", *heading(view.label, needed=True), *content))
        body = [node("div", *columns, class_="panels")]
        for view, _ in drawn:
            content = map(table_html, tables[view.label])
            body.append(node("details", node("summary", f"Tables of {view.label}"), *content, class_="fold"))
    else:
        for view, view_figures in drawn:
            body += heading(view.label, needed=len(drawn) > 1)
            body += [*(panels(view_figures) or [empty]), *folded(tables[view.label])]
    num_more = len(report.views) - len(drawn)
    if num_more:
        words = f"{plural(num_more, 'more view')} without figures of their own: see the tables beside this page."
        body.append(paragraph(words, class_="empty"))
    return Section(id=id, title=title, lead=lead, body=body, figures=figures, tables=tables)
