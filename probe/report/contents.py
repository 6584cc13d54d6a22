"""What the report shows, in reading order. To change what the report shows first, edit `contents` here.

To add a section: write a function that takes a `Report` and returns a `Section` in `probe/report/sections/`, and put
its call at its place in `contents`. What the first section itself shows first is decided in `sections/verdict.py`.
"""

from collections.abc import Sequence

from probe.report.html import node, to_html
from probe.report.inputs import Report, View
from probe.report.rollouts import load_rollouts
from probe.report.sections.base import Section
from probe.report.sections.evidence import advantage_cells, distributions, modules, trajectories, trivia
from probe.report.sections.provenance import provenance
from probe.report.sections.rollouts import rollouts
from probe.report.sections.training import power, training
from probe.report.sections.verdict import verdict

MAX_SECTION_BYTES = 1_900_000  # of all sections together; with style and script the page stays below 2 MB
MIN_ROLLOUT_BYTES = 100_000  # for rollouts, however large the other sections are


def contents(report: Report) -> list[Section]:
    """The sections of the report, the first one first.

    Raises:
        InputError: token files that are not those of the manifest.
    """
    rollouts_by_run = [load_rollouts(view) for view in _first_view_of_each_run(report)]
    links = {}
    for run_rollouts in rollouts_by_run:
        for shown in run_rollouts.shown:
            links[run_rollouts.run.path, shown.sample.step, shown.sample.sample_id] = f"#{shown.anchor}"

    before_trivia = [
        verdict(report),
        trajectories(report),
        distributions(report),
        modules(report),
        advantage_cells(report),
    ]
    after_rollouts = [
        training(report),
        power(report),
        provenance(report),
    ]
    # Rollouts get the bytes that the other sections leave. The trivia section is measured with a link to every rollout
    # and then drawn again: a link to a rollout that found no room would lead nowhere.
    used = _num_bytes([*before_trivia, trivia(report, links), *after_rollouts])
    rollout_section, anchors = rollouts(rollouts_by_run, max(MIN_ROLLOUT_BYTES, MAX_SECTION_BYTES - used))
    kept_links = {key: link for key, link in links.items() if link.removeprefix("#") in anchors}
    return [*before_trivia, trivia(report, kept_links), rollout_section, *after_rollouts]


def _num_bytes(sections: Sequence[Section]) -> int:
    """The size of the sections in the page."""
    elements = [element for section in sections for element in section.body]
    return len(to_html(node("main", *elements)).encode())


def _first_view_of_each_run(report: Report) -> list[View]:
    """The first condition of every run that has figures: conditions of one run share its rollouts."""
    first_views: dict[object, View] = {}
    for view in report.drawn:
        first_views.setdefault(view.run.path, view)
    return list(first_views.values())
