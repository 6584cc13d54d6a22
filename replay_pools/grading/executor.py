"""Drives one warm worker: sends a job, reads its answer pipe, kills the tree, then reads what the tree left behind.

grader                       warm worker                  child (confined)
  job file, pipes ------------ fds --->  directory, fork -->  reads the job, `ready`, runs
  <------------------- answer pipe -------------------------  one JSON line per input
  kill ---------------------------------->  kills and reaps every descendant
  <----- dead, exit status, marker file --  then: pipes to end of file

No descriptor of a directory goes either way: in tier A it would lead out of the sandbox.
"""

import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from replay_pools.environments.loopholes import FILE_MARKER_NAME
from replay_pools.grading import bubblewrap, sandbox, wire, worker
from replay_pools.grading.execution import MAX_CAPTURE, Code, InfrastructureError, Outcome, Run
from replay_pools.grading.oracle import AnswerStream

START_S = 30.0  # the warm process is ready within this, or it is an infrastructure failure
ENVIRONMENT = {"LC_CTYPE": "C.UTF-8", "PYTHONHASHSEED": "0"}  # all that a submission finds in os.environ

# -P, -s and an environment of our own are -I without -E, which would ignore the fixed hash seed.
_FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8", "-W", "ignore")
_BOOTSTRAP = (
    "import json, sys, types; package = types.ModuleType('isolated'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['isolated'] = package; from isolated.worker import serve; serve(**json.loads(sys.argv[2]))"
)


class Worker:
    """One warm worker process. Not thread-safe: one execution at a time.

    Args:
        tier: "A", "B", or "unsafe-local" for resource limits alone.
        uid: the user that submissions become; None to stay.
        directory: existing folder below which the worker gets its own; not used in tier A, which has none outside.
        timeout_s: wall seconds of an execution, from its `ready` line on.
    """

    def __init__(self, *, tier: str, uid: int | None, directory: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._scratch = None if tier == "A" else tempfile.mkdtemp(dir=directory)
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        arguments = {
            "control_fd": theirs.fileno(),
            "marker": FILE_MARKER_NAME,
            "scratch": self._scratch or bubblewrap.SCRATCH,
            "tier": tier,
            "uid": uid,
            "cpu_s": timeout_s,
        }
        outside, package = [], str(Path(__file__).parent)
        if tier == "A":
            outside, package = bubblewrap.command(), bubblewrap.PACKAGE
        with theirs:
            self._process = subprocess.Popen(
                [*outside, sandbox.INTERPRETER, *_FLAGS, "-c", _BOOTSTRAP, package, json.dumps(arguments)],
                pass_fds=(theirs.fileno(),),
                env=ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            if self._receive(len(worker.READY))[0] != worker.READY:
                raise InfrastructureError("worker: does not start")
        except InfrastructureError:
            self.close()
            raise

    def close(self) -> None:
        """End the worker and everything under it."""
        self._control.close()
        self._file.close()
        try:
            self._process.wait(worker.KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _send(self, command: bytes, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._control, [command], descriptors)
        except OSError as error:
            raise InfrastructureError(f"worker: {error}") from error

    def _receive(self, size: int) -> tuple[bytes, list[int]]:
        try:
            reply, descriptors, _, _ = socket.recv_fds(self._control, size, 1)
        except OSError as error:
            raise InfrastructureError(f"worker: {error}") from error
        return reply, descriptors

    def execute(self, code: Code, run: Run) -> Outcome:
        """Execute `code` as `run` says, in a fresh directory and a fresh process.

        Raises:
            InfrastructureError: nothing can be said about the submission; the worker must be replaced.
        """
        several = {"answer": code.inputs, "compare": code.inputs, "evaluate": run.expressions}
        num_answers = len(several.get(run.action, (None,)))
        stream = AnswerStream(nonce=secrets.token_hex(16), num_answers=num_answers)
        job = self._job(code, run, stream.nonce)
        to_end = run.read_stdout or run.read_file or run.action == "run_script"  # what it leaves at its end counts
        text = bytearray()
        with contextlib.ExitStack() as stack:
            answers, stdout = self._start(job, stack, run.read_stdout)
            timed_out = self._read(stream, answers, stdout, text, to_end=to_end)
            exit_status, file = self._kill()
            _drain(answers, None)
            if stdout is not None:
                _drain(stdout, text)
        return Outcome(
            answers=stream,
            timed_out=timed_out,
            exit_status=exit_status,
            stdout=bytes(text[:MAX_CAPTURE]).decode(errors="replace"),
            file=file if run.read_file else "",
        )

    @staticmethod
    def _job(code: Code, run: Run, nonce: str) -> dict[str, Any]:
        """The wire form of one execution; everything in it is known to the submission."""
        return {
            "nonce": nonce,
            "answer_fd": 16 + secrets.randbelow(40),
            "action": run.action,
            "module": run.module,
            "setup": code.setup,
            "source": code.source,
            "func_name": code.func_name,
            "seed": code.seed,
            "inputs": [] if run.action == "evaluate" else [wire.encode(list(arguments)) for arguments in code.inputs],
            "expressions": run.expressions,
            "values": [wire.encode(list(values)) for values in run.values or [()] * len(run.expressions)],
            "decoys": [wire.encode(list(decoys)) for decoys in run.decoys],
            "canonical": run.canonical,
        }

    def _write_job(self, job: dict[str, Any]) -> int:
        """The descriptor of the job file, rewritten; its last reader is dead."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(job).encode())
        self._file.seek(0)
        return self._file.fileno()

    def _start(self, job: dict[str, Any], stack: contextlib.ExitStack, capture: bool) -> tuple[int, int | None]:
        """Hand the job over; our ends of the answer pipe and, to `capture` it, of stdout, closed with `stack`."""
        ours, theirs = [], []
        for _ in range(1 + capture):
            readable, writable = os.pipe()
            stack.callback(os.close, readable)
            ours.append(readable)
            theirs.append(writable)
        try:
            self._send(worker.EXECUTE, [self._write_job(job), *theirs])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ours[0], ours[1] if capture else None

    def _read(self, stream: AnswerStream, answers: int, stdout: int | None, text: bytearray, *, to_end: bool) -> bool:
        """Feed the stream; whether the time was up before it was complete, or with `to_end` before the process ended.

        Without `to_end` the last answer ends an execution; what it would still print or write would depend on how soon
        the process is killed. Keeps stdout flowing.
        """
        deadline = time.monotonic() + START_S
        poller = select.poll()
        for descriptor in (answers, stdout):
            if descriptor is not None:
                poller.register(descriptor, select.POLLIN)
        while not stream.complete or (to_end and not stream.forged):
            was_ready = stream.ready
            for descriptor, _ in poller.poll(max(deadline - time.monotonic(), 0) * 1000):
                data = os.read(descriptor, MAX_CAPTURE)
                if descriptor == answers:
                    stream.feed(data)
                    if not data:
                        _check_ready(stream)
                        return False
                elif data:
                    text += data[: MAX_CAPTURE - len(text)]
                else:
                    poller.unregister(descriptor)
            if stream.ready and not was_ready:
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                _check_ready(stream)
                return True
        return False

    def _kill(self) -> tuple[int | None, str]:
        """Have the worker kill and reap the whole tree; (exit status, marker file), read when it is dead."""
        self._send(worker.KILL, [])
        reply, descriptors = self._receive(len(worker.DEAD) + 2)
        text = "".join(map(_read_regular, descriptors))
        if len(reply) != len(worker.DEAD) + 2:
            raise InfrastructureError("worker: ended")
        status = int.from_bytes(reply[1:], "big", signed=True)
        return (None if status < 0 else status), text


def _check_ready(stream: AnswerStream) -> None:
    if not stream.ready:
        raise InfrastructureError("worker: an execution ended before its ready line")


def _drain(descriptor: int, text: bytearray | None) -> None:
    """Read a dead tree's pipe to its end, keeping up to MAX_CAPTURE bytes in `text`.

    Raises:
        InfrastructureError: something still holds the other end.
    """
    os.set_blocking(descriptor, False)
    try:
        while data := os.read(descriptor, MAX_CAPTURE):
            if text is not None:
                text += data[: max(MAX_CAPTURE - len(text), 0)]
    except BlockingIOError as error:
        raise InfrastructureError("worker: the pipe of a dead tree is still open") from error


def _read_regular(descriptor: int) -> str:
    """The first MAX_CAPTURE bytes of a regular file that had no other name, "" for anything else; closes it."""
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink:  # the worker has removed the marker's name
            return ""
        return os.read(descriptor, MAX_CAPTURE).decode(errors="replace")
    finally:
        os.close(descriptor)
