"""probe replay: stored rollouts through the step, every arm measured, nothing trained unless --lr is above 0."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from extraction.vocabulary import LossType
from probe.arms import ARMS
from probe.cli._frame import echo_json, echo_table, json_option, name_option, out_option
from probe.cli._progress import progress, say
from probe.cli._shared_options import extraction_options, model_options
from probe.runs import read_run
from probe.vocabulary import ESTIMATORS, GATES, MATCHES, SCALES, Estimator, Gate, Match, Scale
from replay_pools.errors import InputError
from replay_pools.files import read_json


def _names(_ctx: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


@click.command()
@name_option("run", default="replay", show_default=True)
@click.option("--replay-dirs", default="teacher,base", show_default=True, callback=_names, help="Pools, by commas.")
@click.option(
    "--arm", "arms", default="projected", show_default=True, callback=_names, help=f"Of {', '.join(ARMS)}; by commas."
)
@click.option("--per-pool", default=4, show_default=True, type=click.IntRange(1), help="Rollouts of each pool a step.")
@click.option("--match", default="problem", show_default=True, type=click.Choice(MATCHES), help="Pair steps by.")
@click.option("--steps", type=click.IntRange(1), help="Default: all steps that match.")
@click.option("--seed", default=0, show_default=True, help="Of the drawn rollouts and the random controls.")
@click.option("--model", help="Default: the base model that the pools' manifests name.")
@click.option("--v-hack", type=click.Path(dir_okay=False), help="Direction file; default: extract and cache.")
@extraction_options
@click.option("--gate", type=click.Choice(GATES), help="Default: each arm's own (one_sided).")
@click.option("--overshoot", default=1.0, show_default=True, help="Factor on what is removed.")
@click.option("--preserve-magnitude", is_flag=True, help="Rescale the projected gradient to its old norm.")
@click.option("--advantage-estimator", default="grpo", show_default=True, type=click.Choice(ESTIMATORS))
@click.option("--scale-rewards", default="none", show_default=True, type=click.Choice(SCALES))
@click.option("--advantage-clip", type=click.FloatRange(0, min_open=True), help="Cap on |A|, applied last.")
@click.option("--min-group-std", default=0.0, show_default=True, type=click.FloatRange(0), help="Skip groups below.")
@click.option("--lr", default=0.0, show_default=True, type=click.FloatRange(0), help="AdamW; 0 = weights frozen.")
@click.option("--lora-rank", default=32, show_default=True, type=click.IntRange(1), help="Of projected-lora.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="config.json of a run to repeat.")
@click.option("--preregistered", hidden=True, help="NAME@SHA256 of a spec; given by probe sweep.")
@model_options
@out_option
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
    advantage_estimator: Estimator,
    scale_rewards: Scale,
    advantage_clip: float | None,
    min_group_std: float,
    lr: float,
    lora_rank: int,
    config_file: Path | None,
    preregistered: str | None,
    dtype: str,
    device: str,
    out: Path,
    as_json: bool,
) -> None:
    """Replay stored rollouts through the training step and measure every arm; the run is out/runs/NAME.

    A killed run continues where it stopped, and ends in the same bytes. Example:

      probe replay --replay-dirs teacher,base --arm vanilla,projected,random
    """
    from extraction.library import ExtractionSettings
    from probe.config import GateConfig, ModelConfig, ReplayConfig, SourceConfig
    from probe.replay import replay as run_replay
    from probe.step import Objective

    if config_file is not None:
        _refuse_overrides(ctx)
        config = ReplayConfig.from_json(read_json(config_file).get("replay", {}))
    else:
        config = ReplayConfig(
            arms=arms,
            source=SourceConfig(replay_dirs=replay_dirs, per_pool=per_pool, match=match, steps=steps),
            model=ModelConfig(name=model, dtype=dtype, device=device, lora_rank=lora_rank),
            objective=Objective(
                loss_type=loss_type,
                estimator=advantage_estimator,
                scale_rewards=scale_rewards,
                advantage_clip=advantage_clip,
                min_group_std=min_group_std,
                max_completion_length=max_completion_length,
            ),
            extraction=ExtractionSettings(
                pairs=pairs,
                k=k,
                tau=tau,
                drop_bottom_frac=drop_bottom_frac,
                loss_type=loss_type,
                max_completion_length=max_completion_length,
            ),
            gate=GateConfig(gate=gate, overshoot=overshoot, preserve_magnitude=preserve_magnitude),
            v_hack=v_hack,
            lr=lr,
            seed=seed,
            preregistered=preregistered,
        )
    directory = out / "runs" / name
    run_replay(config, directory, out_dir=out, say=say, progress=progress("steps"))
    _print_run(directory, as_json)


def _refuse_overrides(ctx: click.Context) -> None:
    """--config holds every setting of the run: another option beside it would be ignored, so it is refused."""
    allowed = {"config_file", "name", "out", "as_json"}
    given = [p for p in ctx.params if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE and p not in allowed]
    if given:
        raise InputError("--config", expected="no other setting beside it", found=", ".join(sorted(given)))


def _print_run(directory: Path, as_json: bool) -> None:
    """Means over steps, an arm a row."""
    run = read_run(directory)
    columns = ("cos_in", "cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
    arms = list(dict.fromkeys(step.arm for step in run.steps))
    rows: list[dict[str, Any]] = []
    for arm in arms:
        steps = [step for step in run.steps if step.arm == arm]
        row: dict[str, Any] = {"arm": arm, "steps": len(steps)}
        for column in columns:
            values = [value for step in steps if (value := getattr(step, column)) is not None]
            row[column] = sum(values) / len(values) if values else None
        rows.append(row)
    if as_json:
        echo_json({"path": str(directory), "arms": rows})
        return
    cells = [[f"{v:+.4f}" if isinstance(v, float) else "-" if v is None else v for v in row.values()] for row in rows]
    echo_table(("arm", "steps", *columns), cells)
    click.echo(f"means over steps; run in {directory}; next: probe analyze {directory}")
