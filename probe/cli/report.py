"""probe report: write runs, or the runs of a spec, as one self-contained HTML file, or their records as tables."""

import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from probe.cli._frame import echo, echo_json, echo_table, name_option
from probe.cli._settings import verb
from probe.cli.analyze import analyses_of, analysis_options, joined_name, spec_among
from probe.records.run import elsewhere, read_run, resolve_run
from probe.records.tables import TableName, frame_of
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

# Report modules import numpy and scipy, so functions import them late and help texts stay fast.
if TYPE_CHECKING:
    from probe.report.drawing import Format
    from probe.report.inputs import Report


@verb()
@name_option("report", "the name of the spec, or of the runs", default=None)
@click.option(
    "--figures",
    type=click.Choice(["svg", "pdf", "png"]),
    default="svg",
    show_default=True,
    help="Format of the figure files.",
)
@click.option(
    "--tables",
    type=click.Choice(["parquet", "csv"]),
    help="Instead of a page, write samples, steps and evaluations of each RUN to OUT/exports/RUN.",
)
@analysis_options
def report(
    runs: tuple[Path, ...],
    name: str | None,
    figures: "Format",
    tables: str | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Write verdict, figures, rollouts and provenance of each RUN (a directory, or a name in OUT/runs), or of the
    runs of SPEC (spec/NAME.toml), to OUT/reports/NAME.html. The page is one self-contained file; its figures and tables
    (Markdown, JSON) are also in NAME/.

    Tokens are coloured by their share of the cosine if the run recorded it (--set token_attribution=N). Several runs
    are compared; trainings are grouped by arm, one line a seed. No model is loaded.

    Examples:

      probe report out/runs/demo

      probe report out/runs/vanilla-0 out/runs/projected-0 --name first-seeds

      probe report spec/experiments/phase2.toml

      probe report out/runs/demo --tables parquet
    """
    if tables is not None:
        _write_tables([resolve_run(run, out) for run in runs], tables, out, as_json)
        return
    from probe.report.build import write_report
    from probe.report.inputs import label_of

    settings = {"seed": seed}
    spec_file = spec_among(runs)
    command = report_command(runs, name, out, settings)
    if spec_file:
        contents = _of_spec(spec_file, name, out, settings, command)
    else:
        contents = report_of_runs([resolve_run(run, out) for run in runs], name, settings, command)
    page, drawings, written = write_report(contents, out, figures)
    verdicts = {label_of(analysis): analysis.verdict.word for analysis in contents.analyses}
    if as_json:
        files = {"figures": [*map(str, drawings)], "tables": [*map(str, written)]}
        echo_json({"html": str(page), **files, "verdicts": verdicts})
        return
    if len(contents.analyses) == 1:
        from probe.analysis.text_report import format_verdict

        echo(format_verdict(contents.analyses[0]).rstrip())
    else:
        for label, word in verdicts.items():
            echo(f"{label}: {word}")
    size = page.stat().st_size / 1024
    parts = f"{len(drawings)} figures, tables in {written[0].parent}"
    given = f"{shlex.join(map(str, runs))}{elsewhere(out)}"
    echo(f"report {page} ({size:.0f} KiB); {parts}; in words: probe analyze {given}")


def _write_tables(runs: Sequence[Path], kind: str, out: Path, as_json: bool) -> None:
    """Write the records of runs with the columns of spec/SCHEMA.md."""
    rows = []
    for run in runs:
        stored = read_run(run)
        for name in get_args(TableName):
            table = stored.table(name)
            # A replay has no evaluations, and so no such file.
            if not table[1]:
                continue
            # Written to memory first, for `write_atomic`.
            content = io.BytesIO()
            frame = frame_of(table)
            write = frame.write_parquet if kind == "parquet" else frame.write_csv
            write(content)
            path = out / "exports" / run.resolve().name / f"{name}.{kind}"
            write_atomic(path, content.getvalue())
            rows.append({"run": str(run), "path": str(path), "rows": len(table[1]), "columns": len(table[0])})
    if as_json:
        echo_json({"files": rows})
    else:
        echo_table(("file", "rows", "columns"), [(row["path"], row["rows"], row["columns"]) for row in rows])


def report_of_runs(paths: Sequence[Path], name: str | None, settings: dict[str, Any], command: str) -> "Report":
    """Make a report of the given runs."""
    from probe.report.inputs import Report, slug

    # The report names the files of a run by its slug.
    if len({slug(path.resolve().name) for path in paths}) < len(paths):
        given = " ".join(map(str, paths))
        raise InputError("RUN...", expected="runs with distinct names", found=given, fix="rename a directory")
    runs = [read_run(path) for path in paths]
    return Report(name=name or joined_name(runs), analyses=analyses_of(runs, settings), command=command)


def _of_spec(spec_file: Path, name: str | None, out: Path, settings: dict[str, Any], command: str) -> "Report":
    """Make a report of a spec: the verdict on its complete runs, and an analysis of each run."""
    from probe.experiments.load import load_spec
    from probe.experiments.verdict import analyse_runs, judge
    from probe.report.inputs import Report

    spec = load_spec(spec_file)
    analyses = analyse_runs(spec, out, **settings)
    return Report(
        name=name or spec.name,
        analyses=[*analyses.values()],
        command=command,
        spec=spec,
        evaluation=judge(spec, out, analyses),
    )


def report_command(runs: tuple[Path, ...], name: str | None, out: Path, settings: dict[str, Any]) -> str:
    """Return the command that writes the same report, to print in the report."""
    parts = ["probe", "report", *map(str, runs), *(["--name", name] if name else []), "--out", str(out)]
    return shlex.join([*parts, "--seed", str(settings["seed"])])
