"""The command line: a table of verbs, each imported only when it is called."""

import os

import click

from probe.cli._frame import LazyGroup, echo, run

# {section: {verb: ("module:command" in probe.cli, or a table of verbs, one line of help)}}.
VERBS = {
    "Look": {
        "demo": ("replay:demo", "Replay the embedded rollouts in three arms; write their page."),
        "check": ("check:check", "From a log of rollouts and a file of pairs to a verdict and a page."),
        "detect": ("detect:detect", "Rank the rollouts of a pool or a log by how much they look like a hack."),
        "replay": ("replay:replay", "Measure stored rollouts against the direction, in every arm."),
        "analyze": ("analyze:analyze", "The verdict on finished runs, or the decision of a spec."),
        "report": ("report:report", "Runs, or a spec, as one HTML file; records as Parquet or CSV."),
        "show": ("show:show", "List what OUT holds; show one rollout, or one direction file."),
    },
    "Make": {
        "pool": (
            {
                "generate": ("pool_make:generate", "Sample groups from a policy, grade and freeze them."),
                "import": ("pool:import_", "Make a pool of the rollouts that another tool logged."),
                "verify": ("pool:verify", "Check hashes, fields, labels and rewards of a pool."),
                "show": ("pool:show", "Rates by mode, lengths and reward spread of a pool."),
                "regrade": ("pool_make:regrade", "Grade stored completions again and compare the labels."),
                "draft": ("pool_draft:draft", "Propose pairs from labelled rollouts of half of the prompts."),
            },
            "Graded rollouts: generate, import, verify, show, regrade, draft.",
        ),
        "extract": ("extract:extract", "Extract hack directions from contrastive pairs."),
        "train": ("train:train", "Train a policy with GRPO in one arm, with evaluations."),
        "policy": (
            {
                "finetune": ("policy:finetune", "Train a LoRA on completions: a teacher, or a policy that solves."),
                "eval": ("policy:evaluate", "Hack, exploit and solve rates of a policy on held-out problems."),
            },
            "Policies: finetune, eval.",
        ),
    },
    "Plan": {
        "screen": ("screen:screen", "Rank remedies by what one replay measures of each."),
        "spec": (
            {
                "plan": ("spec:plan", "Detectable effect, hours and money of a spec, before it runs."),
                "sweep": ("spec:sweep", "Run a spec: conditions x arms x seeds, resumable."),
                "list": ("spec:list_", "Status, decision and date of every spec."),
            },
            "Experiments written down before their data: plan, sweep, list.",
        ),
    },
    "Machine": {
        "doctor": ("doctor:doctor", "Check this machine and installation, with a fix for what fails."),
        "settings": ("docs:settings", "Every setting with its type, default and meaning."),
        "docs": ("docs:docs", "The guide, page by page."),
    },
}


@click.group(cls=LazyGroup, sections=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gradient-probe", message="probe %(version)s")
def cli() -> None:
    """Is the reward-hack direction in your GRPO gradient?

    The pipeline: pools of rollouts -> directions -> replay -> analysis, each under its own folder of out/.
    """


def main() -> int:
    """Entry point; returns the exit code (0 done, 1 a check failed, 2 usage or bad input, 130 interrupted)."""
    # Threads that wait for work would keep their core busy, which on a shared machine is most of the CPU time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Nulls are many small factorisations, for which threads of BLAS only wait for one another; numpy reads it once.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Of several processes of one run, the first one speaks; a shell that asks for completions waits for no bars.
    if os.environ.get("RANK", "0") != "0" or "_PROBE_COMPLETE" in os.environ:
        return run(cli)
    from probe.cli._terminal import shown_progress

    with shown_progress(lambda text: echo(text, err=True)):
        return run(cli)
