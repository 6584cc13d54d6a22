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
from typing import Any

from extraction.settings import resolve_directions
from probe.experiments.spec import Cell, Criterion, Spec, SpecCondition
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.settings.loss import LOSS_KEYS, LossCondition, LossSettings
from probe.settings.verbs import GenerateConfig, ReplayConfig, TrainConfig
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_json
from replay_pools.environments.registry import get_environment
from replay_pools.pool import Pool, open_pool, resolve_pool

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
    def made_under(self) -> str | None:
        """The spec of the run on disk, NAME@SHA256, "" if it has none; None without a run that has steps."""
        if not (self.directory / STEPS_FILE).is_file():
            return None
        return read_json(self.directory / CONFIG_FILE)["settings"].get("preregistered") or ""

    def write_settings(self) -> None:
        """Write the settings file."""
        write_json(self.settings_file, {"settings": asdict(self.config)})

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
    place = ("--config", str(job.settings_file), "--name", job.directory.name, "--out", str(job.directory.parents[1]))
    if isinstance(job.config, GenerateConfig):  # one process samples a pool, so `launch` does not apply
        return [*program, "pool", "generate", *place]
    at = words.index(COMMAND)
    return [*words[:at], *program, job.config.verb, *place, *words[at + 1 :]]


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return the jobs that generate pools; they precede the runs."""
    files = {pool.name: _settings_file(spec, f"pool-{pool.name}", out_dir) for pool in spec.pools}
    return [
        Job(config=pool.config, settings_file=files[pool.name], directory=out_dir / "pools" / pool.name)
        for pool in spec.pools
    ]


def run_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, seed by seed, in the order of the sweep.

    A replay has one run for each set of conditions that share a pass; a training has one for each arm and condition.
    """
    passes: dict[Any, list[SpecCondition]] = {}
    for row in spec.conditions:
        key = row.name if spec.trains else (row.arms, row.seeds, repr(_shared(row.config)))
        passes.setdefault(key, []).append(row)
    return [
        _job(spec, rows, arms, seed, out_dir)
        for seed in dict.fromkeys([*spec.seeds, *(seed for row in spec.conditions for seed in row.seeds)])
        for rows in passes.values()
        if seed in rows[0].seeds
        for arms in ([(arm,) for arm in rows[0].arms] if spec.trains else [rows[0].arms])
    ]


def before_ceilings(spec: Spec, runs: Sequence[Job]) -> list[tuple[Criterion, list[Job]]]:
    """Return the criteria of the ceiling in order, each with the runs that are made before it is judged."""
    names = () if spec.ceiling is None else spec.ceiling.criteria or (spec.primary.name,)
    cells, stages = list[Cell](), []
    for criterion in (row for name in names for row in spec.criteria if row.name == name):
        cells += criterion.sides
        stages.append((criterion, [job for job in runs if any(map(job.makes, cells))]))
    return stages


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Return the folder of a sweep's state, logs and settings."""
    return out_dir / "sweeps" / spec.name


def stored_groups(config: ReplayConfig, out_dir: Path) -> ReplaySource:
    """Return the groups of a replay, drawn with the seed of its settings; InputError if its pools give none."""
    source, pools = config.source, [_open_pool(name, out_dir) for name in config.source.replay_dirs]
    return ReplaySource(pools, per_pool=source.per_pool, match=source.match, steps=config.steps, seed=config.seed)


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
        checks += [("", partial(_open_pool, pool, out_dir)) for pool in pools if pool not in made]
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


def _open_pool(name: str, out_dir: Path) -> Pool:
    return open_pool(resolve_pool(name, out_dir))


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
            loss = row.config.objective
            changes = {key: value for key in LOSS_KEYS if (value := getattr(loss, key)) != getattr(base, key)}
            variants.append(LossCondition(name=row.name, changes=changes))
        config = replace(config, objective=base, conditions=tuple(variants))
    parts = [] if len(rows) == len(spec.conditions) > 1 else [rows[0].name]
    name = "-".join([spec.name, *parts, *(arms if spec.trains else ()), f"seed{seed}"])
    return Job(
        config=config,
        settings_file=_settings_file(spec, name, out_dir),
        directory=out_dir / "runs" / name,
        conditions=tuple(row.name for row in rows),
        arms=arms,
    )


def _settings_file(spec: Spec, name: str, out_dir: Path) -> Path:
    # The path has the spec's hash: jobs of an edited spec must not change files that a running sweep has yet to read.
    return sweep_folder(spec, out_dir) / "settings" / spec.sha256[:12] / f"{name}.json"
