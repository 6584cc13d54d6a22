"""The temporary folders of a grader: where it works, and the copy of Python's library that its submissions read.

A folder belongs to a living process as long as that holds the lock (`flock`) of the folder itself: the kernel drops it
with the process, and process ids, which differ between containers, play no part. Whoever makes a folder first removes
those that killed graders of its user left.
"""

import fcntl
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay_pools.grading.sandbox import FOREIGN

PREFIX = "probe-grading-"
# Installed packages, and what takes half of the space of a library: its tests, and what a C compiler needs.
_LEFT_OUT = (*FOREIGN, "test", "tests", "config-*", "*.a", "*.opt-?.pyc")
_PASSABLE = 0o711  # a submission with another uid can resolve the path of its directory, and list nothing on the way


@contextmanager
def grading_folder() -> Iterator[Path]:
    """Make a new folder, which goes at the end."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove(left)
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = _lock(path)
    if descriptor is None or not path.is_dir():  # another grader took it for a leftover
        with grading_folder() as other:
            yield other
        return
    path.chmod(_PASSABLE)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def scratch_folder(directory: Path) -> Path:
    """Make a new folder of a worker in the grader's."""
    path = Path(tempfile.mkdtemp(dir=directory))
    path.chmod(_PASSABLE)
    return path


def library_is_closed() -> bool:
    """Return whether a folder above Python's library, such as /root/.pyenv, keeps other users out."""
    return not all(folder.stat().st_mode & 0o001 for folder in (_library(), *_library().parents))


def copied_library(directory: Path) -> Path:
    """Copy the library to a prefix (PYTHONHOME) in the grader's folder, where every user can read it.

    In tier B a submission of root becomes another user, which has no way to a library below a closed folder.
    """
    library, prefix = _library(), directory / "python"
    # With the times of the files, or Python would not trust the compiled ones among them.
    shutil.copytree(
        library,
        prefix / sys.platlibdir / library.name,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
        ignore_dangling_symlinks=True,
    )
    # Neither the umask of this process nor the modes of the library matter.
    for folder, _, names in os.walk(prefix):
        Path(folder).chmod(0o755)
        for name in names:
            Path(folder, name).chmod(0o644)
    return prefix


def _library() -> Path:
    """Return the folder of the library's modules, also in a virtual environment the base interpreter's."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def _remove(path: Path) -> None:
    """Remove a folder of this user that no process holds."""
    descriptor = _lock(path)
    if descriptor is not None:
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder; None where another holds it, or it is no folder."""
    try:
        # Anybody may put a link or a fifo into the temporary folder.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
