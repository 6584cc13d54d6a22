"""The commands that a spec asks for: pools first, then the runs, seed by seed.

Every job is an ordinary `probe` command that reads its settings from a file (`--config`), can be repeated by hand, and
resumes by itself.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.experiments.spec.prereg import preregistered, spec_status
from probe.experiments.spec.resolve import PlannedRun, planned_runs, pool_config
from probe.experiments.spec.types import Spec, SpecStatus
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.settings.run import RunConfig
from replay_pools.storage.files import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command of a sweep; `seed` is None for a pool that is generated before the first block."""

    name: str
    command: tuple[str, ...]  # the verb, after `probe`
    config: RunConfig
    settings_file: Path  # where `config` is written for the command
    directory: Path  # complete when its manifest is there
    out_dir: Path
    target: str  # of `--name`
    seed: int | None = None
    conditions: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    @property
    def args(self) -> tuple[str, ...]:
        """The command line after `probe`."""
        return (*self.command, "--config", str(self.settings_file), "--name", self.target, "--out", str(self.out_dir))

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return (self.directory / MANIFEST_FILE).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A run that a spec asks for, and what is there of it."""

    job: Job
    complete: bool
    spec_status: SpecStatus | None  # None: nothing is there


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """The pools to generate first."""
    jobs = []
    for pool in spec.pools:
        name = f"pool-{pool.name}"
        jobs.append(
            Job(
                name=name,
                command=("pool", "generate"),
                config=pool_config(pool.name, pool.settings, str(spec.path)),
                settings_file=_settings_file(spec, out_dir, name),
                directory=out_dir / "pools" / pool.name,
                out_dir=out_dir,
                target=pool.name,
            )
        )
    return jobs


def block(spec: Spec, seed: int, out_dir: Path) -> list[Job]:
    """The runs of one seed."""
    return [_job(spec, run, seed, out_dir) for run in planned_runs(spec, seed, preregistered(spec))]


def is_compared(job: Job, spec: Spec) -> bool:
    """Whether a training is on one of the sides that the primary criterion compares."""
    primary = spec.primary
    condition, arm = spec.judged
    versus = (primary.versus_condition or condition, primary.versus_arm or arm)
    return (job.conditions[0], job.arms[0]) in ((condition, arm), versus)


def runs_of(spec: Spec, out_dir: Path) -> list[SweepRun]:
    """Every run that the spec asks for, in the order of the sweep, with what is on disk."""
    return [
        SweepRun(job=job, complete=job.complete, spec_status=_status(job, spec))
        for seed in spec.seeds
        for job in block(spec, seed, out_dir)
    ]


def write_settings(jobs: Sequence[Job]) -> None:
    """Write the settings that the commands read."""
    for job in jobs:
        write_json(job.settings_file, {"settings": asdict(job.config)})


STATE_FILE = "state.json"  # of a sweep, in its folder


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Where a sweep keeps its state, its logs, the settings of its jobs, and what it foresaw."""
    return out_dir / "sweeps" / spec.name


def read_state(spec: Spec, out_dir: Path) -> dict[str, Any]:
    """What the sweep of this very spec last wrote of itself (`SweepState`); empty before its first command."""
    path = sweep_folder(spec, out_dir) / STATE_FILE
    state = read_json(path) if path.is_file() else {}
    return state if state.get("spec") == preregistered(spec) else {}


def _job(spec: Spec, run: PlannedRun, seed: int, out_dir: Path) -> Job:
    """Named after its first condition unless it holds several and all, and after its arm where it trains."""
    parts = [spec.name]
    if not len(run.conditions) == len(spec.conditions) > 1:
        parts.append(run.conditions[0])
    arms = run.config.intervention.arms
    if run.config.trains:
        parts += arms
    name = "-".join([*parts, f"seed{seed}"])
    return Job(
        name=name,
        command=(run.config.verb,),
        config=run.config,
        settings_file=_settings_file(spec, out_dir, name),
        directory=out_dir / "runs" / name,
        out_dir=out_dir,
        target=name,
        seed=seed,
        conditions=run.conditions,
        arms=arms,
    )


def _settings_file(spec: Spec, out_dir: Path, name: str) -> Path:
    # By the version of the spec: a dry run of an edited spec must not change what a running sweep has yet to read.
    return sweep_folder(spec, out_dir) / "settings" / spec.sha256[:12] / f"{name}.json"


def _status(job: Job, spec: Spec) -> SpecStatus | None:
    """None before the first step: a run that was refused its input leaves nothing that counts."""
    started = (job.directory / STEPS_FILE).is_file()
    return spec_status(read_json(job.directory / CONFIG_FILE), spec) if started else None
