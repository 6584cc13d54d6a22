"""The runs of a spec as commands: one job for each pool and run, with its configuration, folder and progress.

With frozen weights, one run serves all arms, and conditions that differ only in their objective share one forward and
backward pass. In training, every arm is a run. Each job is an ordinary `probe` command that reads its settings from a
file (`--config`), can be repeated by hand and resumes by itself.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from extraction.words import resolve_directions
from probe.experiments.spec import Cell, Criterion, Spec, SpecCondition
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.settings.loss import LOSS_KEYS, LossCondition, LossSettings, check_recorded
from probe.settings.run import GenerateConfig, ReplayConfig, TrainConfig, read_config
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_json
from replay_pools.environments.registry import get_environment
from replay_pools.pool import MANIFEST_NAME, open_pool, resolve_pool

COMMAND = "{command}"  # placeholder in the command line that starts a run
STATE_FILE = "state.json"  # in the folder of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command of a sweep and its progress: a pool, or a run of some cells."""

    config: ReplayConfig | TrainConfig | GenerateConfig
    settings_file: Path  # holds `config` for the command
    directory: Path  # complete once it has a manifest; its name is the command's `--name`
    conditions: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.settings_file.stem

    @property
    def complete(self) -> bool:
        """True if the run or pool is complete."""
        return (self.directory / MANIFEST_FILE).is_file()

    @property
    def spec_status(self) -> Literal["frozen", "edited", "none"] | None:
        """Whether the run on disk was made under this spec, an edited version or neither; None: no run with steps."""
        path = self.directory / CONFIG_FILE
        if not (self.directory / STEPS_FILE).is_file():
            return None
        here = read_config(read_json(path)["settings"], f"{path} settings").preregistered or ""
        mark = self.config.preregistered or ""
        return "frozen" if here == mark else "edited" if here.partition("@")[0] == mark.partition("@")[0] else "none"

    def makes(self, cell: Cell) -> bool:
        """Return True if it is a run of this arm under this condition."""
        return cell[0] in self.conditions and cell[1] in self.arms


def command_of(job: Job, launch: str, program: Sequence[str]) -> list[str]:
    """Return the command line of a job: `program` and its arguments. For a run, they replace {command} in `launch`.

    Raises:
        InputError: `launch` does not contain {command} exactly once, as a word.
    """
    try:
        words = shlex.split(launch)
    except ValueError:  # an unclosed quote
        words = []
    if words.count(COMMAND) != 1:
        fix = "as 'torchrun --standalone --nproc-per-node 2 --no-python {command}'"
        raise InputError("--launch", expected=f"a command line with the word {COMMAND}", found=repr(launch), fix=fix)
    verb = ("pool", "generate") if isinstance(job.config, GenerateConfig) else (job.config.verb,)
    place = ("--name", job.directory.name, "--out", str(job.directory.parents[1]))
    command = [*program, *verb, "--config", str(job.settings_file), *place]
    if isinstance(job.config, GenerateConfig):  # one process samples a pool, so `launch` does not apply
        return command
    at = words.index(COMMAND)
    return [*words[:at], *command, *words[at + 1 :]]


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return the jobs that generate pools; they precede the runs."""
    folder = _settings_folder(spec, out_dir)
    return [
        Job(
            config=pool.config, settings_file=folder / f"pool-{pool.name}.json", directory=out_dir / "pools" / pool.name
        )
        for pool in spec.pools
    ]


def run_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, seed by seed, in the order of the sweep.

    A replay has one run for each set of conditions that share a pass; a training has one for each arm and condition.
    """
    passes: dict[Any, list[SpecCondition]] = {}
    for row in spec.conditions:
        key = (row.arms, row.seeds, repr(_shared(row.config))) if row.frozen else row.name
        passes.setdefault(key, []).append(row)
    return [
        _job(spec, rows, arms, seed, out_dir)
        for seed in dict.fromkeys([*spec.seeds, *(seed for row in spec.conditions for seed in row.seeds)])
        for rows in passes.values()
        if seed in rows[0].seeds
        for arms in ([rows[0].arms] if rows[0].frozen else [(arm,) for arm in rows[0].arms])
    ]


def before_ceilings(spec: Spec, runs: Sequence[Job]) -> list[tuple[Criterion, list[Job]]]:
    """Return the criteria of the ceiling in order, each with the runs that are made before it is judged."""
    cells: list[Cell] = []
    stages = []
    for criterion in spec.ceilings:
        cells += criterion.sides
        stages.append((criterion, [job for job in runs if any(map(job.makes, cells))]))
    return stages


def write_settings(jobs: Sequence[Job]) -> None:
    """Write the settings file of each job."""
    for job in jobs:
        write_json(job.settings_file, {"settings": asdict(job.config)})


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Return the folder of a sweep's state, logs and settings."""
    return out_dir / "sweeps" / spec.name


def stored_groups(config: ReplayConfig, out_dir: Path) -> ReplaySource | None:
    """Return the groups of a replay, drawn with the seed of its settings; None if it reads a log.

    Raises:
        InputError: a pool is missing or unreadable, the pools give no groups, or the samplers did not record what the
            objective needs.
    """
    source = config.source
    paths = [resolve_pool(name, out_dir) for name in source.replay_dirs]
    if not all((path / MANIFEST_NAME).is_file() for path in paths):  # the first replay imports a log
        return None
    pools = [open_pool(path) for path in paths]
    groups = ReplaySource(pools, per_pool=source.per_pool, match=source.match, steps=config.steps, seed=config.seed)
    samplers = {f"pool {name}": pool.manifest["sampler"] for name, pool in zip(source.replay_dirs, pools, strict=True)}
    check_recorded(config.objectives().values(), samplers)
    return groups


def input_faults(spec: Spec, out_dir: Path) -> list[InputError]:
    """Return the faults of the pools, direction files and problems that the runs read, each once.

    A missing pool that the sweep will generate is no fault.
    """
    made = {pool.name for pool in spec.pools}
    checks: list[tuple[str, Callable[[], Any]]] = []  # place in the spec, and what raises its fault
    environments = [pool.config.rollouts.env for pool in spec.pools]
    for row in spec.conditions:
        place, config = f"conditions.{row.name}: ", row.config
        if isinstance(config, ReplayConfig):
            pools = config.source.replay_dirs
        else:
            pools = () if config.rollouts.teacher is None else (config.rollouts.teacher.pool,)
            environments.append(config.rollouts.env)
        checks += [("", partial(_check_pool, pool, out_dir)) for pool in pools if pool not in made]
        if isinstance(config, ReplayConfig) and made.isdisjoint(pools):
            checks.append((place, partial(stored_groups, config, out_dir)))
        if config.intervention.v_hack is not None:
            checks.append((place, partial(resolve_directions, config.intervention.v_hack, out_dir)))
    checks += [("rollouts.env: ", partial(get_environment, env)) for env in environments]
    faults: dict[str, InputError] = {}
    for place, check in checks:
        try:
            check()
        except InputError as error:
            faults.setdefault(str(error), error.at(f"{spec.path} {place}{error.where}"))
    return [*faults.values()]


def _check_pool(pool: str, out_dir: Path) -> None:
    if not resolve_pool(pool, out_dir).is_dir():
        raise InputError(f"pool {pool}", expected="a directory", found="no such directory")


def _shared(config: ReplayConfig | TrainConfig) -> ReplayConfig | TrainConfig:
    """Return a configuration without what may differ within one pass: the objective, except its normaliser."""
    objective = config.objective
    # v_hack is extracted with the run's normaliser, so another normaliser needs another run.
    normaliser = LossSettings(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)
    return replace(config, objective=normaliser)


def _job(spec: Spec, rows: Sequence[SpecCondition], arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """Return the job of one run, named after its first condition (unless it has all), trained arm and seed."""
    intervention = replace(rows[0].config.intervention, arms=arms)
    config = replace(rows[0].config, seed=seed, preregistered=spec.mark, intervention=intervention)
    if isinstance(config, ReplayConfig):
        base, variants = _shared(config).objective, []
        for row in rows:
            values = {key: getattr(row.config.objective, key) for key in LOSS_KEYS}
            changes = {key: value for key, value in values.items() if value != getattr(base, key)}
            variants.append(LossCondition(name=row.name, changes=changes))
        config = replace(config, objective=base, conditions=tuple(variants))
    parts = [] if len(rows) == len(spec.conditions) > 1 else [rows[0].name]
    name = "-".join([spec.name, *parts, *(arms if config.trains else ()), f"seed{seed}"])
    return Job(
        config=config,
        settings_file=_settings_folder(spec, out_dir) / f"{name}.json",
        directory=out_dir / "runs" / name,
        conditions=tuple(row.name for row in rows),
        arms=arms,
    )


def _settings_folder(spec: Spec, out_dir: Path) -> Path:
    # The path has the spec's hash: jobs of an edited spec must not change files that a running sweep has yet to read.
    return sweep_folder(spec, out_dir) / "settings" / spec.sha256[:12]
