"""The temporary folder of a grader, and the end of those that killed graders left.

A folder belongs to a living grader as long as somebody holds the lock (`flock`) of the folder itself: the kernel drops
it with the process, and process ids, which differ between containers, play no part.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "probe-grading-"


@contextmanager
def grading_folder() -> Iterator[Path]:
    """A new folder that goes at the end; first those of killed graders of this user go."""
    _remove_leftovers()
    path, descriptor = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _make() -> tuple[Path, int]:
    """(folder, the descriptor that holds its lock)."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        descriptor = _lock(path)
        # Between the two lines another grader may have taken the folder for a leftover.
        if descriptor is not None and path.is_dir():
            return path, descriptor
        if descriptor is not None:
            os.close(descriptor)


def _remove_leftovers() -> None:
    """Remove the folders of this user that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        descriptor = _lock(path)
        if descriptor is None:
            continue
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where another holds it, or there is no such folder of ours."""
    try:
        # Anybody may put a link into the temporary folder.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
