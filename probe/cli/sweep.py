"""probe sweep: run what a spec asks for."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import echo, echo_json, json_option, out_option
from probe.cli._progress import on_terminal, say
from probe.records.root import elsewhere
from replay_pools.errors import InputError, refuse
from replay_pools.visible import visible

if TYPE_CHECKING:  # numpy, scipy and rich: a help text needs none of them
    from rich.table import Table

    from probe.experiments.sweep.blocks import JobState, SweepState
    from probe.experiments.sweep.launch import Launcher

STYLES = {"running": "bold", "done": "green", "failed": "red", "waiting": "dim"}


@click.command()
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Write the settings of the commands and print them; run nothing.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Runs at a time.")
@click.option("--retries", default=1, show_default=True, type=click.IntRange(0), help="Of a run that crashed.")
@click.option("--cluster", type=click.Choice(["slurm", "local"]), help="Submit with submitit (extra `slurm`).")
@click.option("--cluster-option", "settings", multiple=True, metavar="KEY=VALUE", help="For submitit; repeatable.")
@out_option
@json_option
@click.pass_context
def sweep(
    ctx: click.Context,
    spec_file: Path,
    dry_run: bool,
    workers: int,
    retries: int,
    cluster: str | None,
    settings: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Run conditions x arms x seeds of SPEC (spec/NAME.toml), seed by seed, as its stop rules allow.

    A sweep that was killed continues; a run that crashed is retried and stays in the table. Exit code 1 when a run
    failed for good. Example:

      probe sweep spec/phase2.toml --workers 2
    """
    from probe.experiments.judge.sweep_metrics import block_value
    from probe.experiments.judge.verdict import primary_verdict
    from probe.experiments.planning.checks import environment_faults, input_faults, open_spec
    from probe.experiments.spec.jobs import block, pool_jobs, sweep_folder, write_settings
    from probe.experiments.spec.vacuity import vacuous_parts
    from probe.experiments.sweep.blocks import sweep as run_sweep

    spec = open_spec(spec_file, out)
    refuse(input_faults(spec, out))
    if dry_run:
        jobs = [*pool_jobs(spec, out), *(job for seed in spec.seeds for job in block(spec, seed, out))]
        write_settings(jobs)
        if as_json:
            echo_json([{"done": job.complete, "args": list(job.args)} for job in jobs])
            return
        for job in jobs:
            echo(f"{'# done: ' if job.complete else ''}probe {shlex.join(job.args)}")
        return
    # Commands can be read without the problems, which may be elsewhere.
    refuse(environment_faults(spec))
    launcher = _launcher(workers, cluster, settings, sweep_folder(spec, out))
    try:
        with _shown() as show:
            table = run_sweep(
                spec,
                out,
                launch=launcher,
                workers=workers,
                retries=retries,
                block_value=lambda spec, seed: block_value(spec, seed, out),
                primary_verdict=lambda spec: primary_verdict(spec, out),
                vacuous={part.where: part.why for part in vacuous_parts(spec, out)},
                show=show,
            )
    finally:
        launcher.stop()
    if as_json:
        echo_json({"spec": table.spec, "stopped": table.stopped, "runs": [_cells(row) for row in table.rows]})
    else:
        _print(table, spec_file, out)
    ctx.exit(1 if table.failed else 0)


def _launcher(workers: int, cluster: str | None, settings: tuple[str, ...], folder: Path) -> "Launcher":
    from probe.experiments.sweep.launch import Processes, Submitit

    if cluster is None:
        if settings:
            raise InputError("--cluster-option", expected="--cluster beside it", found="none")
        return Processes(workers)
    return Submitit(cluster, folder / "submitit", dict(_setting(text) for text in settings))  # type: ignore[arg-type]


def _setting(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError("--cluster-option", expected="KEY=VALUE", found=repr(text))
    return key, int(value) if value.isdecimal() else value


def _cells(row: "JobState") -> dict[str, Any]:
    """One line of the table."""
    job = row.job
    steps = len(list(job.directory.glob("step_*.gz")))
    return {
        "run": job.name,
        "status": row.status,
        "steps": steps,
        "attempts": row.attempts,
        "seconds": round(row.seconds, 1),
        "error": row.error,
    }


@contextmanager
def _shown() -> "Iterator[Callable[[SweepState], None]]":
    """On a terminal the whole table, redrawn in place; elsewhere a line for every change."""
    if not on_terminal():
        yield _plain()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield lambda table: live.update(_grid(table), refresh=True)


def _grid(table: "SweepState") -> "Table":
    from rich.table import Table
    from rich.text import Text

    rows = [_cells(row) for row in table.rows]
    grid = Table(*rows[0], box=None)
    for cells in rows:
        grid.add_row(*(Text(visible(str(cell), kept="")) for cell in cells.values()), style=STYLES.get(cells["status"]))
    return grid


def _plain() -> "Callable[[SweepState], None]":
    """A line whenever a run changes its status or is tried again."""
    shown: dict[str, tuple[str, int]] = {}

    def show(table: "SweepState") -> None:
        for row in table.rows:
            now = (row.status, row.attempts)
            if now != shown.get(row.job.name) and row.status != "waiting":
                shown[row.job.name] = now
                say(_line(row))

    return show


def _line(row: "JobState") -> str:
    cells = _cells(row)
    error = f"  {cells['error']}" if cells["error"] else ""
    return (
        f"{cells['status']:<8} {cells['run']}  {cells['steps']} steps, attempts {cells['attempts']}, "
        f"{cells['seconds']} s{error}"
    )


def _print(table: "SweepState", spec_file: Path, out: Path) -> None:
    from probe.cli._frame import echo_table

    rows = [_cells(row) for row in table.rows]
    echo_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    for look in table.looks:
        p = "-" if look.p is None else f"{look.p:.3g}"
        echo(f"look at {look.num_blocks} of {look.planned} blocks: p {p}, separates below {look.level:.3g}")
    if table.stopped:
        echo(f"stopped: {table.stopped}")
    echo(f"logs in {out / 'sweeps' / table.spec.partition('@')[0] / 'logs'}")
    echo(f"next: probe analyze {shlex.quote(str(spec_file))}{elsewhere(out)}")
