"""probe spec: plan a spec (detectable effect and cost), run it, and list all specs with their outcomes."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.analysis.statistics.thresholds import ALPHA, EFFECT, POWER, SD
from probe.cli._frame import Checked, Table, Text, command, one_of, say
from probe.cli._settings import verb
from probe.records.run import read_run, resolve_run
from probe.settings.words import Word
from replay_pools.base.errors import InputError, refuse
from replay_pools.pool import CAUTION

if TYPE_CHECKING:  # numpy, scipy and submitit are too slow for a help text
    from probe.experiments.spec import Spec


@verb()
@click.argument("target", metavar="SPEC|RUN", type=click.Path(path_type=Path))
def plan(target: Path, out: Path) -> Text:
    """Print the detectable effect, hours and money of SPEC (spec/NAME.toml). Runs nothing.

    Given RUN, a replay (a directory, or a name in OUT/runs), write the training that its GO buys to
    spec/RUN-training.toml, and plan that; after another verdict too, with a caution. Hours are measured steps; the
    price of an hour stands in [budget].

    Examples:

      probe spec plan spec/experiments/phase2.toml

      probe spec plan demo
    """
    from probe.experiments.plan import make_plan
    from probe.experiments.spec_file import load_spec

    run = None if target.suffix == ".toml" else resolve_run(target, out)
    if run is not None:
        target = Path("spec") / f"{run.resolve().name}-training.toml"
        _write(run, target, out)
    spec = load_spec(target)
    spec_plan = make_plan(spec, out)
    yield from _described(spec, spec_plan)
    if run is not None:
        yield f"next: read {target}; then: {command('spec', 'sweep', target)}"
        spec_plan["written"] = str(target)
    return spec_plan


def _write(run: Path, path: Path, out: Path) -> None:
    """Write the training spec of a run."""
    from probe.analysis.analyze import analyze
    from probe.experiments.training_spec import write_training_spec

    stored = read_run(run)
    analysis = analyze(stored)
    write_training_spec(stored, analysis, path, out)
    verdict = analysis.verdict
    say(f"{verdict.word} of {run}: {path}")
    if verdict.word != Word.GO:
        say(f"{CAUTION}{verdict.plain} First: {verdict.next.in_line}")
    say(f"assumed, and yours to change in the file: an effect of {EFFECT:g}, and an sd of {SD:g} between seeds")


def _described(spec: "Spec", spec_plan: dict[str, Any]) -> Iterator[str | Table]:
    yield f"{spec.name}: {spec.experiment.question}"
    more = [f"; {len(entry.seeds)} seeds of {entry.name}" for entry in spec.conditions if entry.seeds != spec.seeds]
    yield (
        f"{spec_plan['runs']} runs: {len(spec.conditions)} conditions, arms {', '.join(spec.arms)}, "
        f"seeds {', '.join(map(str, spec.seeds))}{''.join(more)}; sha256 {spec_plan['sha256'][:12]}"
    )
    if spec_plan["effects"]:
        yield f"\nSmallest effect seen with {POWER:.0%} power at {ALPHA:.0%}, two-sided"
        rows = [(row["n"], f"{row['smallest']:.3g}", "planned" * row["planned"]) for row in spec_plan["effects"]]
        yield Table(("seeds", "effect", ""), rows)
    yield ""
    for part in spec_plan["vacuous"]:
        yield f"  VACUOUS  {part['where']}: {part['why']}"
    for note in spec_plan["notes"]:
        yield f"note: {note}"
    for price in spec_plan["prices"]:
        is_known, currency = price["money"] is not None, price["currency"]
        money = f"{price['money']:.2f} {currency}" if is_known else "no price_per_hour in [budget]"
        yield f"\nCOST of {price['what']}: {price['runs']} runs, {price['hours']:.2f} hours, {money}"
        yield f"  {price['source']}"


def _assigned(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError("--cluster-option", expected="KEY=VALUE", found=repr(text))
    return key, int(value) if value.isdecimal() else value


@verb()
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--print-jobs", is_flag=True, help="Print a shell command for each job that is not done; run nothing.")
@click.option("--jobs", "num_jobs", default=1, show_default=True, type=click.IntRange(1), help="Run so many at a time.")
@click.option(
    "--launch",
    default="{command}",
    show_default=True,
    metavar="TEMPLATE",
    help="Start a run by this: 'torchrun --standalone --nproc-per-node 4 --no-python {command}'.",
)
@one_of("--cluster", ("local", "slurm"), "Run the jobs here.", default="local")
@click.option(
    "--cluster-option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _ctx, _option, texts: dict(map(_assigned, texts)),
    help="Pass this to submitit; repeatable.",
)
def sweep(
    spec_file: Path, print_jobs: bool, num_jobs: int, launch: str, cluster: str, options: dict[str, Any], out: Path
) -> Text:
    """Run conditions x arms x seeds of SPEC (spec/NAME.toml), as far as its ceiling allows, through submitit.

    The GPUs of this machine are dealt out among the jobs. A sweep that was killed continues. A run that failed is
    reported with its log, and the others go on; exit code 1 says so. Example:

      probe spec sweep spec/experiments/phase2.toml --jobs 2
    """
    from probe.experiments.jobs import command_of, input_faults, pool_jobs, run_jobs, sweep_folder
    from probe.experiments.spec_file import load_spec

    spec = load_spec(spec_file)
    if print_jobs:
        jobs = [job for job in (*pool_jobs(spec, out), *run_jobs(spec, out)) if not job.complete]
        for job in jobs:
            job.write_settings()
        commands = [shlex.join(command_of(job, launch, ("probe",))) for job in jobs]
        yield from commands
        return commands
    refuse(input_faults(spec, out))
    from probe.experiments.sweep import executor, has_failed, visible_gpus
    from probe.experiments.sweep import sweep as run_sweep

    def show(row: dict[str, str]) -> None:
        error = f": {row['error']} (log: {row['log']})" if row["error"] else ""
        say(f"{row['status']:<8} {row['name']}{error}")

    table = run_sweep(
        spec,
        out,
        engine=executor(cluster, sweep_folder(spec, out) / "logs", options, num_jobs),
        num_jobs=num_jobs,
        launch=launch,
        gpus=visible_gpus() if cluster == "local" else (),
        show=show,
    )
    if spec.trains:
        from probe.experiments.outcomes import write_outcomes

        say(f"outcomes: {write_outcomes(spec, out)}")
    yield Table(("run", "status", "error"), [(row["name"], row["status"], row["error"]) for row in table["rows"]])
    if table["stopped"]:
        yield f"stopped: {table['stopped']}"
    yield f"next: {command('analyze', spec_file)}"
    return Checked(table, has_failed(table))


@verb("list")
@click.argument("specs", metavar="[FOLDER]", type=click.Path(path_type=Path), default=Path("spec"))
@click.option("--full", is_flag=True, help="Print the question and the follow-up, too.")
def list_(specs: Path, full: bool, out: Path) -> Text:
    """List status (planned, running, completed, failed), decision and date of every spec below FOLDER (spec/).

    A decision is the one that `probe analyze SPEC --write` wrote into NAME.md on the spec as it is now. Example:

      probe spec list --full
    """
    from probe.experiments.register import register  # imports numpy

    entries = register(specs, out)
    rows = []
    for entry in entries:
        earlier = "-" if entry["earlier"] is None else f"(of an earlier version: {entry['earlier']})"
        date, runs = (entry["date"] or "-").partition("T")[0], f"{entry['done']}/{entry['runs']}"
        rows.append((entry["name"], entry["status"], entry["decision"] or earlier, runs, date))
    yield Table(("experiment", "status", "decision", "runs", "last start"), rows, left=3)
    for entry in entries if full else ():
        yield f"\n{entry['name']}: {entry['question']}"
        if entry["follow_up"]:
            yield f"  then: {entry['follow_up']}"
    return entries
