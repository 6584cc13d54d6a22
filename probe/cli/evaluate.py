"""probe eval: hack, exploit and solve rates of a policy on held-out problems."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from probe.cli._frame import echo, echo_json, json_option, name_option, out_option
from probe.cli._output import echo_evaluations
from probe.cli._progress import say, shown_progress
from probe.cli._settings import SettingsCommand, configured, given_settings, say_defaults, settings_options
from probe.cli.completion import one_run
from probe.records.run import resolve_run
from replay_pools.errors import InputError
from replay_pools.storage.lock import locked


@click.command(name="eval", cls=SettingsCommand)
@click.argument("run", required=False, type=click.Path(path_type=Path), shell_complete=one_run)
@name_option("evaluation", default="eval", show_default=True)
@settings_options(
    "eval",
    "model.name: --model",
    "model.adapter",
    "rollouts.env",
    "evaluation.modes: --mode",
    "evaluation.without_hint",
    "evaluation.num_problems: --problems",
    "evaluation.rollouts_per_problem: --rollouts",
    "seed",
    "model.device",
)
@out_option
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    run: Path | None,
    name: str,
    out: Path,
    as_json: bool,
) -> None:
    """Evaluate the deployed policy of a training RUN (a directory, or a name in OUT/runs), or any --model; the rollouts
    are pools in out/evals/NAME.

    The held-out problems are those of RUN, which it has not trained on, or else those of `probe train`. Examples:

      probe eval out/runs/train --mode run_tests,sentinel --without-hint

      probe eval --model organism --adapter teacher --problems 200 --name teacher
    """
    from probe.runs.evaluations import check_unseen, deployed_policy, evaluate_policy

    given, step, trained = given_settings(ctx), 0, None
    if run is not None:
        if own := [key for key in ("model.name", "model.adapter", "rollouts.env") if key in given]:
            raise InputError(own[0], expected="none beside RUN, which has its own", found=repr(given[own[0]]))
        trained, step = deployed_policy(resolve_run(run, out))
    config = configured(ctx, "eval", start=None if trained is None else asdict(trained))
    if trained is not None:
        check_unseen(trained, config)
    elif config.evaluation.modes:  # what `--without-hint` asks without
        config = replace(config, rollouts=replace(config.rollouts, mode=config.evaluation.modes[0]))
    directory = out / "evals" / name
    if run is None:  # beside one, what was not given is as the run has it
        say_defaults(ctx, config, say)
    with locked(directory), shown_progress():
        rates = evaluate_policy(config, directory, out, step=step, say=say)
    if as_json:
        echo_json({"path": str(directory), **rates.to_json()})
        return
    echo_evaluations([rates])
    echo(f"rates on held-out problems with Wilson 95% intervals; rollouts in {directory}")
