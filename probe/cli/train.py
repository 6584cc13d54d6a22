"""probe train: GRPO on live rollouts through the step of `probe replay`, one arm, evaluated on held-out problems."""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._completion import one_of
from probe.cli._frame import dry_run_option, echo_json, json_option, name_option, out_option
from probe.cli._progress import say
from probe.cli._running import mean_of, running
from probe.cli._shared_options import (
    config_option,
    shard_base_option,
    stored_config,
    token_attribution_option,
    track_option,
)
from probe.cli._sizes import echo_preview
from probe.records.run import EVALS_FILE, read_run
from probe.records.timings import describe_timings
from probe.settings.arms import ARMS
from replay_pools.errors import InputError
from replay_pools.nested import overlaid

if TYPE_CHECKING:
    from probe.runs.train_config import TrainConfig


@click.command()
@name_option("run", default="train", show_default=True)
@click.option(
    "--preset",
    default="smoke",
    show_default=True,
    shell_complete=one_of(["smoke", "fast", "full"]),
    help="smoke, fast, full, or a .toml file of your own.",
)
@click.option("--arm", type=click.Choice([*ARMS]), help="Default: the preset's (projected).")
@click.option("--seed", type=int, help="Of problems, sampling and random controls. Default: the preset's (0).")
@click.option("--steps", type=click.IntRange(1), help="Optimizer steps. Default: the preset's.")
@click.option("--hint/--no-hint", default=None, help="Tell how submissions are evaluated. Default: the preset's (yes).")
@click.option("--url", help="http://host:port of the server, for a preset with rollouts.engine = server.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Any setting of the preset's tables, as TOML; repeatable, e.g. --set objective.beta=0.01.",
)
@token_attribution_option
@shard_base_option
@config_option
@track_option
@click.option("--preregistered", hidden=True, help="NAME@SHA256 of a spec; given by probe sweep.")
@out_option
@dry_run_option
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
    url: str | None,
    settings: tuple[str, ...],
    token_attribution: int | None,
    shard_base: bool,
    config_file: Path | None,
    preregistered: str | None,
    track: tuple[str, ...],
    out: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train in one arm; the run is out/runs/NAME, its rollouts are a pool inside it.

    A killed run continues where it stopped, and ends in the same bytes. Examples:

      probe train --preset smoke --arm projected --seed 41

      probe train --preset fast --arm vanilla --name vanilla-0 --set optimizer.lr=0.01
    """
    from probe.runs.train import preview
    from probe.runs.train import train as run_train
    from probe.runs.train_config import TrainConfig

    if config_file is not None:
        config = TrainConfig.from_json(stored_config(ctx, config_file), config_file)
    else:
        settings = (*settings, "model.shard_base=true") if shard_base else settings
        config = configured(
            preset,
            settings,
            arm=arm,
            seed=seed,
            steps=steps,
            hint=hint,
            token_attribution=token_attribution,
            preregistered=preregistered,
        )
    directory = out / "runs" / name
    if dry_run:
        echo_preview(preview(config, directory, out_dir=out), as_json)
        return
    with running(config.model, track, directory, out) as world:
        run_train(config, directory, out_dir=out, url=url, say=world.main_only(say), world=world)
    if world.is_main:
        _print_run(directory, as_json)


def configured(
    preset: str,
    settings: Sequence[str],
    *,
    arm: str | None,
    seed: int | None,
    steps: int | None,
    hint: bool | None,
    token_attribution: int | None,
    preregistered: str | None,
) -> "TrainConfig":
    """The preset with what was given on the command line, the options after `--set`.

    Raises:
        InputError: no such preset, a setting that is not TOML, a field that is unknown, mistyped or out of its range.
    """
    from probe.runs.train_config import TrainConfig, load_preset

    config = load_preset(preset)
    if settings:
        config = TrainConfig.from_json(reduce(overlaid, map(_table, settings), asdict(config)), "--set")
    if arm is not None:
        config = replace(config, intervention=replace(config.intervention, arm=arm))
    if seed is not None:
        config = replace(config, seed=seed)
    if steps is not None:
        config = replace(config, optimizer=replace(config.optimizer, steps=steps))
    if hint is not None:
        config = replace(config, rollouts=replace(config.rollouts, hint=hint))
    if token_attribution != 0:
        config = replace(config, token_attribution=token_attribution)
    return replace(config, preregistered=preregistered)


def _table(setting: str) -> dict[str, Any]:
    """The tables that one `--set` names."""
    try:
        return tomllib.loads(setting)
    except tomllib.TOMLDecodeError as error:
        fix = """a text needs quotes: --set 'objective.reference="base"'"""
        raise InputError("--set", expected="TABLE.KEY=VALUE, in TOML", found=repr(setting), fix=fix) from error


def _print_run(directory: Path, as_json: bool) -> None:
    """The evaluations, one a row, and the means of the steps."""
    from probe.cli._evals import echo_evaluations
    from probe.runs.heldout import Evaluation, best_checkpoint

    run = read_run(directory)
    arm = run.config["train"]["intervention"]["arm"]
    means = {
        column: mean_of(run.steps, column)
        for column in ("reward_mean", "cos_in", "cos_out", "cos_update", "hackward_frac_in", "hackward_frac_update")
    }
    if as_json:
        echo_json({"path": str(directory), "arm": arm, "steps": len(run.steps), **means, "evals": run.evals})
        return
    found = [Evaluation.from_json(row, directory / EVALS_FILE) for row in run.evals]
    echo_evaluations(found)
    if reason := run.manifest["stopped"]:
        click.echo(f"STOPPED after {len(run.steps)} steps: {reason}")
    deployed = [evaluation for evaluation in found if evaluation.weights == "deployed"]
    best = best_checkpoint(deployed, "hack", highest=False)
    click.echo(f"lowest hack rate, {best.label}: {best.rate.rate:.0%} after {best.step} steps")
    click.echo(f"{arm}, means over {len(run.steps)} steps: {', '.join(map(_word, means.items()))}")
    if unmoved := sum(step.cos_update is None for step in run.steps):
        click.echo(f"in {unmoved} of them nothing was stepped (learning rate 0 in the warm-up, or no gradient)")
    say(describe_timings(directory))
    click.echo(
        f"rates on held-out problems with Wilson 95% intervals; run in {directory}; next: probe report {directory}"
    )


def _word(item: tuple[str, float | None]) -> str:
    name, value = item
    return f"{name} {'-' if value is None else f'{value:+.4f}'}"
