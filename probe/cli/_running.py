"""A run as the command line sees it: its processes, its trackers, its progress, and the means of its records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from probe.cli._progress import say, shown_progress
from probe.records.records import StepRecord
from probe.records.tracking import tracked

if TYPE_CHECKING:
    from probe.runs.config import ModelConfig
    from probe.step.distributed import World


@contextmanager
def running(model: "ModelConfig", track: Sequence[str], directory: Path, out: Path) -> Iterator["World"]:
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
