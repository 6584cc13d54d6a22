"""The commands that a spec asks for: pools first, then conditions x arms x seeds in blocks of one seed.

Every job is an ordinary `probe` command that can be repeated by hand, and resumes by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import orjson

from probe.experiments.prereg import preregistered, spec_status
from probe.experiments.spec import Condition, Option, Spec, SpecStatus
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.settings.loss import LossSettings
from replay_pools.files import read_json
from replay_pools.nested import flat

# What `probe replay --condition` takes: conditions that differ in these alone are evaluated side by side in one pass.
ONE_PASS = tuple(field.name for field in fields(LossSettings))
NORMALISER = ("loss_type", "max_completion_length")  # v_hack has that of its run: with another one there are no nulls


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
    """The runs of one seed. Frozen weights: one pass serves all arms and conditions. Training: each is a run."""
    return [
        _job(spec, conditions, arms, seed, out_dir)
        for conditions in _passes(spec)
        for arms in _runs(spec, conditions[0])
    ]


def _runs(spec: Spec, condition: Condition) -> list[tuple[str, ...]]:
    """The arms under a condition, those that one run serves together."""
    arms = spec.arms_of(condition)
    return [arms] if frozen(spec, condition) else [(arm,) for arm in arms]


def _passes(spec: Spec) -> list[list[Condition]]:
    """The conditions, those that one pass serves together."""
    passes: dict[str, list[Condition]] = {}
    for condition in spec.conditions:
        own = spec.options(condition)
        others = {name: value for name, value in own.items() if name not in ONE_PASS or name in NORMALISER}
        key = repr((sorted(others.items()), spec.arms_of(condition))) if frozen(spec, condition) else condition.name
        passes.setdefault(key, []).append(condition)
    return list(passes.values())


def runs_of(spec: Spec, out_dir: Path) -> list[SweepRun]:
    """Every run that the spec asks for, in the order of the sweep, with what is on disk."""
    return [
        SweepRun(job=job, complete=job.complete, spec_status=_status(job, spec))
        for seed in spec.seeds
        for job in block(spec, seed, out_dir)
    ]


def flags(options: Mapping[str, Option]) -> list[str]:
    """Options as command-line arguments: true is a flag, false leaves it off, a list is joined by commas, and a table
    repeats its option with every setting in it, as TABLE.KEY=VALUE.
    """
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):  # the JSON of plain values and of their lists is TOML as well
            rows = (f"{key}={orjson.dumps(leaf).decode()}" for key, leaf in flat(value).items())
            arguments += [part for row in rows for part in (option, row)]
        elif isinstance(value, bool):
            arguments += [option] if value else []
        else:
            arguments += [option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return arguments


def _job(spec: Spec, conditions: list[Condition], arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """The run of one pass and seed in some arms: named after its first condition unless it holds several and all, and
    after its arm where that is one of several runs.
    """
    first = [] if len(conditions) == len(spec.conditions) > 1 else [conditions[0].name]
    name = "-".join([spec.name, *first, *(() if frozen(spec, conditions[0]) else arms), f"seed{seed}"])
    own = ("--name", name, "--out", str(out_dir), "--arm", ",".join(arms), "--seed", str(seed))
    mark = ("--preregistered", preregistered(spec))
    return Job(
        name=name,
        args=(spec.base.verb, *own, *mark, *_own_flags(spec, conditions)),
        directory=out_dir / "runs" / name,
        seed=seed,
        conditions=tuple(condition.name for condition in conditions),
        arms=arms,
    )


def _own_flags(spec: Spec, conditions: list[Condition]) -> list[str]:
    """The options of a pass: in a replay, those of the loss belong to its conditions."""
    options = spec.options(conditions[0])
    if spec.base.verb == "train":
        return flags(options)
    shared = flags({name: value for name, value in options.items() if name not in ONE_PASS})
    return shared + [part for condition in conditions for part in _condition(spec, condition)]


def _condition(spec: Spec, condition: Condition) -> tuple[str, str]:
    """`--condition NAME:key=value,...` with every setting of the loss that the base or the condition names."""
    settings = [f"{name}={value}" for name, value in spec.options(condition).items() if name in ONE_PASS]
    return "--condition", condition.name + (f":{','.join(settings)}" if settings else "")


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Where a sweep keeps its state, its logs, and what it foresaw (`probe.experiments.foreseen`)."""
    return out_dir / "sweeps" / spec.name


def frozen(spec: Spec, condition: Condition) -> bool:
    """Whether nothing is trained: all arms then see the same gradients, and one pass serves them all."""
    return spec.base.verb == "replay" and spec.options(condition).get("lr", 0) == 0


def _status(job: Job, spec: Spec) -> SpecStatus | None:
    """None before the first step: a run that was refused its input leaves nothing that counts."""
    started = (job.directory / STEPS_FILE).is_file()
    return spec_status(read_json(job.directory / CONFIG_FILE), spec) if started else None
