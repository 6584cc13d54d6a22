"""The commands that a spec asks for: pools first, then conditions x arms x seeds in blocks of one seed.

Every job is an ordinary `probe` command that can be repeated by hand, and resumes by itself.
"""

from dataclasses import dataclass
from pathlib import Path

from probe.prereg import preregistered, spec_status
from probe.runs import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.spec import Condition, Option, Spec, SpecStatus
from replay_pools.files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command of a sweep; `seed` is None for a pool that is generated before the first block."""

    name: str
    args: tuple[str, ...]  # after `probe`
    directory: Path  # complete when its manifest is there
    seed: int | None = None
    conditions: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

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
    return [
        Job(
            name=f"pool-{pool.name}",
            args=("pool", "generate", "--name", pool.name, "--out", str(out_dir), *flags(pool.options)),
            directory=out_dir / "pools" / pool.name,
        )
        for pool in spec.pools
    ]


def block(spec: Spec, seed: int, out_dir: Path) -> list[Job]:
    """The runs of one seed. Frozen weights: one pass serves all arms. Training: an arm is a run."""
    return [
        _job(spec, condition, arms, seed, out_dir)
        for condition in spec.conditions
        for arms in ([spec.arms] if frozen(spec, condition) else [(arm,) for arm in spec.arms])
    ]


def runs_of(spec: Spec, out_dir: Path) -> list[SweepRun]:
    """Every run that the spec asks for, in the order of the sweep, with what is on disk."""
    return [
        SweepRun(job=job, complete=job.complete, spec_status=_status(job, spec))
        for seed in spec.seeds
        for job in block(spec, seed, out_dir)
    ]


def flags(options: dict[str, Option]) -> list[str]:
    """Options as command-line arguments: true is a flag, false leaves it off, lists are joined by commas."""
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [option] if value else []
        else:
            arguments += [option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return arguments


def _job(spec: Spec, condition: Condition, arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """The run of one condition and seed in some arms."""
    parts = [spec.name, condition.name, *(arms if arms != spec.arms else ()), f"seed{seed}"]
    name = "-".join(parts)
    own = ("--name", name, "--out", str(out_dir), "--arm", ",".join(arms), "--seed", str(seed))
    mark = ("--preregistered", preregistered(spec))
    return Job(
        name=name,
        args=(spec.base.verb, *own, *mark, *flags(spec.options(condition))),
        directory=out_dir / "runs" / name,
        seed=seed,
        conditions=(condition.name,),
        arms=arms,
    )


def frozen(spec: Spec, condition: Condition) -> bool:
    """Whether nothing is trained: all arms then see the same gradients, and one pass serves them all."""
    return spec.base.verb == "replay" and spec.options(condition).get("lr", 0) == 0


def _status(job: Job, spec: Spec) -> SpecStatus | None:
    """None before the first step: a run that was refused its input leaves nothing that counts."""
    started = (job.directory / STEPS_FILE).is_file()
    return spec_status(read_json(job.directory / CONFIG_FILE), spec) if started else None
