"""probe experiments: the table of all specs with status, decision and date."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli._analysis_options import one_blas_thread
from probe.cli._frame import echo, echo_json, json_option, out_option

if TYPE_CHECKING:
    from probe.experiments.register import Entry

DATE_LENGTH = len("2026-11-22")


@click.command()
@click.argument("specs", metavar="[FOLDER]", type=click.Path(path_type=Path), default=Path("spec"))
@click.option("--full", is_flag=True, help="Question, reported results and follow-up, too.")
@out_option
@json_option
def experiments(specs: Path, full: bool, out: Path, as_json: bool) -> None:
    """Status (planned, running, completed, failed, invalidated), decision and date of every spec in FOLDER (spec/).

    A decision is the one that `probe analyze SPEC --write` wrote into NAME.md on the spec as it is now. Faults that
    were mended since stand in FOLDER/invalidations/; runs that they concern are named. Example:

      probe experiments --full
    """
    one_blas_thread()
    from probe.analysis.formatting import TextTable, render_table  # numpy comes with these
    from probe.experiments.register import register

    entries = register(specs, out)
    if as_json:
        echo_json([asdict(entry) for entry in entries])
        return
    rows = []
    for entry in entries:
        rows.append((entry.name, entry.status, _decision(entry), f"{entry.done}/{entry.runs}", _date(entry)))
    header = ("experiment", "status", "decision", "runs", "last start")
    echo(render_table(TextTable(name="experiments", title="", header=header, rows=rows, left=3)))
    for entry in entries:
        if full:
            _print_details(entry)
        _print_concerned(entry)


def _date(entry: "Entry") -> str:
    return "-" if entry.date is None else entry.date[:DATE_LENGTH]


def _decision(entry: "Entry") -> str:
    if entry.decision is not None:
        return entry.decision
    return "-" if entry.earlier is None else f"(of an earlier version: {entry.earlier})"


def _print_details(entry: "Entry") -> None:
    echo(f"\n{entry.name}: {entry.question}")
    for criterion, (reported, here) in entry.compared.items():
        echo(f"  {criterion}: {here or 'not yet'}; reported: {reported}")
    if entry.follow_up:
        echo(f"  then: {entry.follow_up}")


def _print_concerned(entry: "Entry") -> None:
    for concerned in entry.concerned:
        if concerned.runs:
            echo(f"INVALIDATED by {concerned.invalidation}: {', '.join(concerned.runs)}: {concerned.reason}")
        if concerned.unknown:
            num = len(concerned.unknown)
            echo(f"{entry.name}: {num} runs do not say which code made them; {concerned.invalidation} may concern them")
