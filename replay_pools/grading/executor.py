"""Drives one warm worker: sends a job, reads its answer pipe, kills the tree, then reads what the tree left behind.

grader                       warm worker                  child (confined)
  job file, pipes, directory --- fds --->  fork ---------->  reads the job, `ready`, runs
  <------------------- answer pipe ------------------------  one JSON line per input
  kill ---------------------------------->  kills and reaps every descendant
  <------------------- dead --------------  then: pipes to end of file, files of the directory
"""

import contextlib
import json
import os
import secrets
import selectors
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from replay_pools.environments.loopholes import FILE_MARKER_NAME
from replay_pools.grading import wire, worker
from replay_pools.grading.execution import MAX_CAPTURE, Code, InfrastructureError, Outcome, Run
from replay_pools.grading.oracle import AnswerStream

START_S = 30.0  # the warm process is ready within this, or it is an infrastructure failure
ENVIRONMENT = {"LC_CTYPE": "C.UTF-8", "PYTHONHASHSEED": "0"}  # all that a submission finds in os.environ

# -P, -s and an environment of our own are -I without -E, which would ignore the fixed hash seed.
_FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8", "-W", "ignore")
_BOOTSTRAP = (
    "import sys, types; package = types.ModuleType('isolated'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['isolated'] = package; from isolated.worker import serve; serve(int(sys.argv[2]))"
)


class Worker:
    """One warm worker process. Not thread-safe: one execution at a time.

    Args:
        tier: "B", or "unsafe-local" for resource limits alone.
        uid: the user that submissions become; None to stay.
        directory: existing folder under which each execution gets its own.
        timeout_s: wall seconds of an execution, from its `ready` line on.
    """

    def __init__(self, *, tier: str, uid: int | None, directory: Path, timeout_s: float) -> None:
        self._tier, self._uid, self._directory, self._timeout_s = tier, uid, directory, timeout_s
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _BOOTSTRAP, str(Path(__file__).parent), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._expect(worker.READY)
        except InfrastructureError:
            self.close()
            raise

    def close(self) -> None:
        """End the worker and everything under it."""
        self._control.close()
        try:
            self._process.wait(worker.KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _expect(self, reply: bytes) -> None:
        try:
            found = self._control.recv(1)
        except OSError as error:
            raise InfrastructureError(f"worker: {error}") from error
        if found != reply:
            raise InfrastructureError("worker: ended")

    def execute(self, code: Code, run: Run) -> Outcome:
        """Execute `code` as `run` says, in a fresh directory and a fresh process.

        Raises:
            InfrastructureError: nothing can be said about the submission; the worker must be replaced.
        """
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            directory.chmod(0o755)
            marker = directory / FILE_MARKER_NAME
            marker.touch(0o644)  # it exists, so that no submission needs the right to create files
            if self._uid is not None:
                os.chown(marker, self._uid, self._uid)
            num_answers = len({"answer": code.inputs, "evaluate": run.expressions}.get(run.action, (None,)))
            stream = AnswerStream(nonce=secrets.token_hex(16), num_answers=num_answers)
            timed_out, stdout = self._execute_in(directory, self._job(code, run, stream.nonce), stream, run.read_stdout)
            text = _read_regular(marker) if run.read_file else ""
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return Outcome(answers=stream, timed_out=timed_out, stdout=stdout, file=text)

    def _job(self, code: Code, run: Run, nonce: str) -> dict[str, Any]:
        """The wire form of one execution; everything in it is known to the submission."""
        return {
            "nonce": nonce,
            "answer_fd": 16 + secrets.randbelow(40),
            "tier": self._tier,
            "uid": self._uid,
            "cpu_s": self._timeout_s,
            "writable": [FILE_MARKER_NAME],
            "action": run.action,
            "module": run.module,
            "setup": code.setup,
            "source": code.source,
            "func_name": code.func_name,
            "inputs": [] if run.action == "evaluate" else [wire.encode(list(arguments)) for arguments in code.inputs],
            "expressions": run.expressions,
        }

    def _execute_in(
        self, directory: Path, job: dict[str, Any], stream: AnswerStream, capture: bool
    ) -> tuple[bool, str]:
        """Run the job to its last answer, its end or its time limit; kill the tree; (timed out, stdout)."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(json.dumps(job).encode())
            file.seek(0)
            directory_fd = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, directory_fd)
            answers, answers_theirs = os.pipe()
            stack.callback(os.close, answers)
            stdout, stdout_theirs = os.pipe() if capture else (None, os.open(os.devnull, os.O_WRONLY))
            if stdout is not None:
                stack.callback(os.close, stdout)
            try:
                fds = [file.fileno(), answers_theirs, stdout_theirs, directory_fd]
                socket.send_fds(self._control, [worker.EXECUTE], fds)
            except OSError as error:
                raise InfrastructureError(f"worker: {error}") from error
            finally:
                os.close(answers_theirs)
                os.close(stdout_theirs)
            text = bytearray()
            timed_out = self._read(stream, answers, stdout, text)
            self._kill()
            _drain(answers, None)
            if stdout is not None:
                _drain(stdout, text)
        return timed_out, bytes(text[:MAX_CAPTURE]).decode(errors="replace")

    def _read(self, stream: AnswerStream, answers: int, stdout: int | None, text: bytearray) -> bool:
        """Feed the stream until it is complete or ends (False) or the time is up (True); keep stdout flowing."""
        deadline = time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            if stdout is not None:
                selector.register(stdout, selectors.EVENT_READ)
            while not stream.complete:
                events = selector.select(max(deadline - time.monotonic(), 0))
                was_ready = stream.ready
                for key, _ in events:
                    data = os.read(key.fd, MAX_CAPTURE)
                    if key.fd == answers:
                        stream.feed(data)
                        if not data:
                            return self._ended(stream)
                    elif data:
                        text += data[: MAX_CAPTURE - len(text)]
                    else:
                        selector.unregister(key.fd)
                if stream.ready and not was_ready:
                    deadline = time.monotonic() + self._timeout_s
                if time.monotonic() >= deadline and not stream.complete:
                    self._ended(stream)
                    return True
        return False

    @staticmethod
    def _ended(stream: AnswerStream) -> bool:
        if not stream.ready:
            raise InfrastructureError("worker: an execution ended before its ready line")
        return False

    def _kill(self) -> None:
        """Have the worker kill and reap the whole tree; returns when it is dead."""
        try:
            self._control.sendall(worker.KILL)
        except OSError as error:
            raise InfrastructureError(f"worker: {error}") from error
        self._expect(worker.DEAD)


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


def _read_regular(path: Path) -> str:
    """The first MAX_CAPTURE bytes of a regular file that is no link; "" for anything else (a fifo never blocks)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
            return ""
        return file.read(MAX_CAPTURE).decode(errors="replace")
