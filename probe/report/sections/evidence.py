"""The evidence, figure by figure: trajectories, labels, modules, cells, trivial scores."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from probe.analysis.measures.cells import METRICS
from probe.analysis.tables import all_tables
from probe.report.figures.distribution import distribution
from probe.report.figures.hack_vs_clean import areas, cells, contrasts
from probe.report.figures.modules import module_map
from probe.report.figures.panel import Figure, plural
from probe.report.figures.scatter import LENGTH, LIKELIHOOD, scatter
from probe.report.figures.trajectory import extent_of, trajectory
from probe.report.html import node
from probe.report.inputs import Report, View
from probe.report.sections.base import Section, beside, folded, heading, panels, present, prose, table_html

Draw = Callable[[View], list[Figure]]
Links = Mapping[tuple[Path, int, int], str]  # {(run, step, sample): where the rollout is shown}

MARKS = 2400  # rollouts drawn in the panels of one kind, over all views
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
NO_MODULES = (
    "A map needs the inner products that a replay in the SVD basis at frozen weights stores in gram/, and there are"
    " none here."
)
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
    """Every arm step by step."""

    def draw(view: View) -> list[Figure]:
        extent = extent_of([s for s in view.run.steps if s.condition == view.analysis.condition])
        arms = view.analysis.arms
        return present(*(trajectory(f"trajectory-{view.slug}-{arm}", view.steps(arm), extent) for arm in arms))

    names = ("arms", "nulls", "comparisons", "gates", "steps")
    return _section(report, "trajectories", "Trajectories", TRAJECTORIES, draw, names, "No step was recorded.")


def distributions(report: Report) -> Section:
    """Sample cosines by source and label, and contrasts."""

    def draw(view: View) -> list[Figure]:
        sure = [s for s in view.samples if not s.flaky]
        most = _marks(report)
        spread = [distribution(f"{metric}-{view.slug}", sure, metric, most=most) for metric in METRICS]
        return present(*spread, contrasts(f"contrasts-{view.slug}", view.analysis))

    names = ("buckets", "contrast-1", "contrast-2", "contrast-3", "contrast-4", "contrast-5")
    empty = "No rollout has a cosine."
    return _section(report, "distributions", "Hack versus clean", DISTRIBUTIONS, draw, names, empty)


def modules(report: Report) -> Section:
    """The map over modules."""

    def draw(view: View) -> list[Figure]:
        found = view.analysis.permutation
        if found is None:
            return []
        return present(module_map(f"modules-{view.slug}", found.modules, found.modules_critical_z))

    return _section(report, "modules", "Module map", MODULES, draw, ("modules", "other-k"), NO_MODULES, side=True)


def advantage_cells(report: Report) -> Section:
    """Which rollouts carry the gradient."""

    def draw(view: View) -> list[Figure]:
        return present(cells(f"cells-{view.slug}", view.analysis.cells))

    empty = "No rollout has an advantage."
    return _section(report, "cells", "Advantage cells", CELLS, draw, ("cells",), empty, side=True)


def trivia(report: Report, links: Links) -> Section:
    """Sample cosines against completion length and other trivial scores."""

    def draw(view: View) -> list[Figure]:
        link = lambda s: links.get((view.run.path, s.step, s.sample_id))  # noqa: E731
        most = _marks(report)
        marks = [scatter(f"{r.score}-{view.slug}", r, view.samples, link, most=most) for r in (LENGTH, LIKELIHOOD)]
        return present(*marks, areas(f"auroc-{view.slug}", view.analysis))

    empty = "No rollout has a cosine."
    return _section(report, "length", "Length and other trivia", TRIVIA, draw, ("specificity",), empty)


def _marks(report: Report) -> int:
    """Marks of one panel, so that a report of many runs stays small: few for each where there are many panels."""
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
    """The figures of every view with the tables behind them; views without any say why.

    Args:
        draw: the figures of a view.
        names: of the tables behind them.
        otherwise: what is said where there is no figure.
        side: of one view, tables stand open beside the figure.
    """
    tables = {view.label: [t for t in all_tables(view.analysis) if t.name in names] for view in report.views}
    drawn = [(view, draw(view), tables[view.label]) for view in report.drawn]
    figures = [figure for _, own, _ in drawn for figure in own]
    empty = prose(otherwise, class_="empty")
    if not figures:
        body = [empty]
    elif side and len(drawn) == 1:
        body = beside(figures, [table_html(table) for table in drawn[0][2]])
    elif len(drawn) > 1 and all(len(own) <= 1 for _, own, _ in drawn):
        cells = [
            node("div", *heading(view.label, True), *figure_or(own, empty), *folded(kept)) for view, own, kept in drawn
        ]
        body = [node("div", *cells, class_="panels")]
    else:
        body = []
        for view, own, kept in drawn:
            body += [*heading(view.label, len(drawn) > 1), *(panels(own) or [empty]), *folded(kept)]
    if more := len(report.views) - len(drawn):
        words = f"{plural(more, 'more view')} without figures of their own: see the tables beside this page."
        body.append(prose(words, class_="empty"))
    return Section(id=id, title=title, lead=lead, body=body, figures=figures, tables=tables)


def figure_or(own: Sequence[Figure], empty: Element) -> list[Element]:
    """The one figure of a view, or the reason why there is none."""
    return [node("figure", one.svg) for one in own] or [empty]
