"""Write a report: the HTML page, and its figures as files. Torch-free.

`contents` decides the sections of the page and their order.
"""

from collections import Counter
from pathlib import Path

from probe.records.run import Run
from probe.report.analyses import Report
from probe.report.drawing import Format
from probe.report.evidence import evidence, load_rollouts
from probe.report.facts import plural
from probe.report.page import Section, page
from probe.report.provenance import provenance
from probe.report.sections import arm_verdicts, compared, estimates, rollouts, training, verdict
from probe.settings.arms import ARMS
from replay_pools.base.files import write_atomic


def write_report(report: Report, out_dir: Path, figures: Format = "svg") -> tuple[Path, list[Path]]:
    """Write `out_dir`/reports/NAME.html, and its figures into `out_dir`/reports/NAME/; return both.

    Raises:
        InputError: token files do not match the manifest.
    """
    sections = contents(report)
    html, folder = out_dir / "reports" / f"{report.name}.html", out_dir / "reports" / report.name
    drawings = [figure.save(folder, figures) for section in sections for figure in section.figures]
    write_atomic(html, page(report.name, summary(report), sections).encode())
    return html, drawings


def contents(report: Report) -> list[Section]:
    """Return the sections of the report in reading order.

    Raises:
        InputError: token files do not match the manifest.
    """
    # All conditions of a run share its rollouts, so one analysis per run is enough.
    firsts = {analysis.given.path: analysis for analysis in reversed(report.drawn)}
    loaded = [load_rollouts(firsts[path]) for path in dict.fromkeys(analysis.given.path for analysis in report.drawn)]
    arms = arm_verdicts(report)
    trained = training(report, arms)
    # In a training, the curves are the evidence.
    pushes = evidence(loaded[0][1]) if len(report.analyses) == 1 and trained is None else None
    first = [verdict(report, arms, pushes), *([] if trained is None else [trained]), *compared(report)]
    return [*first, rollouts(loaded), estimates(report), provenance(report)]


def summary(report: Report) -> str:
    """Return the two sentences under the title: what was run, and along which direction."""
    runs = report.runs
    verbs = Counter(run.settings.verb for run in runs)
    arms = list(dict.fromkeys(step.arm for run in runs for step in run.steps))
    models = list(dict.fromkeys(_policy(run) for run in runs))
    pools = list(dict.fromkeys(pool["name"] for run in runs for pool in run.config.get("pools", ())))
    # A step has one record per arm and condition but counts once.
    num_steps = len({(run.path, step.step) for run in runs for step in run.steps})
    counts = ", ".join(plural(count, f"{verb} run") for verb, count in verbs.items())
    of = f" of pools {', '.join(pools)}" if len(pools) > 1 else f" of pool {pools[0]}" if pools else ""
    what = f"{counts}: {plural(num_steps, 'step')}{of} at the weights of {', '.join(models)}, arms {', '.join(arms)}."
    directions = list(dict.fromkeys(_direction(run, arms) for run in runs))
    return f"{what} {directions[0]}" if len(directions) == 1 else what


def _policy(run: Run) -> str:
    model, adapter = run.config.get("model"), run.settings.model.adapter
    return f"{model} + {adapter}" if adapter else str(model)


def _direction(run: Run, arms: list[str]) -> str:
    """Describe v_hack: pairs, rank and basis."""
    extraction, v_hack = run.settings.intervention.extraction, run.settings.intervention.v_hack
    if v_hack:
        return f"Direction: v_hack of {v_hack}."
    bases = list(dict.fromkeys(ARMS[arm].basis for arm in arms if arm in ARMS))
    return f"Direction: v_hack from {extraction.pairs} pairs, k = {extraction.k}, {' and '.join(bases)} basis."
