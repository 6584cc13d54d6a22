"""write_report: the page, its figures as files, its tables as Markdown and JSON. No torch here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from probe.analysis.formatting import TextTable
from probe.report.markup import node, to_html, to_svg
from probe.report.page import page, resource
from probe.report.panel import plural
from probe.report.rollouts import load_rollouts
from probe.report.sections.evidence import advantage_cells, distributions, modules, trajectories, trivia
from probe.report.sections.parts import Section
from probe.report.sections.power import power
from probe.report.sections.provenance import provenance
from probe.report.sections.rollouts import rollouts
from probe.report.sections.training import training
from probe.report.sections.verdict import verdict
from probe.report.views import Report, View
from replay_pools.files import write_atomic, write_json

LARGEST = 1_900_000  # bytes of the sections; rollouts get what the others leave
LEAST_ROLLOUTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report consists of."""

    html: Path
    figures: list[Path]
    tables: list[Path]


def write_report(report: Report, out_dir: Path) -> Written:
    """`out_dir`/reports/NAME.html, and in NAME/ beside it the figures and `tables.md`, `tables.json`.

    Raises:
        InputError: token files that are not those of the manifest.
    """
    sections = build(report)
    html, folder = out_dir / "reports" / f"{report.name}.html", out_dir / "reports" / report.name
    style = resource("figures.css")
    figures = {folder / f"{own.name}.svg": to_svg(own.svg, style) for s in sections for own in s.figures}
    for path, text in figures.items():
        write_atomic(path, text.encode())
    tables = [
        (section.title, view, table) for section in sections for view, own in section.tables.items() for table in own
    ]
    write_json(folder / "tables.json", [{"section": s, "of": view, **asdict(table)} for s, view, table in tables])
    write_atomic(folder / "tables.md", "\n".join(_markdown(*row) for row in tables).encode())
    write_atomic(html, page(report.name, _summary(report), sections).encode())
    return Written(html=html, figures=list(figures), tables=[folder / "tables.md", folder / "tables.json"])


def build(report: Report) -> list[Section]:
    """The sections in the order of reading; rollouts are chosen last, by the room that the others leave."""
    found = [load_rollouts(view) for view in _first_views(report)]
    fixed = [
        verdict(report),
        trajectories(report),
        distributions(report),
        modules(report),
        advantage_cells(report),
        training(report),
        power(report),
        provenance(report),
    ]
    links = {
        (own.run.path, one.sample.step, one.sample.sample_id): f"#{one.anchor}" for own in found for one in own.shown
    }
    used = _size([*fixed, trivia(report, links)])
    shown, anchors = rollouts(found, max(LEAST_ROLLOUTS, LARGEST - used))
    kept = {key: link for key, link in links.items() if link[1:] in anchors}
    return [*fixed[:5], trivia(report, kept), shown, *fixed[5:]]


def _size(sections: Sequence[Section]) -> int:
    """Bytes of the sections in the page."""
    return len(to_html(node("main", *(element for section in sections for element in section.body))).encode())


def _first_views(report: Report) -> list[View]:
    """One view a run that is drawn: its first condition."""
    return list({view.run.path: view for view in reversed(report.drawn)}.values())[::-1]


def _summary(report: Report) -> str:
    """What the report is about, in a line."""
    runs = report.runs
    verbs = Counter(str(run.config.get("verb")) for run in runs)
    arms = list(dict.fromkeys(step.arm for run in runs for step in run.steps))
    models = list(dict.fromkeys(str(run.config.get("model")) for run in runs))
    steps = len({(run.path, step.step) for run in runs for step in run.steps})
    counted = ", ".join(plural(count, f"{verb} run") for verb, count in verbs.items())
    return f"{counted} of {', '.join(models)}: {plural(steps, 'step')}, {', '.join(arms)}."


def _markdown(section: str, view: str, table: TextTable) -> str:
    """One table under its headings."""
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([f"## {section}{f' ({view})' if view else ''}", "", table.title, "", *lines, ""])
