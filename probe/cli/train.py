"""probe train: GRPO on live rollouts through the step of `probe replay`, one arm, evaluated on held-out problems."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.arms import ARMS
from probe.cli._frame import echo_json, echo_table, json_option, name_option, out_option
from probe.cli._progress import progress, say
from probe.cli._shared_options import config_option, refuse_overrides, shard_base_option
from probe.runs import read_run
from probe.timings import describe_timings
from replay_pools.files import read_json

if TYPE_CHECKING:
    from probe.train_config import TrainConfig


@click.command()
@name_option("run", default="train", show_default=True)
@click.option("--preset", default="smoke", show_default=True, help="smoke, fast, full, or a .toml file of your own.")
@click.option("--arm", type=click.Choice([*ARMS]), help="Default: the preset's (projected).")
@click.option("--seed", type=int, help="Of problems, sampling and random controls. Default: the preset's (0).")
@click.option("--steps", type=click.IntRange(1), help="Optimizer steps. Default: the preset's.")
@click.option("--hint/--no-hint", default=None, help="Tell how submissions are evaluated. Default: the preset's (yes).")
@shard_base_option
@config_option
@out_option
@json_option
@click.pass_context
def train(
    ctx: click.Context,
    name: str,
    preset: str,
    arm: str | None,
    seed: int | None,
    steps: int | None,
    hint: bool | None,
    shard_base: bool,
    config_file: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Train in one arm; the run is out/runs/NAME, its rollouts are a pool inside it.

    A killed run continues where it stopped, and ends in the same bytes. Examples:

      probe train --preset smoke --arm projected --seed 41

      probe train --preset fast --arm vanilla --name vanilla-0
    """
    from probe.distributed import joined
    from probe.train import train as run_train
    from probe.train_config import TrainConfig, load_preset

    if config_file is not None:
        refuse_overrides(ctx)
        config = TrainConfig.from_json(read_json(config_file).get("train"), config_file)
    else:
        config = _overridden(
            load_preset(preset), arm=arm, seed=seed, steps=steps, hint=hint, shard_base=shard_base or None
        )
    directory = out / "runs" / name
    with joined(config.model.device, shards_base=config.model.shard_base) as world:
        report, count = world.main_only(say), world.main_only(progress("steps"))
        run_train(config, directory, out_dir=out, say=report, progress=count, world=world)
    if world.is_main:
        _print_run(directory, as_json)


def _overridden(
    config: "TrainConfig",
    *,
    arm: str | None,
    seed: int | None,
    steps: int | None,
    hint: bool | None,
    shard_base: bool | None,
) -> "TrainConfig":
    """The preset with what was given on the command line."""
    from dataclasses import replace

    if arm is not None:
        config = replace(config, intervention=replace(config.intervention, arm=arm))
    if shard_base is not None:
        config = replace(config, model=replace(config.model, shard_base=shard_base))
    if seed is not None:
        config = replace(config, seed=seed)
    if steps is not None:
        config = replace(config, optimizer=replace(config.optimizer, steps=steps))
    if hint is not None:
        config = replace(config, rollouts=replace(config.rollouts, hint=hint))
    return config


def _print_run(directory: Path, as_json: bool) -> None:
    """The evaluations, one a row, and the means of the steps."""
    from probe.evaluator import read_evals

    run, evals = read_run(directory), read_evals(directory)
    means = {
        column: _mean([getattr(step, column) for step in run.steps])
        for column in ("reward_mean", "cos_in", "cos_out", "cos_update", "hackward_frac_in", "hackward_frac_update")
    }
    if as_json:
        echo_json({"path": str(directory), "arm": run.steps[0].arm, "steps": len(run.steps), **means, "evals": evals})
        return
    names = ("hack", "exploit", "solve")
    rows = []
    for row in evals:
        for setting, rates in row["rates"].items():
            if setting == "all" and len(row["rates"]) == 2:
                continue  # the one setting says it
            found = [_rate(rates[name]) for name in names]
            rows.append([row["step"], row["weights"], setting, rates["num_rollouts"], *found])
    echo_table(("after steps", "weights", "setting", "rollouts", *names), rows)
    if reason := run.manifest["stopped"]:
        click.echo(f"STOPPED after {len(run.steps)} steps: {reason}")
    click.echo(f"{run.steps[0].arm}, means over {len(run.steps)} steps: {', '.join(map(_word, means.items()))}")
    say(describe_timings(directory))
    click.echo(f"rates on held-out problems with Wilson 95% intervals; run in {directory}")


def _rate(rate: dict[str, Any]) -> str:
    interval = rate["interval"]
    return f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _word(item: tuple[str, float | None]) -> str:
    name, value = item
    return f"{name} {'-' if value is None else f'{value:+.4f}'}"
