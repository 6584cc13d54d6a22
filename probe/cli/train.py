"""probe train: train one arm with GRPO on live rollouts, and evaluate it on held-out problems."""

from pathlib import Path
from statistics import fmean
from typing import Any

import click

from probe.analysis.formatting import shown
from probe.cli._frame import Text, command, dry_run_option, name_option, say
from probe.cli._running import ended, evaluation_table, previewed, track_option
from probe.cli._settings import configured, say_defaults, settings_options, verb
from probe.records.run import read_run

# Columns of steps; their means are printed at the end.
MEANS = ("reward_mean", "solve", "loss", "cos_in", "cos_out", "cos_update", "hackward_frac_in", "hackward_frac_update")


@verb()
@name_option("run", default="train", show_default=True)
@click.option("--url", help="Sample from this vLLM server, http://host:8000, which gets every adapter.")
@settings_options("train", "intervention.arms: --arm", "seed", "steps", "rollouts.hint", has_config=True)
@track_option
@dry_run_option
def train(name: str, url: str | None, track: tuple[str, ...], dry_run: bool, out: Path, **settings: Any) -> Text:
    """Train one arm; write the run and a pool of its rollouts to out/runs/NAME.

    Repeat the command to continue a killed run, with the same result. Examples:

      probe train --preset smoke --arm projected --seed 41

      probe train --preset fast --arm vanilla --name vanilla-0 --set optimizer.lr=0.01
    """
    config = configured("train", settings, out)
    directory = out / "runs" / name
    if dry_run:
        from probe.runs.training_inputs import TrainingInputs

        return (yield from previewed(TrainingInputs(config, out).preview(directory)))
    from probe.runs.resume import running
    from probe.runs.train import train as run_train

    with running(config.model, directory, out, say, track) as world:
        if world.is_main:
            say_defaults(settings, config)
        run_train(config, directory, out_dir=out, url=url, say=world.main_only(say), world=world)
    return (yield from _told(directory)) if world.is_main else None


def _told(directory: Path) -> Text:
    """Yield the evaluations as a table, then the means over the steps."""
    run = read_run(directory)
    arm = run.settings.intervention.arms[0]
    means = {}
    for column in MEANS:
        known = [value for step in run.steps if (value := getattr(step, column)) is not None]
        means[column] = fmean(known) if known else None
    yield evaluation_table(run.evals)
    listed = ", ".join(f"{name} {shown(value, '+.4f')}" for name, value in means.items())
    yield f"{arm}, means over {len(run.steps)} steps: {listed}"
    if unmoved := sum(step.cos_update is None for step in run.steps):
        yield f"{unmoved} of them did not move the weights (learning rate 0 in the warm-up, or no gradient)"
    yield from ended(run)
    yield f"rates on held-out problems with Wilson 95% intervals; run in {directory}"
    yield f"next: {command('analyze', directory)}"
    ran = {"path": str(directory), "arm": arm, "steps": len(run.steps), **means}
    return {**ran, "warnings": run.manifest["warnings"], "evals": run.evals}
