"""Locks of what a command writes: one process at a time, and whoever waits hears who holds it.

    with locked(Path("out/pools/mine")):
        ...                             # nobody else that asks for the lock writes there

The lock is the kernel's (`flock`, by filelock) on a hidden file beside the folder, so it ends with its process, however
that ends. The file says who holds it, and goes with the lock. A file system without such locks is used without.
"""

import errno
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from replay_pools.errors import InputError
from replay_pools.visible import without_secrets

UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder or file that this process writes.

    Raises:
        InputError: another process holds it; the message says which.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside it and not inside: a folder that is refused, or not begun, stays as it is.
    file = path.parent / f".{path.name}.lock"
    lock = FileLock(file, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        holder = ""
        with suppress(OSError):  # it may have gone meanwhile
            holder = file.read_text(errors="replace")
        found, fix = holder or "a process that has just begun", "wait for it, or choose another name"
        raise InputError(path, expected="nobody else who writes it", found=found, fix=fix) from error
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    try:
        since, command = time.strftime("%Y-%m-%d %H:%M:%S"), without_secrets(shlex.join(sys.argv))[:300]
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since}: {command}"
        file.write_text(holder, errors="replace")
        yield
    finally:
        # While the lock is held: whoever opened the file meanwhile sees that it has gone, and makes another.
        file.unlink(missing_ok=True)
        lock.release()
