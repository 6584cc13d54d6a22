"""Isolation tier A: the command line of bubblewrap (`bwrap`) that starts a warm worker in namespaces of its own.

Inside, the worker finds no network, no other process and no /proc; the Python library and the files of this folder,
read-only; two device nodes; and one small file system in memory that it can write. It is process 1 of its namespace:
when it dies, the kernel kills everything in the namespace, and it dies with the grader. Submissions are then confined
one by one as in tier B.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from replay_pools.grading import sandbox

SCRATCH = "/scratch"  # the only place that can be written, inside
PACKAGE = "/grading"  # where this folder is, inside

_SCRATCH_BYTES = 4 * sandbox.FILE_BYTES
_PROBE_S = 30.0
# What a root worker needs to give each submission a uid of its own and to kill it; an ordinary user has none.
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")


def command() -> list[str]:
    """The words to put before a command, to run it in the sandbox."""
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    if os.geteuid() == 0:  # a user namespace would map one uid only, and every submission needs its own
        words += ["--cap-drop", "ALL"]
        for name in _CAPABILITIES:
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
    # Installed packages lie below the library: cover them with empty file systems that nobody may enter.
    for path in _foreign(readable):
        words += ["--perms", "0000", "--size", "4096", "--tmpfs", path]
    for path in sandbox.DEVICES:
        words += ["--dev-bind", path, path]
    words += ["--ro-bind", str(Path(__file__).parent), PACKAGE]
    words += ["--size", str(_SCRATCH_BYTES), "--tmpfs", SCRATCH]
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
def lacking() -> list[str]:
    """What this machine lacks for the sandbox, in words; [] when a Python interpreter was started in it."""
    if shutil.which("bwrap") is None:
        return ["bubblewrap (bwrap on PATH)"]
    probe = ["-I", "-S", "-c", "import ctypes, sys; open(sys.argv[1]).close()", f"{PACKAGE}/{Path(__file__).name}"]
    try:
        subprocess.run(
            [*command(), sandbox.INTERPRETER, *probe], check=True, capture_output=True, text=True, timeout=_PROBE_S
        )
    except subprocess.CalledProcessError as error:
        return [f"a bubblewrap that works ({(error.stderr.strip() or 'no reason given').splitlines()[-1]})"]
    except subprocess.TimeoutExpired:
        return ["a bubblewrap that works (no end of its probe)"]
    return []
