"""A run that is going on: its processes, the lock of its directory, and the trackers that are told of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from probe.records.tracking import tracked
from probe.settings.training import ModelConfig
from probe.step.distributed import World, joined
from replay_pools.base.files import locked


@contextmanager
def running(
    model: ModelConfig, directory: Path, out: Path, say: Callable[[str], None], track: Sequence[str] = ()
) -> Iterator[World]:
    """Join the processes of a run; on rank 0 lock its directory, and tell its trackers of it.

    Raises:
        InputError: another process runs into the same directory; else as `joined` and `tracked`.
    """
    with joined(model.device, shards_base=model.shard_base) as world:
        if not world.is_main:
            yield world
            return
        # The trackers first: one that is not installed is refused before anything is made.
        with tracked(track, directory, out_dir=out, say=say), locked(directory):
            yield world
