"""The confinement of one submission by the kernel: all of isolation tier B, and the inner layer of tier A.

A process that calls `Confinement.enter` gets resource limits, as root another uid, no_new_privs, the Landlock rules and
the seccomp filter, and becomes non-dumpable. Its children inherit all of it, and none of it can be undone.
Standard library only: this file runs inside the worker.
"""

import contextlib
import ctypes
import math
import os
import platform
import random
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from . import landlock, seccomp  # relative: the worker loads this package under another name

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


def limit_resources(cpu_s: int) -> None:
    """Set the resource limits of one execution: CPU seconds, address space, file size, descriptors, no core file."""
    limits = {
        # The hard limit of all threads kills without a signal that could be caught. A quarter above the limit, since
        # the kernel counts clock ticks here; the grader judges by the CPU time that was used.
        resource.RLIMIT_CPU: cpu_s + math.ceil(cpu_s / 4),
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


def drop_user(uid: int | None) -> None:
    """Become `uid` (and the group of the same number) for good, with at most MAX_THREADS threads; None: do nothing.

    The kernel counts threads by user. A submission under the grader's uid would be charged for all processes of that
    user, so there only the limit of address space bounds its threads.
    """
    if uid is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_THREADS, MAX_THREADS))
        # Groups before the user: afterwards the right to change them is gone.
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    """Give up every capability for good, also in a user namespace."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The confinement that all submissions of one warm process enter, prepared as far as possible before the forks."""

    uid: int | None  # the user that a submission becomes; None: no change of user
    ruleset: int | None  # descriptor of the Landlock rules; None: without Landlock
    filtered: bool  # with seccomp and the two above, not by resource limits alone

    @classmethod
    def prepare(cls, *, tier: str, uid: int | None, scratch: str) -> Self:
        """Prepare the confinement of a tier.

        Args:
            tier: "A", "B" or "unsafe-local" (resource limits alone).
            uid: the user that submissions become; None for no change.
            scratch: a submission may rewrite the existing files of this folder, and no other file.

        Raises:
            OSError: tier B on a kernel without Landlock.
        """
        if tier == "unsafe-local":
            return cls(uid=uid, ruleset=None, filtered=False)
        ruleset = None
        if tier == "B" or landlock.landlock_abi():
            ruleset = landlock.create_ruleset(
                listable=sys.path,  # in a worker: the folders of Python's library alone, which imports have to list
                readable=(*_children(sys.path, FOREIGN), *_children(LIBRARY, ("python",)), *DEVICES),
                writable=("/dev/null", scratch),
            )
        seccomp.build_filter(os.getpid(), platform.machine())  # fills the cache that `enter` uses after the fork
        return cls(uid=uid, ruleset=ruleset, filtered=True)

    def enter(self, cpu_s: int) -> None:
        """Confine this process for good, with a limit of CPU seconds.

        Raises:
            OSError: on any failure; the caller must then not run a submission.
        """
        limit_resources(cpu_s)
        if not self.filtered:
            return
        drop_user(self.uid)
        drop_capabilities()
        # After the change of user, which would clear the first and reset the second.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_DUMPABLE, 0)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if self.ruleset is not None:
            # Not once for the worker: every submission gets a new Landlock domain.
            landlock.restrict_self(self.ruleset)
        # Last: the filter would refuse some of the calls above.
        seccomp.install_filter()
