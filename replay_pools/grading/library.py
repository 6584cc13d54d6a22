"""Where Python's library is, and a copy of it for users that cannot reach it there.

In tier B a root's submission becomes another user, which Landlock lets read the library but which has no way to a
library below a closed folder, such as /root/.pyenv. Then workers use a copy that everybody can read, made once per
process. An ordinary user's submissions keep its user, and the sandbox of tier A opens the folders above the library.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

from replay_pools.grading.sandbox import FOREIGN

# Installed packages, and what takes half of the space of a library: its tests, and what a C compiler needs.
_LEFT_OUT = (*FOREIGN, "test", "tests", "config-*", "*.a", "*.opt-?.pyc")

_PREFIX, _LOCK = "probe-python-", "lock"  # names of the copies, and of the file in each that its process locks
_copying = threading.Lock()  # workers start in several threads, and share one copy


def _library() -> Path:
    """The folder of the library's modules, that of the base interpreter also in a virtual environment."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def _closed(path: Path) -> Path | None:
    """The outermost of `path` and the folders above it that other users may not enter; None if they may enter all."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def closed_folder() -> Path | None:
    """A folder that keeps submissions of other users from the library and from any copy of it; None if all is well."""
    if os.geteuid() != 0 or _closed(_library()) is None:
        return None
    return _closed(Path(tempfile.gettempdir()).resolve())


def _remove_abandoned() -> None:
    """Remove the copies of processes that were killed, whose locks are free."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


@functools.cache
def _copy() -> tempfile.TemporaryDirectory[str]:
    """A prefix of Python with a copy of the library, removed when this process ends."""
    _remove_abandoned()
    prefix = tempfile.TemporaryDirectory(prefix=_PREFIX)
    lock = os.open(Path(prefix.name, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)  # never closed: free when this process has ended
    library = _library()
    copy = Path(prefix.name, sys.platlibdir, library.name)
    # With the times of the files, or Python would not trust the compiled ones among them.
    shutil.copytree(library, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
    # Neither the umask of this process nor the modes of the library matter.
    for folder, _, names in os.walk(prefix.name):
        Path(folder).chmod(0o755)
        for name in names:
            Path(folder, name).chmod(0o644)
    return prefix


def readable_prefix() -> str | None:
    """The PYTHONHOME with which any user can read the library: None for the interpreter's own, else that of a copy."""
    if os.geteuid() != 0 or _closed(_library()) is None:
        return None
    with _copying:
        return _copy().name
