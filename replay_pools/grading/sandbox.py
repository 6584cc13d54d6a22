"""Isolation tier B: what the kernel enforces on a submission without user namespaces, by ctypes.

Resource limits, another uid (as root), non-dumpable, no_new_privs, Landlock, seccomp; all inherited, none to be undone.
What it does not stop: reading the Python library and /usr/lib, `stat` of paths, timing, using its CPU seconds and its
memory limit, a kernel bug, and whatever a submission does to the interpreter that runs it (which is why that
interpreter holds no verdict and no expected value).
Standard library only: runs inside the worker.
"""

import ctypes
import math
import os
import random
import resource
import signal
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from . import landlock, seccomp  # relative: the worker loads this package under another name

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
MAX_DESCRIPTORS = 64
MAX_THREADS = 64

_TRANSIENT_UIDS = range(61184, 65520)  # nobody's: the range that systemd hands out to dynamic users
_READABLE = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/dev/urandom")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36

_libc = ctypes.CDLL(None, use_errno=True)


def missing_for_tier_b() -> list[str]:
    """What this machine lacks for tier B; empty when it has everything."""
    if not sys.platform.startswith("linux"):
        return ["Linux"]
    lacking = [] if landlock.landlock_abi() else ["Landlock"]
    return lacking if seccomp.seccomp_available() else [*lacking, "seccomp"]


def free_uids(count: int) -> list[int | None]:
    """`count` different uids that own no process, to run submissions as; None for each when not root."""
    if os.geteuid() != 0:
        return [None] * count
    used = {path.stat().st_uid for path in Path("/proc").iterdir() if path.name.isdigit() and path.exists()}
    return random.SystemRandom().sample([uid for uid in _TRANSIENT_UIDS if uid not in used], count)


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


def enter_tier_b(uid: int | None, writable: Sequence[str]) -> None:
    """Confine this process; it may rewrite the existing files `writable` and nothing else. OSError on any failure."""
    ruleset = landlock.create_ruleset((sysconfig.get_path("stdlib"), *_READABLE), ("/dev/null", *writable))
    drop_user(uid)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict_self(ruleset)
    seccomp.install_filter()
