"""probe replay: stored rollouts through the step, every arm measured, nothing trained unless --lr is above 0."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from extraction.vocabulary import BASES, LossType, Storage
from probe.cli._completion import known_pools, several_of
from probe.cli._frame import Real, dry_run_option, echo_json, echo_table, json_option, name_option, out_option
from probe.cli._progress import say
from probe.cli._running import mean_of, running
from probe.cli._shared_options import (
    basis_options,
    config_option,
    extraction_options,
    model_options,
    rounding_line,
    shard_base_option,
    stored_config,
    token_attribution_option,
    track_option,
)
from probe.cli._sizes import echo_preview
from probe.records.run import read_run
from probe.records.timings import describe_timings
from probe.settings.arms import ARMS
from probe.settings.words import ESTIMATORS, GATES, MATCHES, SCALES, Estimator, Gate, Match, Scale
from replay_pools.errors import InputError


def _names(_ctx: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


@click.command()
@name_option("run", default="replay", show_default=True)
@click.option(
    "--replay-dirs",
    default="teacher,base",
    show_default=True,
    callback=_names,
    shell_complete=several_of(known_pools),
    help="Pools, by commas: names in OUT/pools, built-in ones, or paths with a slash.",
)
@click.option(
    "--arm",
    "arms",
    default="projected",
    show_default=True,
    callback=_names,
    shell_complete=several_of(lambda _ctx: [*ARMS]),
    help=f"By commas, of {', '.join(ARMS)}.",
)
@click.option("--per-pool", default=4, show_default=True, type=click.IntRange(1), help="Rollouts of a pool in a step.")
@click.option(
    "--match",
    default="problem",
    show_default=True,
    type=click.Choice(MATCHES),
    help="What the pools have in common in a step: the problem, the rendered prompt, or nothing.",
)
@click.option("--steps", type=click.IntRange(1), help="Groups to replay. Default: all that match.")
@click.option("--seed", default=0, show_default=True, help="Of the choice of rollouts and of the random controls.")
@click.option("--model", help="Default: the base model that the pools' manifests name.")
@click.option(
    "--v-hack",
    type=click.Path(dir_okay=False),
    help="File of probe extract, or its name in OUT/directions. Default: extract, cached.",
)
@extraction_options
@click.option(
    "--gate",
    type=click.Choice(GATES),
    help="What is removed along the directions V: relu(c), c or 2c of c = V g. Default: the arm's own, one_sided.",
)
@click.option("--overshoot", default=1.0, show_default=True, type=Real(0), help="Factor on what is removed.")
@click.option("--preserve-magnitude", is_flag=True, help="Rescale the projected gradient to its old norm.")
@click.option(
    "--advantage-estimator",
    default="grpo",
    show_default=True,
    type=click.Choice(ESTIMATORS),
    help="Reward minus the group's mean; maxrl divides by the mean, rloo leaves the sample itself out.",
)
@click.option(
    "--scale-rewards",
    default="none",
    show_default=True,
    type=click.Choice(SCALES),
    help="Divide advantages by the standard deviation of the rewards of the group or the batch.",
)
@click.option("--advantage-clip", type=Real(0, min_open=True), help="Cap on |A|, last. Default: none.")
@click.option(
    "--advantage-eps",
    default=1e-4,
    show_default=True,
    type=Real(0),
    help="Added to the standard deviation that --scale-rewards divides by.",
)
@click.option(
    "--min-group-std",
    default=0.0,
    show_default=True,
    type=Real(0),
    help="Groups whose rewards have a smaller standard deviation get advantages of 0.",
)
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="Evaluate every arm under this change of the loss; repeat for a grid. Without any there is one, `default`, "
    "which changes nothing; beside others it has to be named.",
)
@click.option(
    "--planning-phrases",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="One phrase a line: what token credit calls planning. Default: a short built-in list.",
)
@click.option("--lr", default=0.0, show_default=True, type=Real(0), help="Of AdamW; 0 = frozen weights.")
@basis_options
@click.option(
    "--dtype-noise",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Score so many rollouts again in a higher precision and record how far the cosines move.",
)
@token_attribution_option
@shard_base_option
@config_option
@track_option
@click.option("--preregistered", hidden=True, help="NAME@SHA256 of a spec; given by probe sweep.")
@model_options
@out_option
@dry_run_option
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    name: str,
    replay_dirs: tuple[str, ...],
    arms: tuple[str, ...],
    per_pool: int,
    match: Match,
    steps: int | None,
    seed: int,
    model: str | None,
    pairs: str,
    v_hack: str | None,
    k: int,
    tau: float,
    drop_bottom_frac: float,
    gate: Gate | None,
    overshoot: float,
    preserve_magnitude: bool,
    loss_type: LossType,
    max_completion_length: int | None,
    tokens_per_batch: int | None,
    advantage_estimator: Estimator,
    scale_rewards: Scale,
    advantage_clip: float | None,
    advantage_eps: float,
    min_group_std: float,
    conditions: tuple[str, ...],
    planning_phrases: Path | None,
    lr: float,
    lora_rank: int,
    svd_rank: int | None,
    svd_storage: Storage,
    dtype_noise: int,
    token_attribution: int | None,
    shard_base: bool,
    config_file: Path | None,
    track: tuple[str, ...],
    preregistered: str | None,
    dtype: str,
    device: str,
    out: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replay stored rollouts through the training step and measure every arm; the run is out/runs/NAME.

    A killed run continues where it stopped, and ends in the same bytes. Examples:

      probe replay --replay-dirs teacher,base --arm vanilla,projected,random

      probe replay --name grid --arm vanilla --condition default --condition scaled:scale_rewards=group,advantage_clip=2
    """
    from extraction.library import ExtractionSettings, resolve_directions
    from probe.objective.objective import Objective
    from probe.runs.conditions import parse_conditions
    from probe.runs.config import GateConfig, ModelConfig, ReplayConfig, SourceConfig, read_phrases
    from probe.runs.replay import preview
    from probe.runs.replay import replay as run_replay

    if config_file is not None:
        config = ReplayConfig.from_json(stored_config(ctx, config_file))
    else:
        objective = Objective(
            loss_type=loss_type,
            max_completion_length=max_completion_length,
            advantage_estimator=advantage_estimator,
            scale_rewards=scale_rewards,
            advantage_eps=advantage_eps,
            min_group_std=min_group_std,
            advantage_clip=advantage_clip,
        )
        config = ReplayConfig(
            arms=arms,
            conditions=parse_conditions(conditions, objective),
            planning_phrases=read_phrases(planning_phrases),
            source=SourceConfig(replay_dirs=replay_dirs, per_pool=per_pool, match=match, steps=steps),
            model=ModelConfig(
                name=model,
                dtype=dtype,
                device=device,
                lora_rank=lora_rank,
                svd_rank=svd_rank,
                svd_storage=svd_storage,
                dtype_noise=dtype_noise,
                shard_base=shard_base,
            ),
            extraction=ExtractionSettings(
                pairs=pairs, k=k, tau=tau, drop_bottom_frac=drop_bottom_frac, tokens_per_batch=tokens_per_batch
            ),
            gate=GateConfig(gate=gate, overshoot=overshoot, preserve_magnitude=preserve_magnitude),
            v_hack=None if v_hack is None else str(resolve_directions(Path(v_hack), out)),
            lr=lr,
            seed=seed,
            token_attribution=token_attribution,
            preregistered=preregistered,
        )
    if v_hack is not None and ctx.get_parameter_source("pairs") is ParameterSource.COMMANDLINE:
        raise InputError("--pairs", expected="none beside --v-hack, whose file holds its pairs", found=repr(pairs))
    directory = out / "runs" / name
    if dry_run:
        echo_preview(preview(config, directory, out_dir=out, say=say), as_json)
        return
    with running(config.model, track, directory, out) as world:
        run_replay(config, directory, out_dir=out, say=world.main_only(say), world=world)
    if world.is_main:
        _print_run(directory, as_json)


def _print_run(directory: Path, as_json: bool) -> None:
    """Means over steps, a condition and arm a row; then the times and what the precision of the run is worth."""
    run = read_run(directory)
    columns = ("cos_in", "cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
    rows: list[dict[str, Any]] = []
    for condition, arm in dict.fromkeys((step.condition, step.arm) for step in run.steps):
        steps = [step for step in run.steps if (step.condition, step.arm) == (condition, arm)]
        row: dict[str, Any] = {"condition": condition, "arm": arm, "steps": len(steps)}
        for column in columns:
            row[column] = mean_of(steps, column)
        rows.append(row)
    precision = {name: run.manifest[name] for name in ("additivity", "dtype_noise", "rounding")}
    if as_json:
        echo_json({"path": str(directory), "arms": rows, **precision})
        return
    hidden = {"condition"} if len({row["condition"] for row in rows}) == 1 else set()
    names = [name for name in rows[0] if name not in hidden]
    echo_table(names, [[_cell(row[name]) for name in names] for row in rows])
    if all(step.cos_in is None for step in run.steps):
        click.echo(
            "NO GRADIENT: all rewards of a step are equal, in every step (those of one rollout always are); "
            "use pools with good and bad rollouts of a problem"
        )
    if reason := run.manifest["stopped"]:
        click.echo(f"STOPPED after {len({step.step for step in run.steps})} steps: {reason}")
    say(describe_timings(directory))
    for line in _precision_lines(**precision):
        click.echo(line)
    click.echo(f"means over steps; run in {directory}; next: probe analyze {directory}")


def _cell(value: Any) -> Any:
    return f"{value:+.4f}" if isinstance(value, float) else "-" if value is None else value


def _precision_lines(
    additivity: dict[str, Any], dtype_noise: dict[str, Any] | None, rounding: dict[str, dict[str, Any] | None]
) -> list[str]:
    """What a reader of the table must know about its digits; nothing when all is well and nothing was asked for."""
    lines = []
    if steps := additivity["exceeded_steps"]:
        lines.append(
            f"NOT ADDITIVE: in steps {', '.join(map(str, steps))} the samples' gradients miss the batch gradient by up "
            f"to {additivity['largest']:.1e} of it (tolerance {additivity['tolerance']:.0e}): do not use these numbers"
        )
    if dtype_noise is not None:
        for basis in BASES:
            if noise := dtype_noise.get(basis):
                lines.append(
                    f"noise of {dtype_noise['dtype']} against {dtype_noise['reference']} in sample cosines ({basis}, "
                    f"{dtype_noise['rollouts']} rollouts): median {noise['median']:.1e}, max {noise['max']:.1e}"
                )
    return lines + [rounding_line(basis, own) for basis, own in rounding.items() if own is not None]
