"""probe report: write runs, or the runs of a spec, as one self-contained HTML file, or their records as tables."""

import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from probe.cli._frame import Table, Text, command, name_option, one_of
from probe.cli._settings import verb
from probe.cli.analyze import analyses_of, runs_argument, spec_among
from probe.records.run import default_name, read_run, resolve_run
from probe.records.schema import TableName
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

# Report modules import numpy and scipy, so functions import them late and help texts stay fast.
if TYPE_CHECKING:
    from probe.report.analyses import Report
    from probe.report.drawing import Format


@verb()
@name_option("report", "the name of the spec, or of the runs", default=None)
@one_of("--figures", ("svg", "pdf", "png"), "Format of the figure files.", default="svg")
@one_of("--tables", ("parquet", "csv"), "Instead of a page, write records of each RUN to OUT/exports/RUN.")
@runs_argument
def report(runs: tuple[Path, ...], name: str | None, figures: "Format", tables: str | None, out: Path) -> Text:
    """Write verdict, figures, rollouts and provenance of each RUN (a directory, or a name in OUT/runs), or of the
    runs of SPEC (spec/NAME.toml), to OUT/reports/NAME.html. The page is one self-contained file; its figures
    are also in NAME/.

    Tokens are coloured by their share of the cosine if the run recorded it (--set token_attribution=N). Several runs
    are compared; trainings are grouped by arm, one line a seed. No model is loaded.

    Examples:

      probe report out/runs/demo

      probe report out/runs/vanilla-0 out/runs/projected-0 --name first-seeds

      probe report spec/experiments/phase2.toml

      probe report out/runs/demo --tables parquet
    """
    if tables is not None:
        return (yield from _tables([resolve_run(run, out) for run in runs], tables, out))
    from probe.analysis.text_report import format_verdict
    from probe.report.analyses import label_of
    from probe.report.build import write_report

    contents = report_of(runs, name, out)
    page, drawings = write_report(contents, out, figures)
    verdicts = {label_of(analysis): analysis.verdict.word for analysis in contents.analyses}
    if len(contents.analyses) == 1:
        yield format_verdict(contents.analyses[0]).rstrip()
    else:
        yield from (f"{label}: {word}" for label, word in verdicts.items())
    size = page.stat().st_size / 1024
    yield f"report {page} ({size:.0f} KiB); {len(drawings)} figures beside it; in words: {command('analyze', *runs)}"
    return {"html": str(page), "figures": [*map(str, drawings)], "verdicts": verdicts}


def _tables(runs: Sequence[Path], kind: str, out: Path) -> Text:
    """Write the records of runs with the columns of spec/SCHEMA.md."""
    rows = []
    for run in runs:
        stored = read_run(run)
        for name in get_args(TableName):
            frame = stored.to_polars(name)
            # A replay has no evaluations, and so no such file.
            if frame.is_empty():
                continue
            # Written to memory first, for `write_atomic`.
            content = io.BytesIO()
            write = frame.write_parquet if kind == "parquet" else frame.write_csv
            write(content)
            path = out / "exports" / run.resolve().name / f"{name}.{kind}"
            write_atomic(path, content.getvalue())
            rows.append({"run": str(run), "path": str(path), "rows": frame.height, "columns": frame.width})
    yield Table(("file", "rows", "columns"), [[*row.values()][1:] for row in rows])
    return {"files": rows}


def report_of(runs: Sequence[Path], name: str | None, out: Path) -> "Report":
    """Make a report of runs, or of a spec: the verdict on its complete runs, and an analysis of each run.

    Without a name, it has the spec's or those of the runs.
    """
    from probe.report.analyses import Report, slug

    named = [] if name is None else ["--name", name]
    command = shlex.join(["probe", "report", *map(str, runs), *named, "--out", str(out)])
    if spec_file := spec_among(runs):
        from probe.experiments.judge import evaluate_spec
        from probe.experiments.spec_file import load_spec

        spec = load_spec(spec_file)
        evaluation = evaluate_spec(spec, out)
        analyses = [*evaluation.analyses.values()]
        return Report(name=name or spec.name, analyses=analyses, command=command, spec=spec, evaluation=evaluation)
    paths = [resolve_run(run, out) for run in runs]
    names = [path.resolve().name for path in paths]
    # The report names the files of a run by its slug.
    if len({*map(slug, names)}) < len(paths):
        given = " ".join(map(str, paths))
        raise InputError("RUN...", expected="runs with distinct names", found=given, fix="rename a directory")
    analyses = analyses_of([read_run(path) for path in paths])
    return Report(name=name or default_name("-".join(names)), analyses=analyses, command=command)
