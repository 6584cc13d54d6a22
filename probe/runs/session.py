"""A running run: its processes, the lock of its directory, and its trackers."""

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
    """Join the processes of a run; rank 0 locks its directory and starts its trackers.

    Raises:
        InputError: another process runs in the same directory; or as in `joined` and `tracked`.
    """
    with joined(model.device, shards_base=model.shard_base) as world:
        if not world.is_main:
            yield world
            return
        # Trackers come first, to refuse a missing package before anything is written.
        with tracked(track, directory, out_dir=out, say=say), locked(directory):
            yield world
