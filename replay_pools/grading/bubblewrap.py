"""Isolation tier A: the bubblewrap command line that starts a warm worker in namespaces of its own.

Inside there is no network, no other process, no /proc, two device nodes, the Python library and the grading files
read-only, and one small tmpfs. The worker is process 1 of its namespace: the kernel kills everything in it when the
worker dies, and the worker when the grader dies. Submissions are then confined one by one as in tier B.
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
PACKAGE = "/grading"  # this folder, inside

_SCRATCH_BYTES = 4 * sandbox.FILE_BYTES
_PROBE_S = 30.0
# What a root worker needs to give each submission a uid of its own and to kill it; an ordinary user has none.
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")


def command() -> list[str]:
    """The words that put the command which follows them into the sandbox."""
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    if os.geteuid() == 0:  # a user namespace would map one uid only, and every submission needs its own
        words += ["--cap-drop", "ALL", *(word for name in _CAPABILITIES for word in ("--cap-add", name))]
    else:
        words += ["--unshare-user"]
    python = (sandbox.INTERPRETER, f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/{sys.platlibdir}")
    readable = (*python, *sandbox.LIBRARY)
    folders = {str(folder) for path in (*readable, *sandbox.DEVICES) for folder in Path(path).parents} - {"/"}
    for folder in sorted(folders):  # which bubblewrap would close to any other uid
        words += ["--perms", "0755", "--dir", folder]
    for path in readable:
        words += ["--ro-bind-try", path, path]
    for path in _foreign(readable):
        words += ["--perms", "0000", "--size", "4096", "--tmpfs", path]
    for path in sandbox.DEVICES:
        words += ["--dev-bind", path, path]
    words += ["--ro-bind", str(Path(__file__).parent), PACKAGE]
    words += ["--size", str(_SCRATCH_BYTES), "--tmpfs", SCRATCH]
    return [*words, "--chdir", "/", "--remount-ro", "/", "--"]


def _foreign(folders: Iterable[str]) -> list[str]:
    """Folders of installed packages in Python's library below `folders`."""
    libraries = {path.resolve() for folder in folders for path in Path(folder).glob("python3*")}
    found = (path / name for path in libraries for name in sandbox.FOREIGN)
    return sorted(str(path) for path in found if path.is_dir())


@functools.cache
def lacking() -> list[str]:
    """What this machine lacks for the sandbox, in words; [] when an interpreter was seen to run in it."""
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
