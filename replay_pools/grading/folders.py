"""The temporary folders of a grader: where it works, and the copy of Python's library that its submissions read.

A folder belongs to a living process as long as that holds the lock (`flock`) of the folder itself: the kernel drops it
with the process, and process ids, which differ between containers, play no part. Whoever makes a folder first removes
those that killed graders of its user left.

The copy: in tier B a root's submission becomes another user, which Landlock lets read the library but which has no way
to a library below a closed folder, such as /root/.pyenv. Then workers use a copy that everybody can read, made once per
process. An ordinary user's submissions keep its user, and the sandbox of tier A opens the folders above the library.
"""

import atexit
import fcntl
import functools
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay_pools.grading.sandbox import FOREIGN

WORK, LIBRARY = "probe-grading-", "probe-python-"  # how the names of the two kinds of folder begin
# Installed packages, and what takes half of the space of a library: its tests, and what a C compiler needs.
_LEFT_OUT = (*FOREIGN, "test", "tests", "config-*", "*.a", "*.opt-?.pyc")
_PASSABLE = 0o711  # a submission with another uid can resolve the path of its directory, and list nothing on the way
# Access times of the copy. Linux renews (relatime) one that is older than the last change or than a day.
_NEVER_RENEWED = 1 << 33  # in the year 2242
_copying = threading.Lock()  # workers start in several threads, and share one copy


@contextmanager
def grading_folder() -> Iterator[Path]:
    """A new folder that goes at the end."""
    path, descriptor = _make(WORK)
    path.chmod(_PASSABLE)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def readable_prefix() -> str | None:
    """The PYTHONHOME with which any user can read the library: None for the interpreter's own, else that of a copy."""
    if os.geteuid() != 0 or _closed(_library()) is None:
        return None
    with _copying:
        return str(_copy())


def closed_folder() -> Path | None:
    """A folder that keeps submissions of other users from the library and from any copy of it; None if all is well."""
    if os.geteuid() != 0 or _closed(_library()) is None:
        return None
    return _closed(Path(tempfile.gettempdir()).resolve())


def scratch_folder(directory: Path) -> Path:
    """A new folder of a worker in the grader's."""
    path = Path(tempfile.mkdtemp(dir=directory))
    path.chmod(_PASSABLE)
    return path


def _make(prefix: str) -> tuple[Path, int]:
    """(a new folder, the descriptor that holds its lock)."""
    _remove_leftovers(prefix)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        descriptor = _lock(path)
        # Between the two lines another grader may have taken the folder for a leftover.
        if descriptor is not None and path.is_dir():
            return path, descriptor
        if descriptor is not None:
            os.close(descriptor)


def _remove_leftovers(prefix: str) -> None:
    """Remove the folders of this user that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        descriptor = _lock(path)
        if descriptor is None:
            continue
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where another holds it, or there is no such folder of ours."""
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


def _library() -> Path:
    """The folder of the library's modules, that of the base interpreter also in a virtual environment."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def _closed(path: Path) -> Path | None:
    """The outermost of `path` and the folders above it that other users may not enter; None if they may enter all."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


@functools.cache
def _copy() -> Path:
    """A prefix of Python with a copy of the library, removed when this process ends."""
    prefix, _ = _make(LIBRARY)  # its descriptor is never closed: free when this process has ended
    atexit.register(shutil.rmtree, prefix, ignore_errors=True)
    library = _library()
    # With the times of the files, or Python would not trust the compiled ones among them.
    shutil.copytree(
        library,
        prefix / sys.platlibdir / library.name,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
        ignore_dangling_symlinks=True,
    )
    # Neither the umask of this process nor the modes of the library matter.
    for folder, _, names in os.walk(prefix):
        for path, mode in ((Path(folder), 0o755), *((Path(folder, name), 0o644) for name in names)):
            path.chmod(mode)
            os.utime(path, (_NEVER_RENEWED, path.stat().st_mtime))
    return prefix
