"""probe plan: what a spec can detect and what it costs, before anything is run; the training spec that a GO buys."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.analysis.statistics.thresholds import ALPHA, POWER
from probe.cli._analysis_options import one_blas_thread
from probe.cli._frame import Real, echo, echo_json, echo_table, json_option, out_option
from probe.cli._output import echo_footprint
from probe.cli._progress import say
from probe.records.root import elsewhere
from probe.records.run import read_run, resolve_run
from replay_pools.errors import InputError

if TYPE_CHECKING:  # numpy and scipy: a help text needs neither
    from probe.experiments.plan import Effect, SpecPlan
    from probe.experiments.spec import Spec
    from probe.experiments.training_spec import Written


@click.command()
@click.argument("target", metavar="SPEC|RUN", type=click.Path(path_type=Path))
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="Take its times (a path, or a name in OUT/runs). Default: finished runs of the spec, else trainings like it.",
)
@click.option("--model", help="Memory and modules of this one (a directory, a hub id). Default: the spec's.")
@click.option("--check", is_flag=True, help="Exit with 1 when a part of the spec is vacuous.")
@click.option(
    "--spec",
    "spec_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="RUN: where its training spec is written. Default: spec/RUN-training.toml.",
)
@click.option("--effect", type=Real(0, min_open=True), help="RUN: the effect to see, of a hack rate. Default: 0.3.")
@click.option("--sd", type=Real(0, min_open=True), help="RUN: its sd between seeds. Default: 0.15.")
@out_option
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    target: Path,
    run: Path | None,
    model: str | None,
    check: bool,
    spec_file: Path | None,
    effect: float | None,
    sd: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """Detectable effect, hours, money, modules, memory and vacuous parts of SPEC (spec/NAME.toml). Runs nothing.

    RUN, a replay whose verdict is GO (a directory, or a name in OUT/runs): writes the spec of the training that it
    buys, and plans that. What cannot happen is refused, all at once.

    Examples:

      probe plan spec/phase2.toml

      probe plan demo
    """
    from probe.experiments.load import load_spec
    from probe.experiments.plan import make_plan

    options = {"--spec": spec_file, "--effect": effect, "--sd": sd}
    written = None
    if target.suffix == ".toml":
        if given := [name for name, value in options.items() if value is not None]:
            raise InputError(given[0], expected="a RUN beside it", found=f"a spec, {target}")
    else:
        written = _write(resolve_run(target, out), spec_file, effect, sd, out)
        target = written.spec
    spec = load_spec(target)
    spec_plan = make_plan(spec, out_dir=out, run=None if run is None else resolve_run(run, out), model=model)
    if as_json:
        echo_json(spec_plan.to_json() | _written(written))
    else:
        _print(spec, spec_plan)
        if written is not None:
            echo(f"next: read {target}, then probe sweep {shlex.quote(str(target))}{elsewhere(out)}")
    ctx.exit(1 if check and spec_plan.vacuous else 0)


def _write(run: Path, spec_file: Path | None, effect: float | None, sd: float | None, out: Path) -> "Written":
    """The training spec of a run, and its directions; says which files are new."""
    # Before numpy is imported, which reads the number of threads then.
    one_blas_thread()
    from dataclasses import replace

    from probe.analysis.analyze import analyze
    from probe.analysis.evidence import PlannedTraining
    from probe.experiments.training_spec import write_training_spec

    stored = read_run(run)
    given = {"expected_effect": effect, "sd": sd}
    assumed = replace(PlannedTraining(), **{name: value for name, value in given.items() if value is not None})
    path = spec_file or Path("spec") / f"{run.resolve().name}-training.toml"
    if path.suffix != ".toml":
        raise InputError("--spec", expected="a file NAME.toml", found=str(path))
    written = write_training_spec(stored, analyze(stored), path, out_dir=out, plan=assumed)
    say(f"GO of {run}: {written.spec}")
    if written.directions is not None:
        say(f"its v_hack: {written.directions}")
    say(f"assumed: an effect of {assumed.expected_effect:g} and an sd of {assumed.sd:g} between seeds (--effect, --sd)")
    return written


def _written(written: "Written | None") -> dict[str, Any]:
    """Keys of the JSON for a RUN."""
    if written is None:
        return {}
    return {"written": str(written.spec), "directions": written.directions and str(written.directions)}


def _print(spec: "Spec", spec_plan: "SpecPlan") -> None:
    echo(f"{spec.name}: {spec.experiment.question}")
    echo(
        f"{spec_plan.runs} runs: {len(spec.conditions)} conditions, arms {', '.join(spec.arms)}, "
        f"seeds {', '.join(map(str, spec.seeds))}; sha256 {spec_plan.sha256[:12]}"
    )
    for title, effects in (("this spec", spec_plan.effects), ("what a GO buys", spec_plan.go_effects)):
        if effects:
            echo(f"\nSmallest effect seen with {POWER:.0%} power at {ALPHA:.0%}, two-sided: {title}")
            echo_table(("seeds", "paired", "unpaired", ""), [_effect(effect) for effect in effects])
    for contrast in spec_plan.contrasts:
        echo(f"\n{contrast.text}")
    if spec_plan.prices:
        echo("\nCost")
        for price in spec_plan.prices:
            money = "" if price.money is None else f", {price.money:.2f} {price.currency}"
            echo(f"  {price.what}: {price.runs} runs, {price.hours:.2f} hours{money} ({price.source})")
    echo_footprint(spec_plan.footprint)
    echo(f"\nVacuous parts: {len(spec_plan.vacuous) or 'none found'}")
    for part in spec_plan.vacuous:
        echo(f"  VACUOUS  {part.where}: {part.why}")
    for note in spec_plan.notes:
        echo(f"note: {note}")


def _effect(effect: "Effect") -> tuple[str, str, str, str]:
    paired = "-" if effect.paired is None else f"{effect.paired:.3g}"
    return str(effect.n), paired, f"{effect.unpaired:.3g}", "planned" if effect.planned else ""
