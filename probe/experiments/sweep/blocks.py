"""`probe sweep`: run conditions x arms x seeds of a spec, seed by seed.

    pools -> all seeds, without a pause between them
    pools -> block of the first seed -> look (stop?) -> block of the next seed -> ...
    pools -> what the primary criterion compares, in all seeds -> the ceiling (stop?) -> the others

Which jobs are done is read from the disk, so a sweep that was killed continues. `out/sweeps/NAME/` holds `state.json`
(attempts, looks, the reason to stop), the settings of the jobs, their logs, and `vacuous.json`: criteria of the spec
that could not fail, written before the first run and read by the verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from probe.experiments.spec.jobs import (
    STATE_FILE,
    Job,
    block,
    is_compared,
    pool_jobs,
    read_state,
    runs_of,
    sweep_folder,
    write_settings,
)
from probe.experiments.spec.prereg import preregistered
from probe.experiments.spec.types import Spec
from probe.experiments.spec.vacuity import write_foreseen
from probe.experiments.sweep.launch import Launcher
from probe.experiments.sweep.stopping import Look, look
from probe.settings.words import Verdict
from replay_pools.errors import EXIT_INPUT, InputError
from replay_pools.storage.files import write_json
from replay_pools.storage.lock import locked

REFRESH_S = 0.5  # seconds between two updates of the table
Status = Literal["waiting", "running", "done", "failed", "skipped"]
BlockValue = Callable[[Spec, int], float | None]  # (spec, seed) -> probe.experiments.judge.sweep_metrics.block_value


@dataclass(slots=True, kw_only=True)
class JobState:
    """How far one job is."""

    job: Job
    status: Status = "waiting"
    attempts: int = 0
    seconds: float = 0.0  # of all attempts
    error: str = ""  # of the last attempt


@dataclass(slots=True, kw_only=True)
class SweepState:
    """The state of a sweep, with a row for every job: what `show` displays and `state.json` keeps."""

    spec: str
    rows: list[JobState]
    looks: list[Look] = field(default_factory=list)
    stopped: str = ""  # why it ended before the last block

    @property
    def failed(self) -> bool:
        """Whether a job has failed for good."""
        return any(row.status == "failed" for row in self.rows)


def sweep(
    spec: Spec,
    out_dir: Path,
    *,
    launch: Launcher,
    workers: int = 1,
    retries: int = 1,
    block_value: BlockValue,
    primary_verdict: Callable[[Spec], Verdict] | None = None,
    vacuous: Mapping[str, str] | None = None,
    show: Callable[[SweepState], None] = lambda table: None,
) -> SweepState:
    """Run the jobs that are not done, seed by seed; returns the final table, failed rows included.

    Args:
        spec: the experiment.
        out_dir: root of everything that is written.
        launch: runs one command and waits for it (`probe.experiments.sweep.launch`).
        workers: commands at a time.
        retries: further attempts of a command that crashed, in this call.
        block_value: the primary criterion's value in the block of a seed, for the stop rules.
        primary_verdict: the primary criterion's on the runs that are there, for a spec with a ceiling.
        vacuous: {key of the spec: why} of what cannot fail, kept for the verdict.
        show: called with the table whenever something may have changed.

    Raises:
        InputError: another sweep of this spec is running here, or a run was made under an edited spec.
    """
    # Data under an edited spec would be judged by criteria that are younger than they are.
    for run in runs_of(spec, out_dir):
        if run.spec_status not in (None, "frozen"):
            raise InputError(
                run.job.directory,
                expected=f"a run under {spec.path} as it is now",
                found="one under an edited spec" if run.spec_status == "edited" else "one that is not of this spec",
                fix="restore the spec, or sweep into another folder with --out",
            )
    folder = sweep_folder(spec, out_dir)
    pools, blocks = pool_jobs(spec, out_dir), [block(spec, seed, out_dir) for seed in spec.seeds]
    runs = [job for jobs in blocks for job in jobs]
    with locked(folder):
        # Before the first run, so that no result can decide what counts as vacuous.
        write_foreseen(spec, out_dir, vacuous or {})
        write_settings([*pools, *runs])
        table = open_table(spec, out_dir, [*pools, *runs])
        runner = Runner(table, folder, launch, workers, retries, show)
        runner.run(pools)
        if table.failed:
            table.stopped = "a pool could not be generated"
        if spec.ceiling is not None and not table.stopped:
            runner.run([job for job in runs if is_compared(job, spec)])
            table.stopped = _at_ceiling(spec, table, primary_verdict)
        if spec.stop is None and not table.stopped:
            # A pause after each seed would leave workers idle.
            runner.run(runs)
        for seed, jobs in zip(spec.seeds, blocks, strict=True):
            if spec.stop is None or table.stopped:
                break
            runner.run(jobs)
            table.stopped = _look(spec, table, seed, block_value)
        for row in table.rows:
            if row.status == "waiting":
                row.status = "skipped"
        runner.save()
    return table


def open_table(spec: Spec, out_dir: Path, jobs: Sequence[Job]) -> SweepState:
    """A fresh table of these jobs, which goes on counting the attempts and seconds of earlier calls of this spec."""
    earlier = {row["name"]: row for row in read_state(spec, out_dir).get("rows", [])}
    rows = []
    for job in jobs:
        past = earlier.get(job.name, {})
        status: Status = "done" if job.complete else "waiting"
        rows.append(
            JobState(job=job, status=status, attempts=past.get("attempts", 0), seconds=past.get("seconds", 0.0))
        )
    return SweepState(spec=preregistered(spec), rows=rows)


class Runner:
    """Runs the jobs of a table, `workers` at a time, and keeps `state.json` up to date."""

    def __init__(
        self,
        table: SweepState,
        folder: Path,
        launch: Launcher,
        workers: int,
        retries: int,
        show: Callable[[SweepState], None],
    ) -> None:
        self._table, self._folder, self._launch = table, folder, launch
        self._workers, self._retries, self._show = workers, retries, show

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs that are not done and wait for all of them."""
        names = {job.name for job in jobs}
        rows = [row for row in self._table.rows if row.job.name in names and row.status == "waiting"]
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._attempt, row) for row in rows]
            try:
                self._watch(futures)
            # BaseException: mostly a KeyboardInterrupt.
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A thread whose command has just been stopped must not start it again.
                self._retries = -1
                self._launch.stop()
                raise
        # Raise here what a thread raised.
        for future in futures:
            future.result()

    def save(self) -> None:
        """Write `state.json` and show the table."""
        table = self._table
        rows = []
        for row in table.rows:
            state = {"status": row.status, "attempts": row.attempts, "seconds": row.seconds, "error": row.error}
            rows.append({"name": row.job.name, **state})
        looks = [asdict(row) for row in table.looks]
        state = {"spec": table.spec, "rows": rows, "looks": looks, "stopped": table.stopped}
        write_json(self._folder / STATE_FILE, state)
        self._show(table)

    def _watch(self, futures: Sequence[Future[None]]) -> None:
        left = set(futures)
        while left:
            _, left = wait(left, timeout=REFRESH_S)
            self.save()

    def _attempt(self, row: JobState) -> None:
        """Run one job until it is done, its input is bad, or its attempts are used up."""
        tries = 0
        while tries <= self._retries:
            tries += 1
            row.status = "running"
            end = self._launch(row.job.args, self._folder / "logs" / f"{row.job.name}.log")
            row.attempts, row.seconds, row.error = row.attempts + 1, row.seconds + end.seconds, end.error
            if end.returncode in (0, EXIT_INPUT):
                break
        row.status = "done" if row.job.complete and not row.error else "failed"


def _at_ceiling(spec: Spec, table: SweepState, primary_verdict: Callable[[Spec], Verdict] | None) -> str:
    """The reason not to make the runs beyond the ceiling, or ""."""
    assert spec.ceiling is not None
    assert primary_verdict is not None
    if table.failed:
        return "a run that the primary criterion compares has failed"
    verdict = primary_verdict(spec)
    if verdict in spec.ceiling.others_if:
        return ""
    runs = [row for row in table.rows if row.job.seed is not None]
    num_made = sum(row.status == "done" for row in runs)
    return f"at the ceiling: {spec.primary.name} is {verdict} after {num_made} of {len(runs)} runs"


def _look(spec: Spec, table: SweepState, seed: int, block_value: BlockValue) -> str:
    """Apply the stop rules to the blocks so far; returns the reason to stop, or "" to go on.

    Blocks in which the primary has no value are left out.
    """
    assert spec.stop is not None
    done = spec.seeds[: spec.seeds.index(seed) + 1]
    values = []
    for finished in done:
        value = block_value(spec, finished)
        if value is not None:
            values.append(value)
    newest = look(
        values,
        planned=len(spec.seeds),
        alpha=spec.stop.alpha,
        min_blocks=spec.stop.min_blocks,
        expected_effect=spec.budget.expected_effect,
        futility_power=spec.stop.futility_power,
    )
    if newest is None:
        return ""
    table.looks.append(newest)
    if newest.action == "continue":
        return ""
    power = "" if newest.conditional_power is None else f", conditional power {newest.conditional_power:.2f}"
    p = "" if newest.p is None else f", p {newest.p:.2g} against {newest.level:.2g}"
    return f"{newest.action} after {newest.num_blocks} of {newest.planned} blocks: mean {newest.mean:+.3g}{p}{power}"
