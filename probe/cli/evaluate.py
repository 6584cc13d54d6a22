"""probe eval: hack, exploit and solve rates of a policy on held-out problems."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from probe.cli._frame import echo, echo_json, json_option, name_option, out_option
from probe.cli._output import echo_evaluations
from probe.cli._progress import say, shown_progress
from probe.cli._settings import SettingsCommand, given_flags, say_defaults, settings_options
from probe.cli.completion import one_run
from probe.records.run import resolve_run
from probe.settings.presets import configure
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.environments.registry import NAMES
from replay_pools.errors import InputError
from replay_pools.storage.lock import locked

FLAGS = {
    "model": "model.name",
    "adapter": "model.adapter",
    "device": "model.device",
    "env": "rollouts.env",
    "modes": "evaluation.modes",
    "without_hint": "evaluation.without_hint",
    "problems": "evaluation.num_problems",
    "rollouts": "evaluation.rollouts_per_problem",
    "seed": "seed",
}


@click.command(name="eval", cls=SettingsCommand)
@click.argument("run", required=False, type=click.Path(path_type=Path), shell_complete=one_run)
@name_option("evaluation", default="eval", show_default=True)
@click.option("--model", help="Without RUN: as in probe pool generate. Default: organism.")
@click.option("--adapter", help="Without RUN: `teacher` (of the organism) or a PEFT directory.")
@click.option(
    "--env",
    help=f"Without RUN: {NAMES}. Default: minicode.",
)
@click.option("--mode", "modes", multiple=True, type=click.Choice([*LOOPHOLES]), help="Repeatable. Default: the run's.")
@click.option("--without-hint", is_flag=True, default=None, help="Also ask without the hint.")
@click.option("--problems", type=click.IntRange(1), help="Held-out problems. Default: the run's, else 64.")
@click.option("--rollouts", type=click.IntRange(1), help="Of each problem and setting. Default: the run's, else 1.")
@click.option("--seed", type=int, help="Of the sampling. Default: 0.")
@click.option("--device", help="auto (CUDA when present), cpu, cuda, cuda:1, ... Default: auto.")
@settings_options
@out_option
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    run: Path | None,
    name: str,
    preset: str | None,
    settings: tuple[str, ...],
    modes: tuple[str, ...],
    out: Path,
    as_json: bool,
    **_flags: Any,
) -> None:
    """Evaluate the deployed policy of a training RUN (a directory, or a name in OUT/runs), or any --model; the rollouts
    are pools in out/evals/NAME.

    The held-out problems are those of RUN, which it has not trained on, or else those of `probe train`. Examples:

      probe eval out/runs/train --mode run_tests --mode sentinel --without-hint

      probe eval --model organism --adapter teacher --problems 200 --name teacher
    """
    if run is not None:
        for option in ("preset", "model", "adapter", "env"):
            if (given := ctx.params[option]) is not None:
                raise InputError(f"--{option}", expected="none beside RUN, which has its own", found=repr(given))
    from probe.runs.evaluations import check_unseen, deployed_policy, evaluate_policy

    options, step, trained = given_flags(ctx, FLAGS), 0, None
    if run is not None:
        trained, step = deployed_policy(resolve_run(run, out))
    elif modes:
        options["rollouts.mode"] = modes[0]  # what `--without-hint` asks without
    start = None if trained is None else asdict(trained)
    config = configure("eval", preset=preset, start=start, settings=settings, options=options)
    if trained is not None:
        check_unseen(trained, config)
    directory = out / "evals" / name
    if run is None:  # beside one, what was not given is as the run has it
        say_defaults(ctx, config, FLAGS, say)
    with locked(directory), shown_progress():
        rates = evaluate_policy(config, directory, out, step=step, say=say)
    if as_json:
        echo_json({"path": str(directory), **rates.to_json()})
        return
    echo_evaluations([rates])
    echo(f"rates on held-out problems with Wilson 95% intervals; rollouts in {directory}")
