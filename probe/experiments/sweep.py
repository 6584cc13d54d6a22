"""Run the jobs of a spec with submitit, on this machine or a Slurm cluster; a killed sweep continues.

    pools -> all runs
    pools -> the runs that a criterion of the ceiling needs, in all seeds -> the ceiling (stop?) -> the others

A job is done when its run is complete on disk. `out/sweeps/NAME/` holds settings, logs and `state.json`, the last
table shown.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    run_jobs,
    runs_of,
    sweep_folder,
    write_settings,
)
from probe.experiments.spec import Criterion, Spec
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked, write_json

POLL_S = 0.5  # seconds between polls of the jobs
ERROR = "probe: error: "  # prefix of the line with a command's error
MONTH_MIN = 30 * 24 * 60  # by default, submitit's local executor ends jobs after two minutes


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job of a sweep."""

    job: Job
    status: Literal["waiting", "running", "done", "failed", "skipped"] = "waiting"
    error: str = ""
    log: str = ""


@dataclass(slots=True, kw_only=True)
class SweepState:
    """All jobs of a sweep."""

    spec: str
    rows: list[JobState]
    stopped: str = ""  # why the sweep ended before the last job

    @property
    def failed(self) -> bool:
        """True if a job has failed."""
        return any(row.status == "failed" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `state.json` as plain lists and strings."""
        rows = [{"name": row.job.name, "status": row.status, "error": row.error, "log": row.log} for row in self.rows]
        return {"spec": self.spec, "rows": rows, "stopped": self.stopped}


class Command(Checkpointable):
    """Run a command in a separate process. If Slurm preempts the job, submitit requeues it and the command resumes."""

    def __call__(self, command: Sequence[str], gpus: str | None) -> int:
        """Return the exit code.

        Args:
            command: words of the command line.
            gpus: CUDA_VISIBLE_DEVICES; None keeps the cluster's value.
        """
        environment = dict(os.environ) | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})
        # `--launch torchrun` must find this Python's torchrun.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
        return subprocess.run(command, env=environment, check=False).returncode


def executor(cluster: str, folder: Path, options: Mapping[str, Any], num_jobs: int) -> AutoExecutor:
    """Return submitit's executor; local jobs share the cores.

    Raises:
        InputError: no Slurm here, or an unknown option of submitit.
    """
    defaults: dict[str, Any] = {"stderr_to_stdout": True}
    if cluster == "local":
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_jobs)))
        defaults["timeout_min"] = MONTH_MIN
    try:
        made = AutoExecutor(folder=str(folder), cluster=cluster)
        made.update_parameters(**defaults | dict(options))
    except (NameError, TypeError, ValueError, RuntimeError) as error:
        expected = "one that submitit reaches, and its options"
        raise InputError("--cluster", expected=expected, found=str(error)) from error
    return made


def sweep(
    spec: Spec,
    out_dir: Path,
    *,
    engine: Any,
    num_jobs: int = 1,
    launch: str = COMMAND,
    gpus: Sequence[str] = (),
    show: Callable[[SweepState], None] = lambda table: None,
) -> SweepState:
    """Run all unfinished jobs and return the final table, including failed rows.

    Args:
        spec: the experiment.
        out_dir: root folder of all output.
        engine: executor of submitit.
        num_jobs: number of jobs at a time.
        launch: the command line that starts a run, with the word {command}.
        gpus: GPUs of this machine, divided among concurrent jobs; empty: every job sees this process's GPUs.
        show: called with the table whenever a job starts or ends.

    Raises:
        InputError: another sweep of this spec is running here, or a run was made under an edited spec.
    """
    _check_frozen(spec, out_dir)
    pools, runs = pool_jobs(spec, out_dir), run_jobs(spec, out_dir)
    stages: list[tuple[Sequence[Job], Criterion | None]] = [(pools, None)]
    stages += [([job for job in runs if is_about(job, criterion, spec)], criterion) for criterion in spec.ceilings]
    stages.append((runs, None))
    with locked(sweep_folder(spec, out_dir)):
        write_settings([*pools, *runs])
        rows = {job.name: JobState(job=job, status="done" if job.complete else "waiting") for job in (*pools, *runs)}
        table = SweepState(spec=spec.mark, rows=[*rows.values()])

        def changed() -> None:
            write_json(sweep_folder(spec, out_dir) / STATE_FILE, table.to_json())
            show(table)

        for jobs, criterion in stages:
            waiting = [rows[job.name] for job in jobs if rows[job.name].status == "waiting"]
            commands = {row.job.name: command_of(row.job, launch, (sys.executable, "-m", "probe")) for row in waiting}
            # Of two concurrent jobs, job 0 gets GPUs 0, 2, 4, ...; with more jobs than GPUs, jobs share a GPU.
            dealt = [",".join(gpus[slot % len(gpus) :: num_jobs]) if gpus else None for slot in range(num_jobs)]
            _run(waiting, engine, commands, dealt, changed)
            table.stopped = _at_ceiling(spec, table, criterion, out_dir) if criterion else ""
            if table.failed and jobs is pools:
                table.stopped = "a pool could not be generated"
            if table.stopped:
                break
        for row in table.rows:
            row.status = "skipped" if row.status == "waiting" else row.status
        changed()
    return table


def _check_frozen(spec: Spec, out_dir: Path) -> None:
    """Refuse runs under an edited spec, because criteria written after the data confirm nothing."""
    for run in runs_of(spec, out_dir):
        if run.spec_status not in (None, "frozen"):
            found = "one under an edited spec" if run.spec_status == "edited" else "one that is not of this spec"
            fix = "restore the spec, or sweep into another folder with --out"
            raise InputError(run.directory, expected=f"a run under {spec.path} as it is now", found=found, fix=fix)


def visible_gpus() -> list[str]:
    """Return the GPUs that the sweep may use, named as in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch  # takes seconds, and a cluster does not need it

    return [*map(str, range(torch.cuda.device_count()))]


def _run(
    waiting: Sequence[JobState],
    engine: Any,
    commands: Mapping[str, Sequence[str]],
    gpus: Sequence[str | None],
    changed: Callable[[], None],
) -> None:
    """Run one job per entry of `gpus` at a time and wait for all; an interrupt cancels running jobs."""
    left, running = list(waiting), dict[int, tuple[JobState, Any]]()
    try:
        while left or running:
            for slot in [slot for slot in range(len(gpus)) if slot not in running][: len(left)]:
                row = left.pop(0)
                running[slot] = row, engine.submit(Command(), commands[row.job.name], gpus[slot])
                row.status = "running"
                changed()
            for slot, (row, submitted) in list(running.items()):
                if submitted.done():
                    _end(row, submitted)
                    del running[slot]
                    changed()
            if running:
                time.sleep(POLL_S)
    finally:
        for _, submitted in running.values():
            submitted.cancel()


def _end(row: JobState, submitted: Any) -> None:
    """Record how a job ended: it is done if its command succeeded and its run is complete."""
    row.log = str(submitted.paths.stdout)
    try:
        if code := submitted.result():
            lines = (submitted.stdout() or "").splitlines()
            row.error = [f"exit code {code}", *(line.partition(ERROR)[2] for line in lines if ERROR in line)][-1]
    except (UncompletedJobError, FailedJobError) as error:  # killed, out of memory, out of time
        row.error = str(error).strip().splitlines()[0]
    row.status = "done" if row.job.complete and not row.error else "failed"


def _at_ceiling(spec: Spec, table: SweepState, criterion: Criterion, out_dir: Path) -> str:
    """Return the reason to stop at a criterion of the ceiling, or ""."""
    assert spec.ceiling is not None
    if table.failed:
        return f"a run that {criterion.name} is about has failed"
    from probe.experiments.verdict import evaluate_spec  # only a ceiling needs it

    if (verdict := evaluate_spec(spec, out_dir).verdict.finding(criterion.name).says) in spec.ceiling.others_if:
        return ""
    done = [row.status == "done" for row in table.rows if row.job.seed is not None]
    return f"at the ceiling: {criterion.name} is {verdict} after {sum(done)} of {len(done)} runs"
