"""The command line: one file a verb, imported only when called."""

import os

import click
from click.shell_completion import shell_complete

from probe.cli._frame import LazyGroup, run

COMPLETE_VARIABLE = "_PROBE_COMPLETE"
VERBS = {
    "check": ("probe.cli.check:check", "From a log of rollouts and a file of pairs to a verdict and a page."),
    "pool": ("probe.cli.pool:pool", "Generate, import, verify, show and regrade pools of rollouts."),
    "extract": ("probe.cli.extract:extract", "Extract hack directions from contrastive pairs."),
    "directions": ("probe.cli.directions:directions", "Show the card of a direction file; compare two files."),
    "replay": ("probe.cli.replay:replay", "Replay stored rollouts and measure the gradient against the direction."),
    "train": ("probe.cli.train:train", "Train a policy with GRPO in one arm, evaluated on held-out problems."),
    "finetune": ("probe.cli.finetune:finetune", "Train a LoRA on completions: a teacher, or a policy that solves."),
    "eval": ("probe.cli.evaluate:evaluate", "Hack, exploit and solve rates of a policy on held-out problems."),
    "ladder": ("probe.cli.ladder:ladder", "Elo of the checkpoints of trainings against fixed references."),
    "plan": ("probe.cli.plan:plan", "What a spec can detect, what it costs, and which of its rows are vacuous."),
    "sweep": ("probe.cli.sweep:sweep", "Run a spec: conditions x arms x seeds, resumable."),
    "analyze": ("probe.cli.analyze:analyze", "Contrasts, nulls and verdicts of finished runs."),
    "experiments": ("probe.cli.experiments:experiments", "Status, decision and date of every spec."),
    "report": ("probe.cli.report:report", "Runs, or a spec, as one HTML file: verdict, figures, rollouts, tokens."),
    "show": ("probe.cli.show:show", "One rollout in the terminal: prompt, completion, labels, cosines."),
    "export": ("probe.cli.export:export", "Write the tables of a run as Parquet or CSV."),
    "list": ("probe.cli.list:list_", "What is in the root folder: pools, directions, runs, sweeps, reports."),
    "completion": ("probe.cli.completion:completion", "Print the script that completes commands in your shell."),
    "settings": ("probe.cli.settings:settings", "Every setting with its type, default and meaning."),
    "doctor": ("probe.cli.doctor:doctor", "Check this machine and installation, with a fix for what fails."),
}


@click.group(cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gradient-probe", prog_name="probe")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error (or PROBE_DEBUG=1).")
def cli() -> None:
    """Is the reward-hack direction in your GRPO gradient?

    The pipeline: pools of rollouts -> directions -> replay -> analysis, each under its own folder of out/.
    """


def main() -> int:
    """Entry point; returns the exit code (0 done, 1 a check failed, 2 usage or bad input, 130 interrupted)."""
    if (instruction := os.environ.get(COMPLETE_VARIABLE)) is not None:  # the shell asks, by the script it was given
        return shell_complete(cli, {}, "probe", COMPLETE_VARIABLE, instruction)
    # Threads that wait for work would keep their core busy, which on a shared machine is most of the CPU time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return run(cli)
