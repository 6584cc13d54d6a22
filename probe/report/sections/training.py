"""Hack and solve curves of runs that train."""

from probe.analysis.text import Table
from probe.report.figures.learning import METRICS, Curve, learning
from probe.report.sections.parts import Section, folded, panels, present, prose
from probe.report.views import Report, trained

LEAD = (
    "Rates on held-out problems, with the hint, while the policy trains: a thin line a seed, a thick one the mean "
    "of an arm's seeds; a single seed has its Wilson 95% intervals, which know nothing of the variation between "
    "seeds."
)


def training(report: Report) -> Section:
    """Curves by arm; the unit of every comparison is the seed."""
    found = trained(report.runs)
    curves = [Curve(arm=arm, seed=seed, rows=rows) for _, arm, seed, rows in found]
    figures = present(*(learning(metric, curves) for metric in METRICS))
    rows = [
        (
            *(run.path.name, arm, str(seed), str(row["step"]), str(row["rates"]["all"]["num_rollouts"])),
            *(_cell(row["rates"]["all"][metric]) for metric in METRICS),
        )
        for run, arm, seed, evaluations in found
        for row in evaluations
    ]
    header = ("run", "arm", "seed", "steps", "rollouts", *METRICS)
    table = Table(name="evaluations", title="Evaluations (rate [Wilson 95%])", header=header, rows=rows, left=2)
    empty = "Nothing was trained in these runs: curves come from probe train."
    body = [*panels(figures), *folded([table])] if figures else [prose(empty, class_="empty")]
    tables = {"": [table]} if rows else {}
    return Section(id="training", title="Training", lead=LEAD, body=body, figures=figures, tables=tables)


def _cell(rate: dict) -> str:
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"
