"""probe sweep: run what a spec asks for."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, out_option
from probe.cli._progress import say
from probe.records.root import elsewhere
from replay_pools.errors import InputError, refuse

if TYPE_CHECKING:  # a help text needs neither numpy nor submitit
    from probe.experiments.sweep import SweepState


@click.command()
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--print-jobs", is_flag=True, help="Print a shell command for each job that is not done; run nothing.")
@click.option("--jobs", "num_jobs", default=1, show_default=True, type=click.IntRange(1), help="Runs at a time.")
@click.option("--cluster", type=click.Choice(["local", "slurm"]), default="local", show_default=True)
@click.option("--cluster-option", "options", multiple=True, metavar="KEY=VALUE", help="For submitit; repeatable.")
@out_option
@json_option
@click.pass_context
def sweep(
    ctx: click.Context,
    spec_file: Path,
    print_jobs: bool,
    num_jobs: int,
    cluster: str,
    options: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Run conditions x arms x seeds of SPEC (spec/NAME.toml), what its ceiling allows, through submitit.

    A sweep that was killed continues. A run that failed is reported with its log, and the others go on; exit code 1
    says so. Example:

      probe sweep spec/phase2.toml --jobs 2
    """
    from probe.experiments.jobs import input_faults, pool_jobs, run_jobs, sweep_folder, write_settings
    from probe.experiments.judge.verdict import primary_verdict
    from probe.experiments.load import load_spec

    spec = load_spec(spec_file)
    if print_jobs:
        jobs = [job for job in (*pool_jobs(spec, out), *run_jobs(spec, out)) if not job.complete]
        write_settings(jobs)
        for job in jobs:
            echo(f"probe {shlex.join(job.args)}")
        return
    refuse(input_faults(spec, out))
    from probe.experiments.sweep import executor
    from probe.experiments.sweep import sweep as run_sweep

    table = run_sweep(
        spec,
        out,
        engine=executor(cluster, sweep_folder(spec, out) / "logs", dict(map(_setting, options)), num_jobs),  # type: ignore[arg-type]
        num_jobs=num_jobs,
        primary_verdict=lambda spec: primary_verdict(spec, out),
        show=_shown(),
    )
    rows = [{"run": row.job.name, "status": row.status, "error": row.error, "log": row.log} for row in table.rows]
    if as_json:
        echo_json({"spec": table.spec, "stopped": table.stopped, "runs": rows})
    else:
        echo_table(("run", "status", "error"), [(row["run"], row["status"], row["error"]) for row in rows])
        if table.stopped:
            echo(f"stopped: {table.stopped}")
        echo(f"next: probe analyze {shlex.quote(str(spec_file))}{elsewhere(out)}")
    ctx.exit(1 if table.failed else 0)


def _setting(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError("--cluster-option", expected="KEY=VALUE", found=repr(text))
    return key, int(value) if value.isdecimal() else value


def _shown() -> "Callable[[SweepState], None]":
    """A line whenever a job changes its status."""
    shown: dict[str, str] = {}

    def show(table: "SweepState") -> None:
        for row in table.rows:
            if row.status not in ("waiting", shown.get(row.job.name)):
                shown[row.job.name] = row.status
                error = f": {row.error} (log: {row.log})" if row.error else ""
                say(f"{row.status:<8} {row.job.name}{error}")

    return show
