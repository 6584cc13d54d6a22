"""The isolated side of grading: a warm process that forks once per execution. It returns answers, never verdicts.

The warm process receives only descriptors and one-byte commands. The forked child reads its job (code, inputs) itself,
so that no submission finds another job in inherited memory. The child confines itself, writes `ready`, runs the
submission, and writes one JSON line per input to its answer pipe, with the job's nonce and an index. Neither process
ever holds an expected value. When all processes of the execution are dead, the warm process sends the exit status, the
CPU time and the marker file to the grader.

Known limit: the child shares its interpreter with the submission. A submission that finds the nonce by walking frames
can forge the channels that run in its process (`run_tests`, `sentinel`, `eq_override`), and earns what their by-design
exploit earns. An answer that it sends in this way has to be right to count.
Standard library only: `executor.py` starts this file as `isolated.worker`, outside of its package.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import site
import socket
import struct
import sys
import time
import types
import warnings
from collections.abc import Sequence
from typing import Any

from . import actions, sandbox, wire
from .actions import UNEXECUTED, Emit, describe

# Imported before the fork, once for all submissions.
PRELOADED = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections.abc", "concurrent.futures.thread",
    "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "difflib", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq",
    "inspect", "io", "itertools", "json", "logging", "math", "numbers", "operator", "pprint", "queue", "random", "re",
    "secrets", "statistics", "string", "struct", "textwrap", "threading", "time", "timeit", "traceback", "types",
    "typing", "unicodedata", "unittest", "uuid", "weakref", "zlib", "encodings.ascii",
    "encodings.latin_1",
)  # fmt: skip
EXECUTE, KILL, END = b"x", b"k", b"e"  # commands on the control socket; b"" when the grader is dead
READY, DEAD = b"r", b"d"  # replies
DEATH = struct.Struct("!cii")  # the last reply of an execution: DEAD, exit status, CPU milliseconds
KILL_S = 10.0  # processes that outlive this are an infrastructure failure


def serve(*, control_fd: int, marker: str, scratch: str, folder: str | None, tier: str, uid: int | None) -> None:
    """Serve executions until the grader says END, or is dead.

    Args:
        control_fd: stream socket to the grader.
        marker: name of the one file that an execution finds in its directory, empty, and may write.
        scratch: existing folder that only this worker uses; the executions get their directory there.
        folder: the grader's folder, which the worker of a killed grader removes; None in tier A.
        tier, uid: see `sandbox.confine`.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules[__name__.rpartition(".")[0]].__path__ = []  # nothing more of the grader can be imported
    for name in ("PWD", "PYTHONHOME"):  # bubblewrap sets one, the executor may set the other
        os.environ.pop(name, None)
    sys.argv, sys.orig_argv = [""], [""]  # they named the tier, the uid and the folder
    os.umask(0o022)
    warnings.simplefilter("ignore")
    site.setquit()  # `exit` and `quit`, as every script has them
    sandbox.adopt_orphans()
    confined = {"tier": tier, "uid": uid, "ruleset": sandbox.ruleset_of(tier, scratch)}
    control = socket.socket(fileno=control_fd)
    # The collector of a child then leaves inherited objects alone, and their pages stay shared with this process.
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    command = KILL
    while command == KILL:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if command == EXECUTE:
            command = _serve_one(control, descriptors, scratch, marker, confined)
    with contextlib.suppress(OSError):
        _wipe(scratch)  # also for a grader that may not, as another user than root
    if not command and folder is not None:  # the grader was killed
        shutil.rmtree(folder, ignore_errors=True)  # its other workers do it too, and the last one succeeds


def _serve_one(
    control: socket.socket, descriptors: Sequence[int], scratch: str, marker: str, confined: dict[str, Any]
) -> bytes:
    """Serve one execution: fork, wait for the grader's command, kill all processes, send what they left.

    The marker file exists from the start, so that no submission needs the right to create files. It is open to all
    users, because the submission may have another uid; its folder is not. A remainder of the execution before that
    cannot be removed ends this worker.
    """
    _wipe(scratch)
    os.chmod(scratch, 0o711)  # noqa: PTH101 (pathlib is slower here)
    directory = f"{scratch}/run"
    os.mkdir(directory, 0o755)  # noqa: PTH102
    left = os.open(f"{directory}/{marker}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.fchmod(left, 0o666)
    if confined["tier"] != sandbox.UNSAFE:
        os.chmod(directory, 0o555)  # noqa: PTH101
        os.chmod(scratch, 0o511)  # noqa: PTH101
    child = os.fork()
    if child == 0:
        control.close()
        _run_child(descriptors, directory, confined)
    for descriptor in descriptors:
        os.close(descriptor)
    command = control.recv(1)
    exit_status, cpu_ms = kill_tree(child)
    with contextlib.suppress(OSError):  # the grader has ended
        # The file that was made above, whatever a submission without isolation may have put in its place.
        socket.send_fds(control, [DEATH.pack(DEAD, exit_status, cpu_ms)], [left])
    os.close(left)
    return command


def _wipe(folder: str) -> None:
    """Remove everything below `folder`; OSError when that is not possible."""
    os.chmod(folder, 0o700)  # noqa: PTH101
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _wipe(entry.path)
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def kill_tree(child: int) -> tuple[int, int]:
    """Kill and reap `child`, its process group and its orphans; end this worker if one of them survives KILL_S.

    Returns:
        The status with which `child` exited by itself, or minus the number of the signal that killed it; and the CPU
        milliseconds that it used, in all its threads.
    """
    # Both, because the group does not exist before the child's setsid.
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    cpu_ms = round(1000 * (usage.ru_utime + usage.ru_stime))
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status), cpu_ms
        if pid == 0:  # children are left, and none has ended yet
            _kill_children()
            time.sleep(0.0002)
    os._exit(1)


def _kill_children() -> None:
    """Kill every direct child. Their orphans become direct children, for the next call."""
    worker_pid = os.getpid()
    if worker_pid == 1:  # tier A: in this namespace every other process is a descendant
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    if not os.path.isdir("/proc"):  # noqa: PTH112
        return
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # "pid (name) state parent ...": a process chooses its name, which may hold ")", so take the last one.
                if int(file.read().rpartition(b")")[2].split()[1]) == worker_pid:
                    os.kill(int(name), signal.SIGKILL)


def _run_child(descriptors: Sequence[int], directory: str, confined: dict[str, Any]) -> None:
    """Read the job, confine this process, execute; never returns. An end before `ready` is an infrastructure failure.

    The exit status is the one that Python gives to a SystemExit that escapes, and 1 in any other case.
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
        if leaving.code is None:
            status = 0
        elif isinstance(leaving.code, int):
            status = leaving.code & 0xFF
    finally:
        try:
            sys.stdout.flush()
        finally:
            # Not sys.exit: no atexit hook or destructor of the submission may run on the way out.
            os._exit(status)


def _enter(job: dict[str, Any], pipes: Sequence[int], confined: dict[str, Any]) -> Emit:
    """Set up the standard streams and confine this process; return the function that writes to the answer pipe.

    The only other descriptor left is the answer pipe, at a number that the grader chose.
    """
    answer_fd = job["answer_fd"]
    null = os.open(os.devnull, os.O_RDWR)
    answers, stdout = (*pipes, null)[:2]  # without a second pipe, stdout is not captured
    for source, target in ((null, 0), (stdout, 1), (null, 2), (answers, answer_fd)):
        os.dup2(source, target, inheritable=False)
    _close_all_but(answer_fd, confined["ruleset"])
    # As Python has them: also under their second name, which keeps the file open when code replaces the first.
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    random.seed(0)
    sandbox.confine(**confined, cpu_s=job["cpu_s"])
    nonce = job.pop("nonce")  # the actions get the job, and need no nonce

    def emit(**fields: Any) -> None:
        """Write one line of JSON to the answer pipe."""
        line = json.dumps({"nonce": nonce, **fields})
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
    """Run the setup code and the submission in a new module, then the action of the job."""
    module = types.ModuleType(job["module"])
    module.__file__ = "solution.py"  # where programs look for their folder
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
        if job["action"] not in UNEXECUTED:
            exec(code, namespace)
    except BaseException as error:
        emit(error=describe(error))
        raise
    getattr(actions, job["action"])(job, namespace, emit)
