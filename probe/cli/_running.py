"""A run on the command line: its processes and trackers, what it would need, what it measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import AnyFunction, echo, echo_json, echo_table
from probe.records.idle import idle_settings
from probe.records.records import StepRecord
from probe.records.run import Run
from probe.records.timings import describe_timings
from probe.records.tracking import TRACKERS
from probe.settings.machines import GPUS, Machine
from probe.settings.words import ALL, Dtype
from replay_pools.terminal import visible

if TYPE_CHECKING:  # numpy, scipy and torch: a help text needs none of them
    from probe.runs.footprint import Footprint
    from probe.runs.preview import Preview

GIB = 2**30


def track_option(function: AnyFunction) -> AnyFunction:
    """`--track TRACKER` -> `track: tuple[str, ...]`, empty by default."""
    return click.option(
        "--track",
        multiple=True,
        type=click.Choice(TRACKERS),
        help="Show the records in a tracker too, locally (out/tracking/); repeatable. Default: none.",
    )(function)


def say(text: str) -> None:
    """A line about what is being done."""
    echo(visible(text, kept=""), err=True)


def echo_end(run: Run) -> None:
    """Print why a run stopped early, its warnings, the settings that changed nothing, and on stderr its times."""
    if reason := run.manifest["stopped"]:
        echo(f"STOPPED after {len({step.step for step in run.steps})} steps: {reason}")
    for warning in run.manifest["warnings"]:
        echo(f"WARNING: {warning}")
    for sentence in idle_settings(run):
        echo(f"caution: {sentence}")
    say(describe_timings(run.path))


def mean_of(steps: Sequence[StepRecord], column: str) -> float | None:
    """The mean of a field over the steps that have it."""
    values = [value for step in steps if (value := getattr(step, column)) is not None]
    return sum(values) / len(values) if values else None


def echo_preview(preview: "Preview", as_json: bool) -> None:
    """A preview, as text or JSON."""
    if as_json:
        echo_json(preview.to_json())
        return
    echo(f"{preview.path}: {preview.state}")
    echo(", ".join(f"{count:,} {what}" for what, count in preview.work.items()))
    if preview.hours:  # of a run that is complete there are none
        echo(f"\nHours, {preview.hours_source}")
        rows = {**preview.hours, "sum": sum(preview.hours.values())}
        echo_table(("", "hours"), [(what, f"{number:.3g}") for what, number in rows.items()])
    echo_footprint(preview.footprint)
    echo("\nnothing was written")


def machine_option(function: AnyFunction) -> AnyFunction:
    """`--gpu NAME` -> `gpu: str | None`."""
    text = "Count hours for this accelerator. Default of a dry run: this machine's CPU."
    return click.option("--gpu", type=click.Choice(list(GPUS)), help=text)(function)


def chosen_machine(gpu: str | None, dtype: Dtype) -> Machine:
    """That of `--gpu`, or the CPU as it is now."""
    from probe.runs.hours import this_cpu

    return this_cpu(dtype) if gpu is None else GPUS[gpu]


def echo_footprint(footprint: "Footprint | None") -> None:
    """How much of a model is adapted; sizes and their sum. Nothing where no model is known."""
    if footprint is None:
        return
    adapted = footprint.adapted
    echo(f"\nAdapted in {footprint.model}: {footprint.modules} modules; {adapted.caution or adapted}")
    echo("\nMemory, of a first run that finds nothing in the caches")
    memory = footprint.memory | {"sum": sum(footprint.memory.values())}
    echo_table(("", "size"), [(what, _size(num_bytes)) for what, num_bytes in memory.items()])


def _size(num_bytes: int) -> str:
    """MiB below one GiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes * 1024 / GIB:.2f} MiB"


def echo_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> None:
    """A row for every evaluation and setting; `all` only where it is not the one setting."""
    from probe.analysis.training_runs import RATES

    rows = []
    for evaluation in evaluations:
        for setting, rates in evaluation["rates"].items():
            if setting == ALL and len(evaluation["rates"]) == 2:
                continue
            cells = [_cell(rates[name]) for name in RATES]
            rows.append([evaluation["step"], evaluation["weights"], setting, rates["num_rollouts"], *cells])
    echo_table(("after steps", "weights", "setting", "rollouts", *RATES), rows)


def _cell(rate: Mapping[str, Any]) -> str:
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def truncation_line(basis: str, truncation: dict[str, Any]) -> str:
    """Say what `Frames.truncation` holds."""
    left_out = truncation["left_out"]
    return (
        f"the rank of {basis} leaves out {left_out['median']:.0%} of |W| in the median of {truncation['modules']} "
        f"modules, at most {left_out['max']:.0%}"
    )
