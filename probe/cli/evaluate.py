"""probe eval: hack, exploit and solve rates of a policy on held-out problems."""

from pathlib import Path

import click

from probe.cli._completion import one_run
from probe.cli._frame import echo_json, json_option, name_option, out_option
from probe.cli._progress import say, shown_progress
from probe.cli._shared_options import model_options
from probe.records.run import resolve_run
from replay_pools.environments.loopholes import LOOPHOLES


@click.command(name="eval")
@click.argument("run", required=False, type=click.Path(path_type=Path), shell_complete=one_run)
@name_option("evaluation", default="eval", show_default=True)
@click.option("--model", default="organism", show_default=True, help="Without RUN: as in probe pool generate.")
@click.option("--adapter", help="Without RUN: `teacher` (of the organism) or a PEFT directory.")
@click.option("--env", default="minicode", show_default=True, help="Without RUN: minicode or leetcode:FILE.jsonl.")
@click.option("--mode", "modes", multiple=True, type=click.Choice([*LOOPHOLES]), help="Repeatable. Default: the run's.")
@click.option("--without-hint", is_flag=True, help="Also ask without the hint.")
@click.option("--problems", default=64, show_default=True, type=click.IntRange(1), help="Held-out problems.")
@click.option("--rollouts", default=1, show_default=True, type=click.IntRange(1), help="Of each problem and setting.")
@click.option("--seed", default=0, show_default=True, help="Of the sampling.")
@model_options
@out_option
@json_option
def evaluate(
    run: Path | None,
    name: str,
    model: str,
    adapter: str | None,
    env: str,
    modes: tuple[str, ...],
    without_hint: bool,
    problems: int,
    rollouts: int,
    seed: int,
    dtype: str,
    device: str,
    out: Path,
    as_json: bool,
) -> None:
    """Evaluate the deployed policy of a training RUN (a directory, or a name in OUT/runs), or any --model; the rollouts
    are pools in out/evals/NAME.

    The held-out problems are those of `probe train`: no run has trained on them. Examples:

      probe eval out/runs/train --mode run_tests --mode sentinel --without-hint

      probe eval --model organism --adapter teacher --problems 200 --name teacher
    """
    from probe.cli._evals import echo_evaluations
    from probe.runs.assess import EvalConfig, assess, config_of_run
    from probe.runs.train_config import EvaluationConfig

    own = EvaluationConfig(num_problems=problems, rollouts_per_problem=rollouts, modes=modes, without_hint=without_hint)
    if run is not None:
        config = config_of_run(resolve_run(run, out), own, seed=seed, device=device)
    else:
        mode = modes[0] if modes else "run_tests"
        config = EvalConfig(
            model=model, adapter=adapter, dtype=dtype, device=device, env=env, mode=mode, evaluation=own, seed=seed
        )
    directory = out / "evals" / name
    with shown_progress():
        found = assess(config, directory, say=say)
    if as_json:
        echo_json({"path": str(directory), **found.to_json()})
        return
    echo_evaluations([found])
    click.echo(f"rates on held-out problems with Wilson 95% intervals; rollouts in {directory}")
