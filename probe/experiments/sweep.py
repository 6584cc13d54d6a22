"""Run the jobs of a spec with submitit, on this machine or a Slurm cluster; a killed sweep continues.

    pools -> all runs
    pools -> the runs that a criterion of the ceiling needs, in all seeds -> the ceiling (stop?) -> the others

A job is done when its run is complete on disk. `out/sweeps/NAME/` holds settings, logs and `state.json`:

    {"spec": "NAME@SHA256", "stopped": why the sweep ended before the last job, or "",
     "rows": [{"name", "status": waiting | running | done | failed | skipped, "error", "log"}, ...]}
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.helpers import Checkpointable

from probe.experiments.jobs import STATE_FILE, Job, before_ceilings, command_of, pool_jobs, run_jobs, sweep_folder
from probe.experiments.spec import Criterion, Spec
from probe.settings.words import Answer
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked, write_json

POLL_S = 0.5  # seconds between polls of the jobs
ERROR = "probe: error: "  # prefix of the line with a command's error
MONTH_MIN = 30 * 24 * 60  # by default, submitit's local executor ends jobs after two minutes
Row = dict[str, str]  # of state.json


class Command(Checkpointable):
    """Run a command in a separate process. If Slurm preempts the job, submitit requeues it and the command resumes."""

    def __call__(self, command: Sequence[str]) -> int:
        """Return the exit code."""
        return subprocess.call(command)


def executor(cluster: str, folder: Path, options: Mapping[str, Any], num_jobs: int) -> AutoExecutor:
    """Return submitit's executor; local jobs share the cores.

    Raises:
        InputError: no Slurm here, or an unknown option of submitit.
    """
    # `--launch torchrun` must find this Python's torchrun.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
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


def visible_gpus() -> list[str]:
    """Return the GPUs that the sweep may use, named as in CUDA_VISIBLE_DEVICES."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        import torch  # takes seconds, and a cluster does not need it

        return [*map(str, range(torch.cuda.device_count()))]
    return [name for name in named.split(",") if name.strip()]


def sweep(
    spec: Spec,
    out_dir: Path,
    *,
    engine: Any,
    num_jobs: int = 1,
    launch: str = "{command}",
    gpus: Sequence[str] = (),
    show: Callable[[Row], None] = lambda row: None,
) -> dict[str, Any]:
    """Run all unfinished jobs and return the table of state.json, including failed rows.

    Args:
        spec: the experiment.
        out_dir: root folder of all output.
        engine: executor of submitit.
        num_jobs: number of jobs at a time.
        launch: the command line that starts a run, with the word {command}.
        gpus: GPUs of this machine, divided among the jobs; empty: every job sees those of this process.
        show: called with the row of a job that starts, ends or is skipped.

    Raises:
        InputError: another sweep of this spec is running here, or a run was made under an edited spec: criteria that
            are written after the data confirm nothing.
    """
    pools, runs, folder = pool_jobs(spec, out_dir), run_jobs(spec, out_dir), sweep_folder(spec, out_dir)
    for run in runs:
        if run.made_under not in (None, spec.mark):
            found = f"one under {run.made_under or 'no spec'}"
            fix = "restore the spec, or sweep into another folder with --out"
            raise InputError(run.directory, expected=f"a run under {spec.path} as it is now", found=found, fix=fix)
    shares = [gpus[slot % len(gpus) :: num_jobs] if gpus else () for slot in range(num_jobs)]
    places = [["env", f"CUDA_VISIBLE_DEVICES={','.join(share)}"] if share else [] for share in shares]
    with locked(folder):
        rows: dict[str, Row] = {}
        for job in (*pools, *runs):
            job.write_settings()
            rows[job.name] = {"name": job.name, "status": "done" if job.complete else "waiting", "error": "", "log": ""}
        table: dict[str, Any] = {"spec": spec.mark, "rows": [*rows.values()], "stopped": ""}

        def changed(job: Job, **values: str) -> None:
            rows[job.name].update(values)
            write_json(folder / STATE_FILE, table)
            show(rows[job.name])

        for criterion, jobs in ((None, pools), *before_ceilings(spec, runs), (None, runs)):
            waiting = [job for job in jobs if rows[job.name]["status"] == "waiting"]
            commands = [(job, command_of(job, launch, (sys.executable, "-m", "probe"))) for job in waiting]
            _run(commands, engine, places, changed)
            if jobs is not runs:
                table["stopped"] = _stopped(spec, table, criterion, out_dir)
            if table["stopped"]:
                break
        for job in runs:
            if rows[job.name]["status"] == "waiting":
                changed(job, status="skipped")
    return table


def has_failed(table: Mapping[str, Any]) -> bool:
    """Return whether a job of the table has failed."""
    return any(row["status"] == "failed" for row in table["rows"])


def _run(
    left: list[tuple[Job, list[str]]], engine: Any, places: Sequence[list[str]], changed: Callable[..., None]
) -> None:
    """Run one command at each of `places`, words before it, and wait for all; an interrupt cancels them."""
    running: dict[int, tuple[Job, Any]] = {}  # by place
    try:
        while left or running:
            for place in [place for place in range(len(places)) if place not in running][: len(left)]:
                job, command = left.pop(0)
                running[place] = job, engine.submit(Command(), [*places[place], *command])
                changed(job, status="running")
            for place, (job, submitted) in [*running.items()]:
                if submitted.done():
                    del running[place]
                    changed(job, **ended(job, submitted))
            if running:
                time.sleep(POLL_S)
    finally:
        for _, submitted in running.values():
            submitted.cancel()


def ended(job: Job, submitted: Any) -> Row:
    """Return how a job ended: it is done if its command succeeded and its run is complete."""
    error = ""
    try:
        if code := submitted.result():
            lines = (submitted.stdout() or "").splitlines()
            error = [f"exit code {code}", *(line.partition(ERROR)[2] for line in lines if ERROR in line)][-1]
    except (UncompletedJobError, FailedJobError) as failure:  # killed, out of memory, out of time
        error = str(failure).strip().splitlines()[0]
    status = "done" if job.complete and not error else "failed"
    return {"status": status, "error": error, "log": str(submitted.paths.stdout)}


def _stopped(spec: Spec, table: Mapping[str, Any], criterion: Criterion | None, out_dir: Path) -> str:
    """Return the reason to stop after the pools, or at a criterion of the ceiling; or ""."""
    if has_failed(table):
        return f"a run that {criterion.name} is about has failed" if criterion else "a pool could not be generated"
    from probe.experiments.judge import evaluate_spec  # only a ceiling needs it

    if criterion is None or (says := evaluate_spec(spec, out_dir).verdict.finding(criterion.name).says) is Answer.PASS:
        return ""
    done = [row["status"] == "done" for row in table["rows"] if not row["name"].startswith("pool-")]
    return f"at the ceiling: {criterion.name} is {says} after {sum(done)} of {len(done)} runs"
