"""probe plan: what a spec can detect, what it costs, and which of its parts are vacuous, before anything is run."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo_json, echo_table, json_option, out_option
from probe.cli._running import echo_footprint
from probe.records.run import resolve_run

if TYPE_CHECKING:
    from probe.experiments.plan import Effect, SpecPlan


@click.command()
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="Take its times (a path, or a name in OUT/runs). Default: finished runs of the spec.",
)
@click.option("--model", help="Memory and modules of this one (a directory, a hub id). Default: the spec's.")
@click.option("--check", is_flag=True, help="Exit with 1 when a part of the spec is vacuous.")
@out_option
@json_option
@click.pass_context
def plan(
    ctx: click.Context, spec_file: Path, run: Path | None, model: str | None, check: bool, out: Path, as_json: bool
) -> None:
    """Detectable effect, hours, money, modules, memory and vacuous parts of SPEC (spec/NAME.toml). Runs nothing.

    Example:  probe plan spec/phase2.toml
    """
    from probe.experiments.checks import open_spec
    from probe.experiments.plan import make_plan

    spec = open_spec(spec_file)
    found = make_plan(spec, out_dir=out, run=None if run is None else resolve_run(run, out), model=model)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(f"{spec.name}: {spec.experiment.question}")
        click.echo(
            f"{found.runs} runs: {len(spec.conditions)} conditions, arms {', '.join(spec.arms)}, "
            f"seeds {', '.join(map(str, spec.seeds))}; sha256 {found.sha256[:12]}"
        )
        _print(found)
    ctx.exit(1 if check and found.vacuous else 0)


def _print(found: "SpecPlan") -> None:
    for title, effects in (("this spec", found.effects), ("what a GO buys", found.go_effects)):
        if effects:
            click.echo(f"\nSmallest effect seen with 80% power at 5%, two-sided: {title}")
            echo_table(("seeds", "paired", "unpaired", ""), [_effect(effect) for effect in effects])
    if found.prices:
        click.echo("\nCost")
        for price in found.prices:
            money = "" if price.money is None else f", {price.money:.2f} {price.currency}"
            click.echo(f"  {price.what}: {price.runs} runs, {price.hours:.2f} hours{money} ({price.source})")
    echo_footprint(found.footprint)
    click.echo(f"\nVacuous parts: {len(found.vacuous) or 'none found'}")
    for part in found.vacuous:
        click.echo(f"  VACUOUS  {part.where}: {part.why}")
    for note in found.notes:
        click.echo(f"note: {note}")


def _effect(effect: "Effect") -> tuple[str, str, str, str]:
    paired = "-" if effect.paired is None else f"{effect.paired:.3g}"
    return str(effect.n), paired, f"{effect.unpaired:.3g}", "planned" if effect.planned else ""
