"""Linux namespaces of a worker, called by ctypes: what its executions share is read-only, and none can count another's.

Two executions that may not speak to each other still share files, whose access times a read would change, and the
kernel's count of processes. So a worker of tier B sees every file system of the host read-only (such a mount keeps no
access times) and no /proc, and writes to a file system in memory of its own (`seal_files`). In both tiers every
execution counts its processes from 1 (`ProcessNumbers`).

This takes a right that root has, unless a container took it away, and that an ordinary user has where the system
permits user namespaces. Where it is missing, tier B works without.
Standard library only: this file runs inside the worker.
"""

import ctypes
import os
import signal
from pathlib import Path

_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES = 0x20000, 0x10000000, 0x20000000  # CLONE_NEWNS, _NEWUSER, _NEWPID
_NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _RECURSIVE, _PRIVATE = 2, 4, 8, 0x4000, 1 << 18  # MS_*
_MOUNT_SETATTR, _PIDFD_OPEN = 442, 434  # the same numbers on every architecture
_HERE, _ALL_BELOW, _READ_ONLY = -100, 0x8000, 1  # AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    """The result of a call of libc; OSError on failure."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def seal_files(scratch: str, size: int) -> None:
    """Make every mount read-only for this process and its children, but for a new file system of `size` bytes.

    Args:
        scratch: existing folder that the new file system covers.

    Raises:
        OSError: this process may make no mount namespace; then nothing has changed.
    """
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER | _NEW_PROCESSES))
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _move_into_namespace()
    _mount("/", None, _RECURSIVE | _PRIVATE, "")
    for path, options in ((scratch, f"size={size},mode=0755"), ("/proc", "size=4096,mode=0555")):
        _mount(path, b"tmpfs", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS, options)
    _set_attributes("/", _ALL_BELOW, on=_READ_ONLY)
    _set_attributes(scratch, 0, off=_READ_ONLY)


def _move_into_namespace() -> None:
    """Go on in a child, process 1 of a namespace that belongs to this user, from where others can be made."""
    if child := os.fork():
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        os.waitpid(child, 0)
        os._exit(0)
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))


def _mount(path: str, kind: bytes | None, flags: int, options: str) -> None:
    _checked(_libc.mount(kind, path.encode(), kind, ctypes.c_ulong(flags), options.encode()))


def _set_attributes(path: str, flags: int, *, on: int = 0, off: int = 0) -> None:
    """Set and clear attributes of the mount at `path` (struct mount_attr: set, clear, propagation, user namespace)."""
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call = ctypes.c_long(_MOUNT_SETATTR)
    _checked(_libc.syscall(call, _HERE, path.encode(), flags, ctypes.byref(attributes), size))


class ProcessNumbers:
    """A namespace of processes for each execution; without the right to make one, nothing."""

    def __init__(self) -> None:
        self._home = _libc.syscall(ctypes.c_long(_PIDFD_OPEN), os.getpid(), 0)

    def restart(self) -> None:
        """Let the next fork be process 1 of a new namespace, where it can name no other process.

        The kernel keeps process 1 from being ended by a signal of its own; the filter sees to SIGKILL and SIGSTOP.
        """
        # Back home first, because a namespace is made from there alone.
        _libc.setns(self._home, _NEW_PROCESSES)
        _libc.unshare(_NEW_PROCESSES)
