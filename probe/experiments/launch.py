"""Where the commands of a sweep run: child processes of this machine, or jobs of a cluster through submitit.

A launcher takes the arguments of one `probe` command, waits for its end and says how it went; it never raises for a
command that failed. One launcher serves many threads at once.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from probe.experiments.orphans import PARENT_VARIABLE
from replay_pools.errors import InputError

Cluster = Literal["slurm", "local"]
LOST = -1  # return code of a command whose job vanished


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How one run of a command ended."""

    returncode: int  # negative: minus the signal that killed it
    seconds: float
    error: str  # its last words; empty when it succeeded


class Launcher(Protocol):
    """Runs one command and waits for it."""

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        """Run `probe ARGS`; its output is appended to `log`."""
        ...

    def stop(self) -> None:
        """End everything that runs; called when the sweep is interrupted."""
        ...


def command(args: Sequence[str]) -> list[str]:
    """The command line of `probe ARGS` under this interpreter."""
    return [sys.executable, "-m", "probe", *args]


class Processes:
    """Child processes, `workers` at a time, which end with this one; the cores are shared out among them."""

    def __init__(self, workers: int) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        self._environment = {"OMP_NUM_THREADS": threads, **os.environ, PARENT_VARIABLE: str(os.getpid())}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        """Run the command as a child process."""
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with log.open("ab") as file:
            before = file.tell()
            child = subprocess.Popen(command(args), stdout=file, stderr=subprocess.STDOUT, env=self._environment)
            with self._lock:
                self._running.add(child)
            code = child.wait()
            with self._lock:
                self._running.discard(child)
        return Attempt(
            returncode=code, seconds=time.monotonic() - start, error="" if code == 0 else _last_words(log, before, code)
        )

    def stop(self) -> None:
        """Terminate the children; what they have written stays, and is resumed."""
        with self._lock:
            for child in self._running:
                child.terminate()


class Submitit:
    """Jobs of a cluster (or of submitit's local executor), one a command; needs the extra `slurm`."""

    def __init__(self, cluster: Cluster, folder: Path, parameters: Mapping[str, Any]) -> None:
        if find_spec("submitit") is None:
            fix = "pip install 'gradient-probe[slurm]'"
            raise InputError("--cluster", expected="submitit, which is not a requirement", found="none", fix=fix)
        from submitit import AutoExecutor  # an extra
        from submitit.core.utils import FailedJobError, UncompletedJobError

        self._executor = AutoExecutor(folder=str(folder), cluster=cluster)
        self._executor.update_parameters(**parameters)
        self._failures = (UncompletedJobError, FailedJobError)
        self._lock = threading.Lock()
        self._running: set[Any] = set()

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        """Submit the command and wait for its end."""
        start = time.monotonic()
        with self._lock:
            job = self._executor.submit(_in_job, list(args), log)
            self._running.add(job)
        try:
            return job.result()
        except self._failures as error:  # preempted, out of memory, out of time
            words = str(error).strip().splitlines()
            return Attempt(returncode=LOST, seconds=time.monotonic() - start, error=words[0] if words else "job lost")
        finally:
            with self._lock:
                self._running.discard(job)

    def stop(self) -> None:
        """Cancel the jobs."""
        with self._lock:
            for job in self._running:
                job.cancel()


def _in_job(args: Sequence[str], log: Path) -> Attempt:
    """What a cluster's worker runs."""
    return Processes(1)(args, log)


def _last_words(log: Path, start: int, code: int) -> str:
    """Why a command failed: the signal, or the last line that it wrote."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("probe: error: ") if lines else f"exit code {code}"
