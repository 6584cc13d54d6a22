"""probe replay: put stored rollouts through the training step and measure every arm along its directions."""

import shlex
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from probe.analysis.formatting import shown
from probe.cli._frame import Table, Text, command, dry_run_option, name_option, out_option, say
from probe.cli._running import check_names, ended, previewed, track_option
from probe.cli._settings import PAIRS, configured, say_defaults, settings_options, verb
from probe.records.run import elsewhere, read_run
from probe.settings.arms import COLOURED_STEPS, USUAL_ARMS


@verb()
@name_option("run", "its pools and arms, with a hash of other settings that are not the default", default=None)
@dry_run_option
@settings_options(
    "replay",
    # What a first run needs comes first.
    "source.replay_dirs",
    "intervention.arms: --arm",
    "steps",
    "model.name: --model",
    "source.per_pool",
    "source.match",
    "source.only_step",
    "seed",
    "model.template",
    "model.device",
    *PAIRS,
    "intervention.v_hack",
    "conditions: --condition",
    "lookahead.steps: --lookahead",
    has_config=True,
)
@track_option
def replay(name: str | None, track: tuple[str, ...], dry_run: bool, out: Path, **settings: Any) -> Text:
    """Replay stored rollouts through the training step, measure every arm, and write the run to out/runs/NAME.

    Repeat the command to continue a killed run, with the same result. Examples:

      probe replay --replay-dirs teacher,base --arm vanilla,projected,random

      probe replay --name grid --arm vanilla --condition default --condition scaled:scale_rewards=group,advantage_clip=2

      probe replay --preset full --set model.dtype=bfloat16 --set objective.loss_type=dr_grpo
    """
    config = configured("replay", settings, out)
    check_names(config.source.replay_dirs, config.intervention.extraction.pairs, out)
    from probe.runs.replay import name_of, run_replay
    from probe.runs.resume import running

    directory = out / "runs" / (name or name_of(config))
    if dry_run:
        from probe.runs.replay_inputs import ReplayInputs

        return (yield from previewed(ReplayInputs(config, out, say).preview(directory)))
    with running(config.model, directory, out, say, track) as world:
        if world.is_main:
            say_defaults(settings, config)
        run_replay(config, directory, out_dir=out, say=world.main_only(say), world=world)
    return (yield from _told(directory)) if world.is_main else None


@click.command()
@out_option
@click.pass_context
def demo(ctx: click.Context, out: Path) -> None:
    """Replay embedded rollouts in three arms and write a page: of two policies, then of one policy that does both.

    The first replay is of a policy that hacks and one that does not, the second of one that hacks in 38% of its
    rollouts, at the weights that sampled them: the next step after the first verdict. Needs nothing but this package,
    and about two minutes of CPU time. Example:

      probe demo
    """
    from probe.analysis.verdict.next_step import MIXED, on_mixed  # brings numpy

    root, place = ctx.find_root(), ["--out", str(out)]

    def run(words: list[str]) -> None:
        say(f"probe {shlex.join(words)}{elsewhere(out)}")
        with root.command.make_context("probe", [*words, *place]) as context:
            root.command.invoke(context)

    first, second = out / "runs" / "demo", out / "runs" / MIXED
    options = ["--arm", ",".join(USUAL_ARMS), "--set", f"token_attribution={COLOURED_STEPS}"]
    run(["replay", "--replay-dirs", "teacher,base", *options, "--name", first.name])
    run(["report", str(first)])
    say("the demo takes this next step itself:")
    run(shlex.split(on_mixed(read_run(first)))[1:])
    run(["report", str(second)])


def _told(directory: Path) -> Text:
    """Yield means over prompts, one row a loss variant and arm, then times and warnings about precision."""
    from probe.analysis.statistics.intervals import prompt_means  # brings numpy and scipy

    run = read_run(directory)
    columns = ("cos_in", "cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
    rows: list[dict[str, Any]] = []
    for condition, arm in dict.fromkeys((step.condition, step.arm) for step in run.steps):
        steps = [step for step in run.steps if (step.condition, step.arm) == (condition, arm)]
        row: dict[str, Any] = {"condition": condition, "arm": arm, "steps": len(steps)}
        for column in columns:
            known = [step for step in steps if getattr(step, column) is not None]
            by_prompt = prompt_means([getattr(step, column) for step in known], [step.problem_id for step in known])
            row[column] = fmean(by_prompt.values()) if by_prompt else None
        rows.append(row)
    additivity = run.manifest["additivity"]
    keys = ["condition", "arm", "steps"] if len({row["condition"] for row in rows}) > 1 else ["arm", "steps"]
    cells = [[*map(row.get, keys), *(shown(row[name], "+.4f") for name in columns)] for row in rows]
    yield Table([*keys, *columns], cells)
    if all(step.cos_in is None for step in run.steps):
        yield (
            "NO GRADIENT: all rewards of a step are equal, in every step (one rollout alone always has no gradient); "
            "use pools with good and bad rollouts of a problem"
        )
    yield from ended(run)
    if steps := additivity["exceeded_steps"]:
        yield (
            f"NOT ADDITIVE: in steps {', '.join(map(str, steps))} the samples' gradients miss the batch gradient by up "
            f"to {additivity['largest']:.1e} of it (tolerance {additivity['tolerance']:.0e}): do not use these numbers"
        )
    yield f"means over prompts; run in {directory}; next: {command('analyze', directory)}"
    return {"path": str(directory), "arms": rows, "additivity": additivity}
