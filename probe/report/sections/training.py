"""Hack and solve curves of runs that train."""

from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.formatting import TextTable
from probe.analysis.verdict.run_level import shared_settings
from probe.report.figures.learning import METRICS, Curve, learning
from probe.report.sections.parts import Section, folded, panels, present, prose
from probe.report.views import Report, trained
from replay_pools.nested import flat

LEAD = (
    "Rates on held-out problems, with the hint, while the policy trains: a thin line a seed, a thick one the mean "
    "of an arm's seeds; a single seed has its Wilson 95% intervals, which know nothing of the variation between "
    "seeds. Runs of one arm under other settings than its first are named after the first setting that differs."
)


def training(report: Report) -> Section:
    """Curves by arm; the unit of every comparison is the seed."""
    found = trained(report.runs)
    names = group_names([(arm, run.config) for run, arm, _, _ in found])
    curves = [Curve(arm=name, seed=seed, rows=rows) for (_, _, seed, rows), name in zip(found, names, strict=True)]
    figures = present(*(learning(metric, curves) for metric in METRICS))
    rows = [
        (
            *(run.path.name, arm, name, str(seed), str(row["step"]), str(row["rates"]["all"]["num_rollouts"])),
            *(_cell(row["rates"]["all"][metric]) for metric in METRICS),
        )
        for (run, arm, seed, evaluations), name in zip(found, names, strict=True)
        for row in evaluations
    ]
    header = ("run", "arm", "curve", "seed", "steps", "rollouts", *METRICS)
    table = TextTable(name="evaluations", title="Evaluations (rate [Wilson 95%])", header=header, rows=rows, left=3)
    empty = "Nothing was trained in these runs: curves come from probe train."
    body = [*panels(figures), *folded([table])] if figures else [prose(empty, class_="empty")]
    tables = {"": [table]} if rows else {}
    return Section(id="training", title="Training", lead=LEAD, body=body, figures=figures, tables=tables)


def group_names(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A name for each (arm, config.json), the same for runs that differ in their seed alone.

    It is the arm; where runs of one arm have other settings than its first one, it is the first of those settings.
    """
    firsts: dict[str, dict[str, Any]] = {}
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    found = []
    for arm, config in runs:
        own = flat(shared_settings(config))
        first = firsts.setdefault(arm, own)
        changed = [key for key in sorted(own.keys() | first.keys()) if own.get(key) != first.get(key)]
        name = f"{changed[0].rpartition('.')[2]} {own.get(changed[0])}" if changed else arm
        if names.setdefault(name, (arm, own)) != (arm, own):
            name = f"{arm}: {', '.join(key.rpartition('.')[2] for key in changed)}"
        found.append(name)
    return found


def _cell(rate: dict) -> str:
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"
