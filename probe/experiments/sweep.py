"""The jobs of a spec, run by submitit on this machine or a Slurm cluster; a sweep that was killed continues.

    pools -> all runs
    pools -> what a criterion of the ceiling is about, in all seeds -> the ceiling (stop?) -> the others

Which jobs are done is read from the disk. `out/sweeps/NAME/` holds `state.json`, settings and logs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from submitit import AutoExecutor
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.helpers import Checkpointable

from probe.experiments.jobs import (
    COMMAND,
    STATE_FILE,
    Job,
    command_of,
    is_about,
    pool_jobs,
    read_state,
    run_jobs,
    runs_of,
    sweep_folder,
    write_settings,
)
from probe.experiments.spec import Criterion, Spec
from probe.settings.words import Word
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked, write_json

POLL_S = 0.5  # seconds between two looks at the jobs
AN_HOUR = 3600  # seconds; clusters give less between a warning and the end
STDERR = 2  # its descriptor
SAID = "probe: error: "
NO_COMMAND = 127  # a shell's exit code
A_MONTH = 30 * 24 * 60  # minutes; submitit's local executor ends jobs after two minutes unless told
Cluster = Literal["local", "slurm"]
Status = Literal["waiting", "running", "done", "failed", "skipped"]


@dataclass(slots=True, kw_only=True)
class JobState:
    """How far one job is: a row of the table that `show` displays and `state.json` keeps."""

    job: Job
    status: Status = "waiting"
    error: str = ""  # its last words
    log: str = ""


@dataclass(slots=True, kw_only=True)
class SweepState:
    """The state of a sweep, with a row for every job."""

    spec: str
    rows: list[JobState]
    stopped: str = ""  # why it ended before the last job

    @property
    def failed(self) -> bool:
        """Whether a job has failed."""
        return any(row.status == "failed" for row in self.rows)


class Executor(Protocol):
    """What is needed of an executor of submitit."""

    def submit(self, function: Callable[..., int], *arguments: Any) -> Any:
        """Start a job."""
        ...


class Command(Checkpointable):
    """The command of a run, in a process of its own; a job that is preempted is submitted again, and resumes."""

    def __call__(self, command: Sequence[str], gpus: str | None) -> int:
        """Returns the exit code.

        Args:
            gpus: CUDA_VISIBLE_DEVICES of the command; None: as the cluster sets it.
        """
        environment = dict(os.environ) | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})
        # What stands beside this Python comes first, as its torchrun.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
        warned: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: warned.append(number))
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            print(f"{SAID}--launch: {error}", file=sys.stderr)
            return NO_COMMAND
        with process:
            try:
                code = process.wait()
                if gpus is None and (warned or code == -signal.SIGUSR2):
                    # The cluster is ending the job: how its command took that is no result. What follows is SIGUSR2,
                    # at which submitit has it submitted again, or the end.
                    time.sleep(AN_HOUR)
                return code
            finally:
                process.terminate()


def executor(cluster: Cluster, folder: Path, options: Mapping[str, Any], num_jobs: int) -> AutoExecutor:
    """The executor of submitit that runs the jobs; the cores of this machine are shared out among `num_jobs`.

    Raises:
        InputError: no Slurm here, or an option that submitit does not have.
    """
    defaults: dict[str, Any] = {"stderr_to_stdout": True}
    if cluster == "local":
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_jobs)))
        defaults["timeout_min"] = A_MONTH
    try:
        made = AutoExecutor(folder=str(folder), cluster=cluster)
        made.update_parameters(**defaults | dict(options))
    except (NameError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "--cluster", expected="one that submitit reaches, and its options", found=str(error)
        ) from error
    return made


def sweep(
    spec: Spec,
    out_dir: Path,
    *,
    engine: Executor,
    num_jobs: int = 1,
    launch: str = COMMAND,
    gpus: Sequence[str] | None = None,
    verdict_of: Callable[[Criterion], Word] | None = None,
    show: Callable[[SweepState], None] = lambda table: None,
) -> SweepState:
    """Run the jobs that are not done; returns the final table, failed rows included.

    Args:
        spec: the experiment.
        out_dir: root of everything that is written.
        engine: of submitit.
        num_jobs: at a time.
        launch: the command line that starts a run, with the word {command} in it.
        gpus: of this machine, shared out among the jobs at a time; None: the cluster gives each its own.
        verdict_of: that of a criterion on the runs that are there, for a spec with a ceiling.
        show: called with the table whenever something may have changed.

    Raises:
        InputError: another sweep of this spec is running here, or a run was made under an edited spec.
    """
    # Data under an edited spec would be judged by criteria that are younger than they are.
    for run in runs_of(spec, out_dir):
        if run.spec_status not in (None, "frozen"):
            raise InputError(
                run.directory,
                expected=f"a run under {spec.path} as it is now",
                found="one under an edited spec" if run.spec_status == "edited" else "one that is not of this spec",
                fix="restore the spec, or sweep into another folder with --out",
            )
    pools, runs = pool_jobs(spec, out_dir), run_jobs(spec, out_dir)
    with locked(sweep_folder(spec, out_dir)):
        write_settings([*pools, *runs])
        rows = [JobState(job=job, status="done" if job.complete else "waiting") for job in (*pools, *runs)]
        table = SweepState(spec=spec.mark, rows=rows)

        def run_all(jobs: Sequence[Job]) -> None:
            names = {job.name for job in jobs}
            waiting = [row for row in rows if row.job.name in names and row.status == "waiting"]
            commands = {row.job.name: command_of(row.job, launch, (sys.executable, "-m", "probe")) for row in waiting}
            shares = [None if gpus is None else share_of(gpus, worker, num_jobs) for worker in range(num_jobs)]
            _run(waiting, engine, commands, shares, lambda: _save(table, spec, out_dir, show))

        run_all(pools)
        if table.failed:
            table.stopped = "a pool could not be generated"
        for criterion in spec.ceilings:
            if not table.stopped:
                run_all([job for job in runs if is_about(job, criterion, spec)])
                table.stopped = _at_ceiling(spec, table, criterion, verdict_of)
        if not table.stopped:
            run_all(runs)
        for row in rows:
            if row.status == "waiting":
                row.status = "skipped"
        _save(table, spec, out_dir, show)
    return table


def visible_gpus() -> list[str]:
    """The GPUs of this machine that the sweep may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch  # seconds, for sweeps on this machine alone

    return [*map(str, range(torch.cuda.device_count()))]


def share_of(gpus: Sequence[str], worker: int, num_jobs: int) -> str:
    """The GPUs of one of `num_jobs` jobs at a time: equally many each; one, with others, where there are fewer.

    >>> [share_of(["0", "1", "2", "3"], worker, 2) for worker in range(2)]
    ['0,1', '2,3']
    """
    size = max(1, len(gpus) // num_jobs)
    return ",".join(gpus[(worker * size + i) % len(gpus)] for i in range(size)) if gpus else ""


def _run(
    rows: Sequence[JobState],
    engine: Executor,
    commands: Mapping[str, Sequence[str]],
    shares: Sequence[str | None],
    save: Callable[[], None],
) -> None:
    """Run jobs, one a share of the GPUs at a time, and wait for all of them; an interrupt ends those that run."""
    waiting, running = list(rows), dict[int, tuple[JobState, Any]]()
    try:
        while waiting or running:
            for worker in {*range(len(shares))} - {*running}:
                if waiting:
                    row = waiting.pop(0)
                    with _silent():
                        running[worker] = row, engine.submit(Command(), commands[row.job.name], shares[worker])
                    row.status = "running"
            for worker, (row, submitted) in list(running.items()):
                if submitted.done():
                    _end(row, submitted)
                    del running[worker]
                elif _is_preempted(submitted):
                    # Nor may the cluster start it again beside the next one.
                    submitted.cancel(check=False)
                    waiting.insert(0, row)
                    del running[worker]
            save()
            if running:
                time.sleep(POLL_S)
    finally:
        for _, submitted in running.values():
            submitted.cancel()


def _is_preempted(submitted: Any) -> bool:
    """Whether a cluster has ended a job for another one and does not start it again, for which submitit would wait."""
    return submitted.state == "PREEMPTED" and submitted.get_info(mode="force").get("State") == "PREEMPTED"


@contextmanager
def _silent() -> Iterator[None]:
    """What is started while open writes no errors to the terminal.

    Ctrl-C reaches submitit's controller of a local job too, which would leave a traceback there; the job has its log.
    """
    kept, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


def _end(row: JobState, submitted: Any) -> None:
    """How a job ended: done where its run is complete, whatever else happened."""
    row.log = str(submitted.paths.stdout)
    try:
        code = submitted.result()
    except (UncompletedJobError, FailedJobError) as error:  # killed, out of memory, out of time
        row.error = str(error).strip().splitlines()[0]
    else:
        if code != 0:
            # What submitit says of itself stands around the command's own words.
            lines = [line for line in (submitted.stdout() or "").splitlines() if not line.startswith("submitit ")]
            # A launcher has words of its own after those of the command.
            errors = [line.partition(SAID)[2] for line in lines if SAID in line]
            row.error = [f"exit code {code}", *lines[-1:], *errors][-1]
    row.status = "done" if row.job.complete and not row.error else "failed"


def _save(table: SweepState, spec: Spec, out_dir: Path, show: Callable[[SweepState], None]) -> None:
    rows = [{"name": row.job.name, "status": row.status, "error": row.error, "log": row.log} for row in table.rows]
    state = {"spec": table.spec, "rows": rows, "stopped": table.stopped}
    if state != read_state(spec, out_dir):
        write_json(sweep_folder(spec, out_dir) / STATE_FILE, state)
    show(table)


def _at_ceiling(
    spec: Spec, table: SweepState, criterion: Criterion, verdict_of: Callable[[Criterion], Word] | None
) -> str:
    """The reason not to make the runs beyond a criterion of the ceiling, or ""."""
    assert spec.ceiling is not None
    assert verdict_of is not None
    if table.failed:
        return f"a run that {criterion.name} is about has failed"
    verdict = verdict_of(criterion)
    if verdict in spec.ceiling.others_if:
        return ""
    runs = [row for row in table.rows if row.job.seed is not None]
    num_made = sum(row.status == "done" for row in runs)
    return f"at the ceiling: {criterion.name} is {verdict} after {num_made} of {len(runs)} runs"
