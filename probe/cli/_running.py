"""A run on the command line: its processes (`torchrun`), its trackers and its progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from probe.cli._progress import say, shown_progress
from probe.records.tracking import TRACKERS, tracked
from probe.settings.training import ModelConfig
from replay_pools.storage.files import locked

if TYPE_CHECKING:
    from probe.step.distributed import World  # torch: only for those who run something

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
    """Join the processes of a run; on rank 0 lock its directory, show its progress and tell its trackers of it.

    Raises:
        InputError: another process runs into the same directory; else as `probe.step.distributed.joined` and
            `probe.records.tracking.tracked`.
    """
    from probe.step.distributed import joined

    with joined(model.device, shards_base=model.shard_base) as world:
        if not world.is_main:
            yield world
            return
        # The trackers first: one that is not installed is refused before anything is made.
        with tracked(track, directory, out_dir=out, say=say), locked(directory), shown_progress():
            yield world
