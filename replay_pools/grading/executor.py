"""The grader's side of one warm worker: send a job, read its answers, have it killed, read what it left behind.

A warm worker (`worker.py`) has Python's library loaded and forks for every execution, which is much cheaper than a new
interpreter. One execution:

grader                       warm worker                  child (confined)
  job file, pipe, stdout ----- fds --->  directory, fork -->  reads the job, `ready`, runs
  <------------------- answer pipe -------------------------  one JSON line per input
  kill ---------------------------------->  kills and reaps every descendant
  <- dead, exit status, CPU, marker file -
  reads the pipe to its end, stdout

An execution is limited in CPU seconds of all its threads, so a busy machine changes no label. An execution that used
them up has timed out: it has no answer and no exit status, however far it got before the kernel stopped it
(`sandbox.confine`). Wall time only stops sleepers. The OWN time of an execution is its wall time minus its
threads' wait for a CPU (`waited_s`); after OWN_TIMES its limit it has timed out. An execution that still waits after
WALL_TIMES its limit says nothing about the submission: an InputError ends the command, which can be resumed.

No descriptor of a directory is sent either way: in tier A it would lead out of the sandbox.
"""

import contextlib
import json
import math
import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import FILE_MARKER_NAME
from replay_pools.grading import folders, sandbox, tiers, worker
from replay_pools.grading.oracle import AnswerStream
from replay_pools.rollout import MIN_CPU_S

Place = Literal["stdout", "file"]  # where an execution may leave a text: its stdout, or its marker file
MAX_CAPTURE = 1 << 16  # bytes that are read of such a text, and at once of the answer pipe
START_S = 30.0  # a worker or an execution that is not ready within this is an infrastructure failure
FREE_READS = 256  # of an execution
PAUSE_S = 2e-6  # times the number of reads so far: the grader's pause before the next, which bounds what reading costs
# Times the limit of CPU seconds. Well above 1, because waits for memory and disk count as a process's own time.
OWN_TIMES = 2
WALL_TIMES = 20
ENVIRONMENT = {"LC_CTYPE": "C.UTF-8", "PYTHONHASHSEED": "0"}  # all that a submission finds in os.environ

# With ENVIRONMENT as the whole environment, -P and -s isolate as -I does. -I itself implies -E, which would ignore the
# fixed hash seed.
_FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8", "-W", "ignore")
# The files of this folder as a package called `isolated`: the worker imports no other package of this repository.
_BOOTSTRAP = (
    "import json, sys, types; package = types.ModuleType('isolated'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['isolated'] = package; from isolated.worker import serve; serve(**json.loads(sys.argv[2]))"
)


class InfrastructureError(RuntimeError):
    """An execution that says nothing about the submission: the worker could not start, confine itself or clean up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The remains of one execution, read after all its processes were dead."""

    answers: AnswerStream
    timed_out: bool  # it used up its CPU seconds, or slept
    cpu_s: float  # CPU seconds of the submission's process, all threads, in steps of a millisecond
    exit_status: int | None  # of a submission's process that ended by itself; None when it was killed
    left: str  # the text at the place that was asked for; at most MAX_CAPTURE bytes


class Worker:
    """One warm worker process. Not thread-safe: one execution at a time.

    Args:
        tier: "A", "B", or "unsafe-local" for resource limits alone (see `tiers`).
        uid: the user as which submissions run; None for the user of the grader.
        directory: existing folder, in which the worker gets its own; None in tier A, where the worker writes to a file
            system that exists only inside the sandbox.
        library: prefix of a copy of Python's library, for a user who cannot read the interpreter's own.

    Raises:
        InfrastructureError: the worker does not start.
    """

    def __init__(self, *, tier: str, uid: int | None, directory: Path | None, library: Path | None = None) -> None:
        self._job, self._stdout = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._scratch = str(folders.passable_folder(directory)) if directory else None
        self._control, worker_end = socket.socketpair()
        self._control.settimeout(START_S)
        arguments = {
            "control_fd": worker_end.fileno(),
            "marker": FILE_MARKER_NAME,
            "scratch": self._scratch or tiers.SCRATCH,
            "folder": directory and str(directory),
            "tier": tier,
            "uid": uid,
        }
        sandbox_command, package = [], str(Path(__file__).parent)
        if tier == "A":
            sandbox_command, package = tiers.bwrap_command(), tiers.PACKAGE
        with worker_end:
            self._process = subprocess.Popen(
                [*sandbox_command, sandbox.INTERPRETER, *_FLAGS, "-c", _BOOTSTRAP, package, json.dumps(arguments)],
                pass_fds=(worker_end.fileno(),),
                env=ENVIRONMENT | ({"PYTHONHOME": str(library)} if library else {}),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            reply = self._control.recv(len(worker.READY))
        except OSError:
            reply = b""
        if reply != worker.READY:
            self.close()
            raise InfrastructureError("worker: does not start")

    def close(self) -> None:
        """End the worker and everything under it."""
        # The worker ends by itself; only one that hangs is killed.
        with contextlib.suppress(OSError):
            self._control.sendall(worker.END)
        for file in (self._control, self._job, self._stdout):
            file.close()
        try:
            self._process.wait(worker.KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def execute(self, job: dict[str, Any], *, left: Place | None = None, cpu_s: float = MIN_CPU_S) -> Outcome:
        """Execute a submission in a new directory and a new process.

        Args:
            job: a JSON document without any expected value, since the submission can read all of it. `action`: name of
                a function of `actions`; `module`: __name__ of the submission's module; `setup`: source that runs before
                the submission; `source`: the submission; `func_name`: method of class Solution; `inputs`: the arguments
                of each call, in wire form; `listed`: for each, whether the answer is `list` of the returned value;
                `decoys`, for `compare`: for each, values that no honest answer equals at once.
            left: where the submission may leave a text, which is read when it has ended.
            cpu_s: limit of CPU seconds.

        Raises:
            InfrastructureError: nothing can be said about the submission; the worker must be replaced.
            InputError: the machine is too busy; the worker must be replaced.
        """
        num_answers = len(job["inputs"]) if job["action"] in ("answer", "compare") else 1
        stream = AnswerStream(nonce=secrets.token_hex(16), num_answers=num_answers)
        job = job | {
            "nonce": stream.nonce,
            "answer_fd": 16 + secrets.randbelow(40),  # at random, so that no submission can count on its number
            "cpu_s": cpu_s,
        }
        # These channels judge what the submission leaves when it ends, so it may run on after its last answer.
        to_end = left is not None or job["action"].startswith("run_script")
        try:
            answers, write_end = os.pipe()
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, answers)
                try:
                    self._send(job, write_end, captures=left == "stdout")
                finally:
                    # The worker holds a copy; with ours open, the pipe would never reach its end.
                    os.close(write_end)
                slept = self._read(stream, answers, to_end=to_end, cpu_s=cpu_s)
                exit_status, used_s, marker = self._kill()
                # The rest of the pipe does not count, but it has to end: otherwise a process is still alive.
                os.set_blocking(answers, False)
                while os.read(answers, MAX_CAPTURE):
                    pass
            text = marker if left == "file" else os.pread(self._stdout.fileno(), MAX_CAPTURE, 0)
        except BlockingIOError as error:
            raise InfrastructureError("worker: the pipe of a dead tree is still open") from error
        except OSError as error:
            raise InfrastructureError(f"worker: {error}") from error
        timed_out = slept or used_s >= cpu_s
        if timed_out:
            # How far it got is a matter of milliseconds.
            stream.answers.clear()
            exit_status = None
        text = text.decode(errors="replace") if left else ""
        return Outcome(answers=stream, timed_out=timed_out, cpu_s=used_s, exit_status=exit_status, left=text)

    def _send(self, job: dict[str, Any], answers: int, *, captures: bool) -> None:
        """Send a job, the write end of its answer pipe, and (with `captures`) the file that serves as its stdout."""
        # The files serve all executions: the last reader and writer is dead.
        for file in (self._job, self._stdout):
            file.seek(0)
            file.truncate()
        self._job.write(json.dumps(job).encode())
        self._job.seek(0)
        descriptors = [self._job.fileno(), answers, *([self._stdout.fileno()] if captures else [])]
        socket.send_fds(self._control, [worker.EXECUTE], descriptors)

    def _read(self, stream: AnswerStream, answers: int, *, to_end: bool, cpu_s: float) -> bool:
        """Feed `stream` from the answer pipe until the execution is over.

        With `to_end` it is over when the process ends. Otherwise the last answer ends it, since later actions would
        depend on how soon the process is killed.

        Returns:
            True when its own time was up first.

        Raises:
            InfrastructureError: the process ended before its `ready` line.
            InputError: the machine is too busy.
        """
        started = time.monotonic()  # later: when it was ready
        deadline, num_reads = started + START_S, 0
        poller = select.poll()
        poller.register(answers, select.POLLIN)
        while not stream.complete or (to_end and not stream.forged):
            was_ready = stream.ready
            if poller.poll(max(deadline - time.monotonic(), 0) * 1000):
                data = os.read(answers, MAX_CAPTURE)
                stream.feed(data)
                if not data and not stream.ready:
                    raise InfrastructureError("worker: an execution ended before its ready line")
                if not data:
                    return False
                num_reads += 1
                if num_reads > FREE_READS:
                    # Single bytes gather meanwhile, and a flood has to wait.
                    time.sleep(PAUSE_S * num_reads)
            # The time to start is the machine's; the submission's own time runs from `ready`.
            if stream.ready and not was_ready:
                started = time.monotonic()
                deadline = started + OWN_TIMES * cpu_s
            elif (now := time.monotonic()) >= deadline:
                if not stream.ready:
                    raise _too_busy(f"not ready within {START_S:.0f} s")
                wall, waited = now - started, waited_s(self._process.pid)
                own_left, wall_left = OWN_TIMES * cpu_s - wall + waited, WALL_TIMES * cpu_s - wall
                if wall_left <= 0 < own_left:
                    raise _too_busy(f"a submission that waited {waited:.0f} of {wall:.0f} s for one")
                if min(own_left, wall_left) <= 0:
                    return True
                deadline += min(own_left, wall_left)
        return False

    def _kill(self) -> tuple[int | None, float, bytes]:
        """Have the worker kill all processes; return (exit status, CPU seconds, head of the marker file)."""
        self._control.sendall(worker.KILL)
        reply, descriptors, _, _ = socket.recv_fds(self._control, worker.DEATH.size, 1)
        marker = b""
        for descriptor in descriptors:
            marker = os.pread(descriptor, MAX_CAPTURE, 0)
            os.close(descriptor)
        if len(reply) != worker.DEATH.size:
            raise InfrastructureError("worker: ended")
        _dead, status, cpu_ms = worker.DEATH.unpack(reply)
        return (None if status < 0 else status), cpu_ms / 1000, marker


def _too_busy(found: str) -> InputError:
    fix = "run the same command again when the machine is less busy, or with fewer --workers: it resumes"
    return InputError("grading", expected="a free CPU", found=found, fix=fix)


def waited_s(worker_pid: int) -> float:
    """Return the seconds that the process at the end of the chain of children below a worker was ready but did not run.

    It is the longest wait of one thread. A submission cannot raise it at will: only running threads keep another one
    waiting, and its own threads use up its CPU limit.

    Infinity when the kernel does not count waits, or the process is gone.
    """
    waits: list[int] = []
    pids = [worker_pid]
    for pid in pids:  # it grows: bubblewrap, the warm process, the submission's
        tasks: list[Path] = []
        with contextlib.suppress(OSError):  # gone
            tasks += Path(f"/proc/{pid}/task").iterdir()
        children = [child for task in tasks for child in _proc_text(task / "children").split()]
        pids += map(int, children)
        for task in () if children else tasks:
            # "running waiting timeslices", in nanoseconds; all 0 where the kernel does not count. Readable for every
            # user, whoever owns the process.
            running, waiting, *_ = _proc_text(task / "schedstat").split() or "00"
            if int(running):
                waits.append(int(waiting))
    return max(waits) / 1e9 if waits else math.inf


def _proc_text(path: Path) -> str:
    """Return the text of a file in /proc; "" for a thread that is gone, as a submission may end its threads."""
    try:
        return path.read_text()
    except OSError:
        return ""
