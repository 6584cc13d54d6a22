"""A run as the command line sees it: its processes, its trackers, its progress, and the means of its records."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probe.cli._progress import progress, say
from probe.records import StepRecord
from probe.tracking import Progress, tracked

if TYPE_CHECKING:
    from probe.config import ModelConfig
    from probe.distributed import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What `probe.replay.replay` and `probe.train.train` are told beside their settings."""

    world: "World"
    say: Callable[[str], None]  # silent but on rank 0
    progress: Progress  # likewise; trackers hear of every step


@contextmanager
def running(model: "ModelConfig", track: Sequence[str], directory: Path, out: Path) -> Iterator[Running]:
    """Join the processes of a run and open its trackers, on rank 0 alone.

    Raises:
        InputError: as `probe.distributed.joined` and `probe.tracking.tracked`.
    """
    from probe.distributed import joined

    with joined(model.device, shards_base=model.shard_base) as world:
        silent_elsewhere, names = world.main_only(say), track if world.is_main else ()
        shown = world.main_only(progress("steps"))
        with tracked(names, directory, out_dir=out, progress=shown, say=silent_elsewhere) as report:
            yield Running(world=world, say=silent_elsewhere, progress=report)


def mean_of(steps: Sequence[StepRecord], column: str) -> float | None:
    """The mean of a field over the steps that have it."""
    values = [value for step in steps if (value := getattr(step, column)) is not None]
    return sum(values) / len(values) if values else None
