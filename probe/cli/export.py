"""probe export: write the tables of a run (samples, steps, evaluations) as Parquet or CSV files."""

import io
from pathlib import Path
from typing import get_args

import click

from probe.cli._frame import echo_json, echo_table, json_option, out_option
from probe.cli.completion import one_run
from probe.records.frames import TableName
from probe.records.run import read_run, resolve_run
from replay_pools.storage.files import write_atomic


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path), shell_complete=one_run)
@click.option("--format", "kind", default="parquet", show_default=True, type=click.Choice(("parquet", "csv")))
@out_option
@json_option
def export(run: Path, kind: str, out: Path, as_json: bool) -> None:
    """Write samples, steps and evaluations of RUN (a directory, or a name in OUT/runs) to out/exports/NAME/, with the
    columns of spec/SCHEMA.md.

    Example:  probe export out/runs/replay --format parquet
    """
    run = resolve_run(run, out)
    stored = read_run(run)
    directory = out / "exports" / run.resolve().name
    rows = []
    for name in get_args(TableName):
        frame = stored.to_polars(name)
        # A replay has no evaluations: no file, rather than one without rows.
        if not len(frame):
            continue
        # polars writes into memory, so that `write_atomic` can put the whole file in place at once.
        file = io.BytesIO()
        if kind == "parquet":
            frame.write_parquet(file)
        else:
            frame.write_csv(file)
        write_atomic(directory / f"{name}.{kind}", file.getvalue())
        rows.append({"path": str(directory / f"{name}.{kind}"), "rows": len(frame), "columns": frame.width})
    if as_json:
        echo_json({"run": str(run), "files": rows})
    else:
        echo_table(("file", "rows", "columns"), [list(row.values()) for row in rows])
