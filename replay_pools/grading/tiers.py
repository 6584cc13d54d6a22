"""The isolation tiers: which ones this machine can provide, and which one a grader uses.

A             bubblewrap namespaces around all of tier B (its Landlock part where the kernel has Landlock)
B             Landlock, seccomp, resource limits and, as root, another uid
unsafe-local  resource limits alone; only where A and B are missing, and only when the user asks for it

To add a tier: add its row to `available_tiers`, better tiers first, and its steps to `sandbox.ruleset_of`,
`sandbox.confine` and `executor.Worker`.

The sandbox of tier A has no network, no other process and no /proc. A warm worker finds Python's library and the files
of this folder, read-only, two device nodes, and one small file system in memory. The worker is process 1 of its
namespace and dies with the grader, and the kernel then kills everything in the namespace. Each submission is confined
as in tier B.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from replay_pools.base.errors import InputError
from replay_pools.grading import landlock, sandbox, seccomp
from replay_pools.rollout import UNSAFE

CHANGES = {  # compared with tier A
    "B": "the same labels, but no namespaces around submissions",
    UNSAFE: "nothing but limits around submissions, which may write their own labels",
}


def available_tiers() -> dict[str, list[str]]:
    """Return {tier: the things that this machine lacks for it}, best tier first; [] for an available one."""
    if not sys.platform.startswith("linux"):
        return {"A": ["Linux"], "B": ["Linux"]}
    lacks_seccomp = [] if seccomp.seccomp_available() else ["seccomp"]
    lacks_landlock = [] if landlock.landlock_abi() else ["Landlock"]
    return {"A": bwrap_lacks() + lacks_seccomp, "B": lacks_landlock + lacks_seccomp}


def describe_tier(tier: str) -> str:
    """Name the tier; if it is not the best one, say why and what that changes."""
    if tier == "A":
        return "isolation A"
    lacking = ", ".join(available_tiers()["A"])
    return f"isolation {tier}" + (f" (A lacks {lacking}; {CHANGES[tier]})" if lacking else f" ({CHANGES[tier]})")


def choose_tier(*, tier: str | None = None, unsafe_local: bool = False) -> str:
    """Return the tier to grade under.

    Args:
        tier: "A" or "B" to insist on it; None for the best that is available.
        unsafe_local: without a tier to insist on, accept "unsafe-local" where neither A nor B is available.

    Raises:
        InputError: the tier that was asked for is not available, or none is and `unsafe_local` is False.
    """
    lacks = available_tiers()
    for name, lacking in lacks.items():
        if tier in (None, name) and not lacking:
            return name
    if unsafe_local and tier is None:
        return UNSAFE
    raise InputError(
        "grader isolation",
        expected="bubblewrap or Landlock, and seccomp, to confine model-written code",
        found="; ".join(f"tier {name} lacks {', '.join(lacking)}" for name, lacking in lacks.items()),
        fix="install bubblewrap, use a Linux kernel >= 5.13 with Landlock, or accept the risk with --unsafe-local",
    )


SCRATCH = "/scratch"  # the only place that can be written, inside
PACKAGE = "/grading"  # where this folder is, inside

_PROBE_S = 30.0
# A worker of root needs these to give a submission another uid and to kill it. Submissions have none of them.
_ROOT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")


def bwrap_command() -> list[str]:
    """The words to put before a command, to run it in the sandbox."""
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    if os.geteuid() == 0:  # a user namespace would map one uid only, and every submission needs its own
        words += ["--cap-drop", "ALL"]
        for name in _ROOT_CAPABILITIES:
            words += ["--cap-add", name]
    else:
        words += ["--unshare-user"]
    python = (sandbox.INTERPRETER, f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/{sys.platlibdir}")
    readable = (*python, *sandbox.LIBRARY)
    folders = set()
    for path in (*readable, *sandbox.DEVICES):
        folders.update(str(folder) for folder in Path(path).parents)
    # Parents that bubblewrap made by itself would be closed to any other uid.
    for folder in sorted(folders - {"/"}):
        words += ["--perms", "0755", "--dir", folder]
    for path in readable:
        words += ["--ro-bind-try", path, path]
    # Installed packages lie below the library: cover them with empty file systems without any permission.
    for path in _foreign(readable):
        words += ["--perms", "0000", "--size", "4096", "--tmpfs", path]
    for path in sandbox.DEVICES:
        words += ["--dev-bind", path, path]
    words += ["--ro-bind", str(Path(__file__).parent), PACKAGE]
    words += ["--size", str(sandbox.SCRATCH_BYTES), "--tmpfs", SCRATCH]
    return [*words, "--chdir", "/", "--remount-ro", "/", "--"]


def _foreign(folders: Iterable[str]) -> list[str]:
    """Folders of installed packages in the Python libraries directly below `folders`."""
    packages = set()
    for folder in folders:
        for library in Path(folder).glob("python3*"):
            for name in sandbox.FOREIGN:
                path = library.resolve() / name  # /lib may be a link to /usr/lib
                if path.is_dir():
                    packages.add(str(path))
    return sorted(packages)


@functools.cache
def bwrap_lacks() -> list[str]:
    """Return the things that this machine lacks for the sandbox; [] when a Python interpreter was started in it."""
    if shutil.which("bwrap") is None:
        return ["bubblewrap (bwrap on PATH)"]
    probe = ["-I", "-S", "-c", "import ctypes, sys; open(sys.argv[1]).close()", f"{PACKAGE}/{Path(__file__).name}"]
    try:
        subprocess.run(
            [*bwrap_command(), sandbox.INTERPRETER, *probe],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
        )
    except subprocess.CalledProcessError as error:
        return [f"a bubblewrap that works ({(error.stderr.strip() or 'no reason given').splitlines()[-1]})"]
    except subprocess.TimeoutExpired:
        return ["a bubblewrap that works (no end of its probe)"]
    return []
