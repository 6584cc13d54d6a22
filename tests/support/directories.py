"""What a run or a pool left on disk."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe.records.timings import TIMINGS_FILE


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the wall-clock times, by its path."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != TIMINGS_FILE)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@contextmanager
def made_once(path: Path) -> Iterator[bool]:
    """Whether this worker makes what all only read; the others wait for it."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not path.exists()
