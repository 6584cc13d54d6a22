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
from probe.analysis.verdict.outcome import judge_arms
from probe.analysis.verdict.trained_arms import grouped
from probe.analysis.verdict.verdict import Verdict, effect_and_price
from probe.report.analyses import Report, label_of
from probe.report.drawing import Figure, drawn
from probe.report.evidence import RunRollouts
from probe.report.facts import LABELS
from probe.report.page import Section, section
from probe.report.run_figures import family, figures_of
from probe.report.trainings import MOST_NAMED, figures_of_training, trained_arms
from probe.report.viewer import viewer_data

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


def verdict(report: Report, arms: Sequence[Verdict], pushes: Mapping[str, Any] | None) -> Section:
    """Return the section of the verdict on the spec, the single run, or the trained arms of several runs.

    Args:
        report: the report to judge.
        arms: its `arm_verdicts`.
        pushes: `probe.report.evidence.evidence` of a single run, else None.
    """
    lead, content, answers = "Brackets are 95% intervals.", dict[str, Any](), list[Figure]()
    if report.evaluation is not None:
        lead = report.evaluation.spec.experiment.question
        content = {"verdict": report.evaluation.verdict, "replay": report.evaluation.replay}
    elif report.judged is not None:
        answers = figures_of(report.judged, "verdict")
        content = {"run": report.judged, "answers": answers, "pushes": pushes}
    elif 0 < len(arms) <= MOST_ARMS:
        content = {"arms": arms}
    else:
        words = Counter([arm.word for arm in arms] or [analysis.verdict.word for analysis in report.analyses])
        counted = "; ".join(f"{word}: {count} of {words.total()}" for word, count in words.items())
        content = {"verdict": Verdict(about={}, word=counted, sentence="", findings=[])}
    return section("Verdict", lead, "first.html", answers, **content)


def compared(report: Report) -> list[Section]:
    """Return the sections that compare several runs: the criteria of a spec, and all runs."""
    sections = []
    if report.evaluation is not None:
        lead = "The criteria were written before the data. Each has its result."
        sections.append(section("Criteria", lead, "criteria.html", rows=report.evaluation.verdict.findings))
    if report.evaluation is not None or len(report.analyses) > 1:
        lead = "Each run is one row; its verdict is folded below."
        figures = [each for each in (drawn("alignment", family, report.analyses, "cos_in"),) if each is not None]
        runs = {label_of(analysis): (analysis, figures_of(analysis, "verdict")) for analysis in report.drawn}
        every = [*figures, *(each for _, answers in runs.values() for each in answers)]
        table = overview(report.analyses)
        sections.append(section("Runs", lead, "runs.html", every, overview=table, figures=figures, runs=runs))
    return sections


def training(report: Report, verdicts: Sequence[Verdict]) -> Section | None:
    """Return training curves and final rates by treatment, over seeds; None without evaluated trainings.

    Args:
        report: a report with training runs.
        verdicts: verdicts on arms after training, compared with vanilla.
    """
    arms = trained_arms(report)
    if len(arms) > MOST_NAMED:  # not all have a colour
        arms = [arms[0], *sorted(arms[1:], key=lambda arm: arm.mean("hack", "final"))]
    figures = figures_of_training(arms)
    if not figures:
        return None
    lead = (
        "Rates on held-out problems, asked with the hint. Intervals are over seeds and problems; with a single seed "
        "they leave out the variation between seeds."
    )
    tables = [_outcomes(verdicts)] if verdicts else []
    return section("Training", lead, "figures.html", figures, runs={"": (figures, tables)})


def rollouts(rollouts_by_run: Sequence[RunRollouts]) -> Section:
    """Return the viewer of rollouts."""
    data, num_shown, largest_share = viewer_data(rollouts_by_run)
    listed = [one for _, shown, _ in rollouts_by_run for one in shown]
    num_coloured = sum(one.tokens is not None for one in listed)
    cautions = [sentence for *_, missing in rollouts_by_run for sentence in missing]
    if 0 < num_shown < len(listed):
        words = f"The page has {num_shown} of {len(listed)} rollouts: of each source and label, those with"
        cautions.append(f"{words} coloured tokens and the largest cosines. probe show prints the others.")
    return section(
        "Rollouts",
        "The number of a row is the cosine of the rollout's part of the update with v_hack.",
        "rollouts.html",
        cautions=cautions,
        data=data if num_shown else "",
        largest_share=largest_share,
        labels={"": "every label"} | {word: word for word in LABELS.values()},
        sources={"": "every source"} | {one.sample.src_pool: one.sample.src_pool for one in listed},
        runs={"": "every run"} | {str(i): name for i, (name, *_) in enumerate(rollouts_by_run)},
        orders=(COLOURED if 0 < num_coloured < len(listed) else {}) | ORDERS,
    )


def estimates(report: Report) -> Section:
    """Return the figures and tables of the first analyses: a forest plot per family, and every estimate."""
    runs = {label_of(each): (figures_of(each, "estimates"), all_tables(each)) for each in report.drawn}
    return section(
        "Estimates",
        "The numbers behind the verdict. Their unit is the prompt: rollouts of one prompt resemble each other.",
        "figures.html",
        [figure for figures, _ in runs.values() for figure in figures],
        runs=runs,
        num_more=len(report.analyses) - len(report.drawn),
        validity=None if report.judged is None else report.judged.validity,
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
        cosine = analysis.get("cos_in", "cos_in", analysis.measured_arm)
        permuted = analysis.get("nulls", f"cos_in, {N2}")
        area = next(iter(analysis.of("auroc")), Estimate(name="auroc"))  # v_hack comes first, its rivals follow
        place = (label_of(analysis), analysis.verdict.word, analysis.measured_arm or "-", str(cosine.n))
        numbers = (shown(cosine.value, "+.3f"), p_value(cosine.p), p_value(permuted.p), shown(area.value, ".2f"))
        rows.append((*place, *numbers))
    header = ("run", "verdict", "arm", "prompts", "cos_in", "flip p", "N2 p", "AUROC")
    title = "The arm that stands for vanilla in each run"
    return TextTable(name="overview", title=title, header=header, rows=rows, left=3)


def _outcomes(verdicts: Sequence[Verdict]) -> TextTable:
    rows = []
    for verdict in verdicts:
        about = verdict.about
        rates = ["-" if rate is None else f"{rate:.0%}" for rate in (about["hack"], about["solve"])]
        seeds = str(len(about["seeds"]))
        rows.append((about["name"], verdict.word, *rates, *effect_and_price(verdict), seeds, verdict.sentence))
    header = ("treatment", "verdict", "hack", "solve", "hacks less, points", "solving lost, points", "seeds", "why")
    return TextTable(name="outcomes", title="Verdict on every treatment", header=header, rows=rows, left=2)
