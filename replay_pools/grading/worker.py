"""The isolated side: a warm process that forks once per execution. It runs code and returns answers, never verdicts.

The warm process reads nothing but descriptors and one-byte commands; the child reads its job (code, inputs) itself, so
that no submission finds another's in inherited memory. The child confines itself, says `ready`, compiles, runs, and
writes one JSON line per input on the one answer pipe, each with the job's nonce and index. Neither process ever holds
an expected value. When the tree is dead, the warm process hands back its exit status and its marker file.

Honest limit: the child shares its interpreter with the submission. One that finds the nonce by walking frames can forge
the two in-process channels (`run_tests`, `sentinel`), which pays what their by-design exploit pays, and can send any
answer it likes, which has to be right to count.
Standard library only; `executor.py` starts it as `isolated.worker`, outside the package.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import random
import signal
import socket
import sys
import time
import types
import warnings
from collections.abc import Sequence
from typing import Any

from . import sandbox, wire
from .actions import ACTIONS, Emit, describe

# Imported before the fork: cheaper, and the same set is there when the library is unreadable to the dropped uid.
PRELOADED = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections.abc", "concurrent.futures.thread",
    "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "difflib", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq",
    "inspect", "io", "itertools", "json", "logging", "math", "numbers", "operator", "pprint", "queue", "random", "re",
    "secrets", "statistics", "string", "struct", "textwrap", "threading", "time", "timeit", "traceback", "types",
    "typing", "unicodedata", "unittest", "uuid", "weakref", "zlib", "encodings.ascii",
    "encodings.latin_1",
)  # fmt: skip
EXECUTE, KILL, READY, DEAD = b"x", b"k", b"r", b"d"  # commands and replies on the control socket
KILL_S = 10.0  # a tree that outlives this is an infrastructure failure


def serve(*, control_fd: int, marker: str, scratch: str, **confinement: Any) -> None:
    """Serve executions until the control socket closes.

    Args:
        control_fd: stream socket to the grader.
        marker: name of the one file that an execution finds in its directory, empty, and may write.
        scratch: existing folder of this worker alone, where each execution gets its directory.
        confinement: the other arguments of `Confinement.prepare`.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules[__name__.rpartition(".")[0]].__path__ = []  # nothing more of the grader can be imported
    os.environ.pop("PWD", None)  # bubblewrap sets it
    os.umask(0o022)
    warnings.simplefilter("ignore")
    sandbox.adopt_orphans()
    confined = sandbox.Confinement.prepare(scratch=scratch, **confinement)
    control = socket.socket(fileno=control_fd)
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if command != EXECUTE:
            return
        _serve_one(control, descriptors, scratch, marker, confined)


def _serve_one(
    control: socket.socket, descriptors: Sequence[int], scratch: str, marker: str, confined: sandbox.Confinement
) -> None:
    """One execution in a new folder: fork; on the grader's word kill the tree and hand back what it left."""
    directory = f"{scratch}/run"
    os.mkdir(directory, 0o755)  # noqa: PTH102 (pathlib is slower here)
    marker = f"{directory}/{marker}"  # it exists, so that no submission needs the right to create files
    file = os.open(marker, os.O_CREAT | os.O_EXCL)
    os.fchmod(file, 0o666)  # the submission may have another uid; nobody else gets into `scratch`
    os.close(file)
    child = os.fork()
    if child == 0:
        control.close()
        _run_child(descriptors, directory, confined)
    for descriptor in descriptors:
        os.close(descriptor)
    control.recv(1)  # KILL, or the end of the grader
    code = kill_tree(child)
    left = _open_left(marker)
    _wipe(scratch)  # before the reply: then a file with a name that is left had another one than the marker's
    with contextlib.suppress(OSError):  # the end of the grader
        socket.send_fds(control, [DEAD + code.to_bytes(2, "big", signed=True)], left)
    for descriptor in left:
        os.close(descriptor)


def _open_left(path: str) -> list[int]:
    """The descriptor of what is at `path`; [] for nothing, a link or something unreadable (a fifo never blocks)."""
    try:
        return [os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)]
    except OSError:
        return []


def _wipe(folder: str) -> None:
    """Remove everything below `folder`; what cannot be removed ends this worker, and its next execution fails."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _wipe(entry.path)
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def kill_tree(child: int) -> int:
    """Kill and reap `child`, its group and everything that was orphaned to this process; exit if something survives.

    Returns:
        The status with which `child` exited by itself, or minus the number of the signal that killed it.
    """
    for kill in (os.kill, os.killpg):  # the group does not exist before the child's setsid
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            _kill_children()
            time.sleep(0.0002)
    os._exit(1)


def _kill_children() -> None:
    """SIGKILL to every live direct child; orphans of the killed become direct children in their turn."""
    own = os.getpid()
    if own == 1:  # tier A: of a namespace in which every other process is a descendant
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    os.kill(int(name), signal.SIGKILL)


def _run_child(descriptors: Sequence[int], directory: str, confined: sandbox.Confinement) -> None:
    """Read the job, confine this process, execute; never returns. Dying before `ready` is an infrastructure failure.

    Exits as Python does for a SystemExit that escapes, and with 1 otherwise: a submission that does not leave by itself
    has no status of its own.
    """
    status = 1
    try:
        os.setsid()
        with open(descriptors[0], "rb") as file:  # noqa: PTH123
            job = json.load(file)
        os.chdir(directory)
        emit = _enter(job, descriptors[1:], confined)
        emit(ready=True)
        _execute(job, emit)
    except SystemExit as leaving:
        status = 0 if leaving.code is None else leaving.code & 0xFF if isinstance(leaving.code, int) else 1
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)


def _enter(job: dict[str, Any], pipes: Sequence[int], confined: sandbox.Confinement) -> Emit:
    """Standard streams, isolation; the one descriptor left is the answer pipe, where nobody expects it."""
    answer_fd = job["answer_fd"]
    null = os.open(os.devnull, os.O_RDWR)
    answers, stdout = (*pipes, null)[:2]
    for source, target in ((null, 0), (stdout, 1), (null, 2), (answers, answer_fd)):
        os.dup2(source, target, inheritable=False)
    _close_all_but(answer_fd, confined.ruleset)
    sys.stdin = io.StringIO()
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    random.seed(job["seed"])
    confined.enter()
    nonce = job.pop("nonce")

    def emit(**fields: Any) -> None:
        """One strict JSON line on the answer pipe."""
        line = json.dumps({"nonce": nonce, **fields}, allow_nan=False)
        if len(line) >= wire.MAX_LINE:
            line = json.dumps({"nonce": nonce, "i": fields.get("i"), "error": "WireError: answer too long"})
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(answer_fd, data) :]

    return emit


def _close_all_but(*kept: int | None) -> None:
    """Close every descriptor above 2 that is not in `kept`."""
    first = 3
    for descriptor in sorted(number for number in kept if number is not None):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _execute(job: dict[str, Any], emit: Emit) -> None:
    """Setup code, then the submission, in a fresh module; then the action of the job."""
    module = types.ModuleType(job["module"])
    sys.modules[job["module"]] = module
    namespace = module.__dict__
    try:
        exec(compile(job["setup"], "<setup>", "exec"), namespace)
    except BaseException as error:
        emit(setup_error=describe(error))
        return
    try:
        code = compile(job["source"], "<submission>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        emit(compiled=False, error=describe(error))
        return
    emit(compiled=True)
    try:
        exec(code, namespace)
    except BaseException as error:
        emit(error=describe(error))
        raise
    ACTIONS[job["action"]](job, namespace, emit)
