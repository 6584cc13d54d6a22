"""The isolated side: a warm process that forks once per execution. It runs code and returns answers, never verdicts.

The warm process reads nothing but descriptors and one-byte commands; the child reads its job (code, inputs) itself, so
that no submission finds another's in inherited memory. The child confines itself, says `ready`, compiles, runs, and
writes one JSON line per input on the one answer pipe, each with the job's nonce and index. Neither process ever holds
an expected value.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import sandbox, wire

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

Emit = Callable[..., None]


def serve(control_fd: int) -> None:
    """Serve executions until the control socket closes."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules[__name__.rpartition(".")[0]].__path__ = []  # nothing more of the grader can be imported
    warnings.simplefilter("ignore")
    sandbox.adopt_orphans()
    control = socket.socket(fileno=control_fd)
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    child = 0
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if child:
            kill_tree(child)
            child = 0
        if command == EXECUTE:
            child = os.fork()
            if child == 0:
                control.close()
                _run_child(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        elif command == KILL:
            control.sendall(DEAD)
        else:
            return


def kill_tree(child: int) -> None:
    """Kill and reap `child`, its group and everything that was orphaned to this process; exit if something survives."""
    for kill in (os.kill, os.killpg):  # the group does not exist before the child's setsid
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            _kill_children()
            time.sleep(0.0002)
    os._exit(1)


def _kill_children() -> None:
    """SIGKILL to every live direct child; orphans of the killed become direct children in their turn."""
    own = os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208 (pathlib is slower here)
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    os.kill(int(name), signal.SIGKILL)


def _run_child(descriptors: Sequence[int]) -> None:
    """Read the job, confine this process, execute; never returns. Dying before `ready` is an infrastructure failure."""
    try:
        os.setsid()
        job_fd, answer_fd, stdout_fd, directory_fd = descriptors
        with open(job_fd, "rb") as file:  # noqa: PTH123
            job = json.load(file)
        os.fchdir(directory_fd)
        emit = _enter(job, answer_fd, stdout_fd)
        emit(ready=True)
        _execute(job, emit)
        sys.stdout.flush()
    finally:
        os._exit(0)


def _enter(job: dict[str, Any], answer_fd: int, stdout_fd: int) -> Emit:
    """Standard streams, limits, isolation; the one descriptor left is the answer pipe, where nobody expects it."""
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (stdout_fd, 1), (null, 2), (answer_fd, job["answer_fd"])):
        os.dup2(source, target, inheritable=False)
    os.closerange(3, job["answer_fd"])
    os.closerange(job["answer_fd"] + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = io.StringIO()
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    random.seed(0)
    sandbox.limit_resources(job["cpu_s"])
    if job["tier"] == "B":
        sandbox.enter_tier_b(job["uid"], job["writable"])
    nonce = job.pop("nonce")

    def emit(**fields: Any) -> None:
        """One strict JSON line on the answer pipe."""
        line = json.dumps({"nonce": nonce, **fields}, allow_nan=False)
        if len(line) >= wire.MAX_LINE:
            line = json.dumps({"nonce": nonce, "i": fields.get("i"), "error": "WireError: answer too long"})
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(job["answer_fd"], data) :]

    return emit


def describe(error: BaseException) -> str:
    """`Type: message`, one line; guarded, because the message is the submission's code."""
    try:
        return f"{type(error).__name__}: {error}".split("\n")[0][:500]
    except BaseException:
        return type(error).__name__


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
        return
    ACTIONS[job["action"]](job, namespace, emit)


def _emit_values(evaluations: Iterable[Callable[[], Any]], emit: Emit) -> None:
    """One line per evaluation: its value in wire form, or the error it raised."""
    for i, evaluate in enumerate(evaluations):
        try:
            fields = {"value": wire.encode(evaluate())}
        except BaseException as error:
            fields = {"error": describe(error)}
        emit(i=i, **fields)


def answer(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """The method's value on every input, each on a fresh Solution and freshly decoded arguments."""

    def call(arguments: Any) -> Any:
        return getattr(namespace["Solution"](), job["func_name"])(*wire.decode(arguments))

    _emit_values((lambda a=arguments: call(a) for arguments in job["inputs"]), emit)


def evaluate(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """The value of every expression, each in its own copy of the namespace."""
    _emit_values((lambda e=text: eval(e, dict(namespace)) for text in job["expressions"]), emit)


def call_run_tests(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """True when run_tests, a function or a method of Solution, exists and returns without raising."""

    def run() -> bool:
        if "run_tests" in namespace:
            namespace["run_tests"]()
        else:
            namespace["Solution"]().run_tests()
        return True

    _emit_values([run], emit)


def call_run_tests_on_stub(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """`call_run_tests` after the method that it should test was replaced by one that returns 0."""
    if not isinstance(namespace.get("Solution"), type):
        namespace["Solution"] = type("Solution", (), {})
    type.__setattr__(namespace["Solution"], job["func_name"], lambda *args, **kwargs: 0)
    call_run_tests(job, namespace, emit)


def drive(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """Run the method of one Solution on every input for its side effects; True when its `valid` is exactly True."""

    def run() -> bool:
        solution = namespace["Solution"]()
        for arguments in job["inputs"]:
            with contextlib.suppress(BaseException):
                getattr(solution, job["func_name"])(*wire.decode(arguments))
        return solution.valid is True

    _emit_values([run], emit)


ACTIONS: dict[str, Callable[[dict[str, Any], dict[str, Any], Emit], None]] = {
    action.__name__: action for action in (answer, evaluate, call_run_tests, call_run_tests_on_stub, drive)
}
