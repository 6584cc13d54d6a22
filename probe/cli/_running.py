"""A run on the command line: its processes, trackers and progress; what it would do; and the tables of its results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from probe.analysis.training_outcome import RATES
from probe.cli._frame import echo_json, echo_table
from probe.cli._progress import say, shown_progress
from probe.records.records import StepRecord
from probe.records.tracking import TRACKERS, tracked
from probe.runs.rates import Evaluation, Rate
from probe.settings.model import ModelConfig
from probe.settings.words import ALL

if TYPE_CHECKING:
    from probe.runs.footprint import Footprint
    from probe.runs.preview import Preview
    from probe.step.distributed import World

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def track_option(function: AnyFunction) -> AnyFunction:
    """`--track TRACKER` -> `track: tuple[str, ...]`, empty by default."""
    return click.option(
        "--track",
        multiple=True,
        type=click.Choice(TRACKERS),
        help="Show the records in a tracker too, locally (out/tracking/); repeatable. Default: none.",
    )(function)


@contextmanager
def running(model: ModelConfig, track: Sequence[str], directory: Path, out: Path) -> Iterator["World"]:
    """Join the processes of a run; on rank 0 show its progress and tell its trackers of it.

    Raises:
        InputError: as `probe.step.distributed.joined` and `probe.records.tracking.tracked`.
    """
    from probe.step.distributed import joined

    with joined(model.device, shards_base=model.shard_base) as world:
        if not world.is_main:
            yield world
            return
        with shown_progress(), tracked(track, directory, out_dir=out, say=say):
            yield world


def mean_of(steps: Sequence[StepRecord], column: str) -> float | None:
    """The mean of a field over the steps that have it."""
    values = [value for step in steps if (value := getattr(step, column)) is not None]
    return sum(values) / len(values) if values else None


GIB = 2**30


def echo_preview(found: "Preview", as_json: bool) -> None:
    """A preview, as text or JSON."""
    if as_json:
        echo_json(found.to_json())
        return
    echo_work(found.path, found.state, found.work)
    echo_footprint(found.footprint)
    click.echo("\nnothing was written")


def echo_work(path: str, state: str, work: Mapping[str, int]) -> None:
    """Where something would be written, how far it is, and how much it is."""
    click.echo(f"{path}: {state}")
    click.echo(", ".join(f"{count:,} {what}" for what, count in work.items()))


def echo_footprint(found: "Footprint | None") -> None:
    """The adapted modules of a model; sizes and their sum. Nothing where no model is known."""
    if found is None:
        return
    count, share = sum(row.modules for row in found.modules), sum(row.share for row in found.modules)
    click.echo(f"\nAdapted in {found.model}: {count} modules, {share:.0%} of the weights")
    cells = [
        (row.projection, row.modules, f"{row.shape[0]} x {row.shape[1]}", f"{row.share:.1%}") for row in found.modules
    ]
    echo_table(("projection", "modules", "d_out x d_in", "of the weights"), cells)
    click.echo("\nMemory beside activations, which depend on the lengths of the rollouts")
    sizes = [(row.what, _size(row.num_bytes)) for row in found.memory]
    echo_table(("", "size"), [*sizes, ("sum", _size(found.num_bytes))])


def _size(num_bytes: int) -> str:
    """MiB below one GiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes * 1024 / GIB:.2f} MiB"


def echo_evaluations(evaluations: Sequence[Evaluation]) -> None:
    """A row for every evaluation and setting; `all` only where it is not the one setting."""
    rows = []
    for evaluation in evaluations:
        for setting, rates in evaluation.rates.items():
            if setting == ALL and len(evaluation.rates) == 2:
                continue
            found = [_cell(getattr(rates, name)) for name in RATES]
            rows.append([evaluation.step, evaluation.weights, setting, rates.num_rollouts, *found])
    echo_table(("after steps", "weights", "setting", "rollouts", *RATES), rows)


def _cell(rate: Rate) -> str:
    if rate.rate is None or rate.interval is None:
        return "-"
    return f"{rate.rate:.0%} [{rate.interval.low:.0%}, {rate.interval.high:.0%}]"


def rounding_line(basis: str, rounding: dict[str, Any]) -> str:
    """What `Coordinates.rounding` measured, for a reader."""
    error = rounding["cosine_error"]
    return (
        f"factors of {basis} in {rounding['storage']}: orthonormal up to {rounding['orthonormality']:.1e}; cosine of a "
        f"module's trial gradient with the exact one 1 - {error['median']:.1e} (median), 1 - {error['max']:.1e} (worst)"
    )
