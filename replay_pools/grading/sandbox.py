"""What the kernel enforces on each submission, by ctypes: the whole of tier B, the inner layer of tier A.

Resource limits, another uid (as root), non-dumpable, no_new_privs, Landlock, seccomp; all inherited, none to be undone.
Standard library only: runs inside the worker.
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
MAX_DESCRIPTORS = 64
MAX_THREADS = 64
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # behind any virtual environment
DEVICES = ("/dev/null", "/dev/urandom")
FOREIGN = ("site-packages", "dist-packages")  # what is installed there, this package and its solutions included
LIBRARY = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")  # those of them that exist

_TRANSIENT_UIDS = range(61184, 65520)  # nobody's: the range that systemd hands out to dynamic users
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36

_libc = ctypes.CDLL(None, use_errno=True)


def free_uids(count: int) -> list[int | None]:
    """`count` different uids that own no process, to run submissions as; None for each when not root."""
    if os.geteuid() != 0:
        return [None] * count
    used = {path.stat().st_uid for path in Path("/proc").iterdir() if path.name.isdigit() and path.exists()}
    return random.SystemRandom().sample([uid for uid in _TRANSIENT_UIDS if uid not in used], count)


def _children(folders: Iterable[str], excepted: tuple[str, ...]) -> Iterator[str]:
    """What the folders hold, except names that begin with one of `excepted`; one that cannot be read holds nothing."""
    for folder in folders:
        with contextlib.suppress(OSError):
            yield from (str(path) for path in Path(folder).iterdir() if not path.name.startswith(excepted))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (Linux), so that a daemon can be found."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_resources(cpu_s: float) -> None:
    """Resource limits of one execution: CPU seconds, address space, file size, descriptors, no core file."""
    seconds = math.ceil(cpu_s) + 1  # the parent's wall clock comes first
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: MAX_DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def drop_user(uid: int | None) -> None:
    """Become `uid` (and the group of the same number), irrevocably, with at most MAX_THREADS threads; None: stay.

    Without a uid of its own the limit would count every process of the user, so address space bounds threads there.
    """
    if uid is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_THREADS, MAX_THREADS))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What every submission of one warm process enters; all that can be computed before the first fork is."""

    uid: int | None  # the user that a submission becomes; None: stay
    cpu_s: float
    ruleset: int | None  # descriptor of the Landlock rules; None: without Landlock
    filtered: bool  # by seccomp

    @classmethod
    def prepare(cls, *, tier: str, uid: int | None, cpu_s: float, scratch: str) -> Self:
        """The confinement of `tier`, in which the existing files below `scratch` may be rewritten and no other.

        Raises:
            OSError: the kernel has no Landlock, and tier B cannot do without.
        """
        if tier == "unsafe-local":
            return cls(uid=uid, cpu_s=cpu_s, ruleset=None, filtered=False)
        ruleset = None
        if tier == "B" or landlock.landlock_abi():
            ruleset = landlock.create_ruleset(
                listable=sys.path,  # of a worker: Python's library and nothing else; an import lists its folder
                readable=(*_children(sys.path, FOREIGN), *_children(LIBRARY, ("python",)), *DEVICES),
                writable=("/dev/null", scratch),
            )
        seccomp.build_filter(os.getpid(), platform.machine())  # warms the cache of its constant part
        return cls(uid=uid, cpu_s=cpu_s, ruleset=ruleset, filtered=True)

    def enter(self) -> None:
        """Confine this process, for ever. OSError on any failure."""
        limit_resources(self.cpu_s)
        if not self.filtered:
            return
        drop_user(self.uid)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        _prctl(_PR_SET_DUMPABLE, 0)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if self.ruleset is not None:
            landlock.restrict_self(self.ruleset)  # a domain of its own for every process that enters
        seccomp.install_filter()
