"""The confinement of one submission by the kernel: all of isolation tier B, and the inner layer of tier A.

A process that calls `confine` gets resource limits, as root another uid, no_new_privs, the Landlock rules and the
seccomp filter, and becomes non-dumpable. Its children inherit all of it, and none of it can be undone.
Standard library only: this file runs inside the worker.
"""

import contextlib
import ctypes
import math
import os
import random
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import landlock, seccomp  # relative: the worker loads this package under another name

UNSAFE = "unsafe-local"  # the tier of resource limits alone
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
SCRATCH_BYTES = 4 * FILE_BYTES  # of the file system that a worker writes to
MAX_DESCRIPTORS = 96
MAX_THREADS = 64
# The base interpreter: the folder of a virtual environment would show its installed packages.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
DEVICES = ("/dev/null", "/dev/urandom")
# Folders of installed packages, never readable: this package, with the solutions of its problems, is one of them.
FOREIGN = ("site-packages", "dist-packages")
LIBRARY = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")  # readable if they exist

_TRANSIENT_UIDS = range(61184, 65520)  # of no real user: the range that systemd hands out to dynamic users
_CAPABILITY_VERSION = 0x20080522
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36

_libc = ctypes.CDLL(None, use_errno=True)


def free_uids(count: int) -> list[int | None]:
    """Return `count` different uids without a process, for submissions to run as; all None when not started as root."""
    if os.geteuid() != 0:
        return [None] * count
    used = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            # A process may end between the listing and the question.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                used.add(path.stat().st_uid)
    # At random, so that two graders that start together hardly ever take the same.
    return random.SystemRandom().sample([uid for uid in _TRANSIENT_UIDS if uid not in used], count)


def _children(folders: Iterable[str], excepted: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths in `folders`, except names that begin with one of `excepted`; skip unreadable folders."""
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in Path(folder).iterdir():
                if not path.name.startswith(excepted):
                    yield str(path)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (Linux), so that it can kill daemons."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def ruleset_of(tier: str, scratch: str) -> int | None:
    """Prepare the Landlock rules of a tier, before the forks; None = without Landlock.

    Args:
        tier: "A", "B" or "unsafe-local" (resource limits alone).
        scratch: a submission may rewrite the existing files of this folder, and no other file.

    Raises:
        OSError: tier B on a kernel without Landlock.
    """
    if tier == UNSAFE or (tier == "A" and not landlock.landlock_abi()):
        return None
    return landlock.create_ruleset(
        listable=sys.path,  # in a worker: the folders of Python's library alone, which imports have to list
        readable=(*_children(sys.path, FOREIGN), *_children(LIBRARY, ("python",)), *DEVICES),
        writable=("/dev/null", scratch),
    )


def confine(*, tier: str, uid: int | None, ruleset: int | None, cpu_s: float) -> None:
    """Confine this process and its descendants for good.

    Args:
        tier: as in `ruleset_of`.
        uid: the user (and the group of the same number) to become, with at most MAX_THREADS threads; None = no change.
            The kernel counts threads by user. A submission under the grader's uid would be charged for all processes of
            that user, so there only the limit of address space bounds its threads.
        ruleset: of `ruleset_of`.
        cpu_s: limit of CPU seconds.

    Raises:
        OSError: on any failure; the caller must then not run a submission.
    """
    limits = {
        # The hard limit of all threads kills without a signal that could be caught. A quarter above the limit, since
        # the kernel counts clock ticks here; the grader judges by the CPU time that was used.
        resource.RLIMIT_CPU: math.ceil(1.25 * cpu_s),
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: MAX_DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        # A hard limit that is already lower stays: an ordinary user cannot raise it.
        _, hard = resource.getrlimit(name)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(name, (value, value))
    if tier == UNSAFE:
        return
    if uid is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_THREADS, MAX_THREADS))
        # Groups before the user: afterwards the right to change them is gone.
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # Every capability, also in a user namespace.
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
    # After the change of user, which would clear the first and reset the second.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        # Not once for the worker: every submission gets a new Landlock domain.
        landlock.restrict_self(ruleset)
    # Last: the filter would refuse some of the calls above.
    seccomp.install_filter()
