"""Write a report: the HTML page, its figures as files, its tables as Markdown and JSON. Torch-free.

`contents` decides the sections of the page and their order.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from probe.analysis.formatting import TextTable
from probe.report.drawing import Format
from probe.report.facts import plural
from probe.report.inputs import Report
from probe.report.page import Section, page
from probe.report.provenance import provenance
from probe.report.rollouts import evidence, load_rollouts
from probe.report.sections import measured, rollouts, times, training
from probe.report.verdicts import RESTS_ON, arm_verdicts, compared, measures, verdict
from replay_pools.base.files import write_atomic, write_json
from replay_pools.base.terminal import visible

MAX_BYTES = 1_800_000  # total of all sections except the first, so that the page stays below 2 MB
MIN_ROLLOUT_BYTES = 100_000  # reserved for rollouts, however large the other sections are


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Paths of the files that `write_report` wrote."""

    html: Path
    figures: list[Path]
    tables: list[Path]


def write_report(report: Report, out_dir: Path, figures: Format = "svg") -> Written:
    """Write `out_dir`/reports/NAME.html, and the figures, `tables.md` and `tables.json` into `out_dir`/reports/NAME/.

    Raises:
        InputError: token files do not match the manifest.
    """
    sections = contents(report)
    html, folder = out_dir / "reports" / f"{report.name}.html", out_dir / "reports" / report.name
    drawings = [figure.save(folder, figures) for section in sections for figure in section.figures]
    tables = [
        (section.title, label, table)
        for section in sections
        for label, of_view in section.tables.items()
        for table in of_view
    ]
    write_json(folder / "tables.json", [{"section": title, "of": of, **asdict(table)} for title, of, table in tables])
    write_atomic(folder / "tables.md", "\n".join(_markdown(*table) for table in tables).encode())
    write_atomic(html, page(report.name, _summary(report), sections).encode())
    return Written(html=html, figures=drawings, tables=[folder / "tables.md", folder / "tables.json"])


def contents(report: Report) -> list[Section]:
    """Return the sections of the report in reading order.

    Raises:
        InputError: token files do not match the manifest.
    """
    # All conditions of a run share its rollouts, so one analysis per run is enough.
    firsts = {analysis.given.path: analysis for analysis in reversed(report.drawn)}
    loaded = [load_rollouts(firsts[path]) for path in dict.fromkeys(analysis.given.path for analysis in report.drawn)]
    trained = training(report, arm_verdicts(report))
    measures_of_run = measures(report)
    before = [*([] if trained is None else [trained]), *compared(report)]
    after = [] if measures_of_run is None else [measures_of_run]
    after += [*measured(report), *filter(None, [times(report)]), provenance(report)]
    # Rollouts get the bytes that the other sections leave.
    used = sum(len(section.html.encode()) for section in (*before, *after))
    viewer, anchors = rollouts(loaded, max(MIN_ROLLOUT_BYTES, MAX_BYTES - used))
    # In a training, the curves are the evidence.
    pushes = evidence(loaded[0], anchors) if len(report.analyses) == 1 and trained is None else None
    sections = [verdict(report, pushes), *before, viewer, *after]
    asked = [] if report.judged is None else report.judged.verdict.asked
    return [replace(one, behind=[row for row in asked if RESTS_ON[row.name] == one.id]) for one in sections]


def _summary(report: Report) -> str:
    """Return the line under the title: `2 replay runs of organism: 20 steps, vanilla, projected.`"""
    runs = report.runs
    verbs = Counter(str(run.verb) for run in runs)
    arms = list(dict.fromkeys(step.arm for run in runs for step in run.steps))
    models = list(dict.fromkeys(str(run.config.get("model")) for run in runs))
    # A step has one record per arm and condition but counts once.
    num_steps = len({(run.path, step.step) for run in runs for step in run.steps})
    counts = ", ".join(plural(count, f"{verb} run") for verb, count in verbs.items())
    return f"{counts} of {', '.join(models)}: {plural(num_steps, 'step')}, {', '.join(arms)}."


def _markdown(section_title: str, label: str, table: TextTable) -> str:
    """Format one table under its headings. Invisible characters are escaped, because names in logs may contain any."""
    heading = f"## {section_title} ({label})" if label else f"## {section_title}"
    lines = []
    for row in (table.header, ["---"] * len(table.header), *table.rows):
        cells = [visible(cell.replace("|", "\\|").replace("\n", " "), kept="") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([visible(heading, kept=""), "", visible(table.title, kept=""), "", *lines, ""])
