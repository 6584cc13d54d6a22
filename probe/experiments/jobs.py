"""The runs of a spec as commands: one job for each pool and run, with its configuration, folder and progress.

With frozen weights, one run serves all arms, and conditions that differ only in their objective share one forward and
backward pass. In training, every arm is a run. Each job is an ordinary `probe` command that reads its settings from a
file (`--config`), can be repeated by hand and resumes by itself.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from extraction.files import resolve_directions
from probe.experiments.spec import Criterion, Spec, SpecCondition
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
    """One command of a sweep and its progress; `seed` is None for a pool, which is generated before the runs."""

    config: ReplayConfig | TrainConfig | GenerateConfig
    settings_file: Path  # holds `config` for the command
    directory: Path  # complete once it has a manifest; its name is the command's `--name`
    seed: int | None = None
    conditions: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    # Whether the run on disk was made under this spec, an edited version or neither; None: no run, or not checked.
    spec_status: Literal["frozen", "edited", "none"] | None = None

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.settings_file.stem

    @property
    def complete(self) -> bool:
        """True if the run or pool is complete."""
        return (self.directory / MANIFEST_FILE).is_file()


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
    if job.seed is None:  # one process samples a pool, so `launch` does not apply
        return command
    at = words.index(COMMAND)
    return [*words[:at], *command, *words[at + 1 :]]


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return the jobs that generate pools; they precede the runs."""
    return [
        Job(
            config=pool.config,
            settings_file=_settings_file(spec, out_dir, f"pool-{pool.name}"),
            directory=out_dir / "pools" / pool.name,
        )
        for pool in spec.pools
    ]


def run_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, seed by seed, in the order of the sweep.

    A replay has one run for each set of conditions that share a pass; a training has one for each arm and condition.
    """
    passes: dict[Any, list[SpecCondition]] = {}
    for condition in spec.conditions:
        frozen = condition.frozen
        key = (condition.arms, condition.seeds, repr(_shared(condition.config))) if frozen else condition.name
        passes.setdefault(key, []).append(condition)
    return [
        _job(spec, conditions, arms, seed, out_dir)
        for seed in dict.fromkeys([*spec.seeds, *(seed for row in spec.conditions for seed in row.seeds)])
        for conditions in passes.values()
        if seed in conditions[0].seeds
        for arms in ([conditions[0].arms] if conditions[0].frozen else [(arm,) for arm in conditions[0].arms])
    ]


def before_ceilings(spec: Spec, runs: Sequence[Job]) -> list[tuple[Criterion, list[Job]]]:
    """Return the criteria of the ceiling in order, each with the runs that are made before it is judged."""
    stages, cells = [], set()
    for criterion in spec.ceilings:
        cells |= {*spec.sides_of(criterion)}
        stages.append((criterion, [job for job in runs if (job.conditions[0], job.arms[0]) in cells]))
    return stages


def runs_of(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, in the order of the sweep, with the status of the run on disk."""
    runs = []
    for run in run_jobs(spec, out_dir):
        status, path = None, run.directory / CONFIG_FILE
        # A run with refused input has no steps and does not count.
        if (run.directory / STEPS_FILE).is_file():
            mark = read_config(read_json(path)["settings"], f"{path} settings").preregistered or ""
            status = "frozen" if mark == spec.mark else "edited" if mark.partition("@")[0] == spec.name else "none"
        runs.append(replace(run, spec_status=status))
    return runs


def write_settings(jobs: Sequence[Job]) -> None:
    """Write the settings file of each job."""
    for job in jobs:
        write_json(job.settings_file, {"settings": asdict(job.config)})


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Return the folder of a sweep's state, logs and settings."""
    return out_dir / "sweeps" / spec.name


def stored_groups(config: ReplayConfig | TrainConfig, out_dir: Path) -> ReplaySource | None:
    """Return the groups of a replay, drawn with the seed of its settings; None if it samples or reads a log.

    Raises:
        InputError: a pool is missing or unreadable, the pools give no groups, or the samplers did not record what the
            objective needs.
    """
    if not isinstance(config, ReplayConfig):
        return None
    paths = [resolve_pool(name, out_dir) for name in config.source.replay_dirs]
    if not all((path / MANIFEST_NAME).is_file() for path in paths):  # the first replay imports a log
        return None
    pools, source, steps = [open_pool(path) for path in paths], config.source, config.steps
    groups = ReplaySource(pools, per_pool=source.per_pool, match=source.match, steps=steps, seed=config.seed)
    samplers = {f"pool {name}": pool.manifest["sampler"] for name, pool in zip(source.replay_dirs, pools, strict=True)}
    check_recorded(config.objectives().values(), samplers)
    return groups


def input_faults(spec: Spec, out_dir: Path) -> list[InputError]:
    """Return the faults of the pools, direction files and problems that the runs read, without duplicates.

    A missing pool that the sweep will generate is no fault.
    """
    faults: dict[str, InputError] = {}

    def is_sound(place: str, check: Callable[..., Any], *arguments: Any) -> bool:
        try:
            check(*arguments)
        except InputError as error:
            named = error.at(f"{spec.path} {place}{error.where}")
            faults.setdefault(str(named), named)
            return False
        return True

    made = {pool.name for pool in spec.pools}
    configs: list[Any] = [pool.config for pool in spec.pools]
    for condition in spec.conditions:
        place, config = f"conditions.{condition.name}: ", condition.config
        if isinstance(config, ReplayConfig):
            pools = config.source.replay_dirs
        else:
            pools = () if config.rollouts.teacher is None else (config.rollouts.teacher.pool,)
            configs.append(config)
        there = [is_sound("", _check_pool, pool, out_dir) for pool in pools if pool not in made]
        # Groups need all pools of a condition.
        if all(there) and made.isdisjoint(pools):
            is_sound(place, stored_groups, config, out_dir)
        if config.intervention.v_hack is not None:
            is_sound(place, resolve_directions, config.intervention.v_hack, out_dir)
    for env in dict.fromkeys(config.rollouts.env for config in configs):
        is_sound("rollouts.env: ", get_environment, env)
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


def _job(spec: Spec, conditions: Sequence[SpecCondition], arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """Return the job of one run, named after its first condition (unless it has all), trained arm and seed."""
    first = conditions[0]
    intervention = replace(first.config.intervention, arms=arms)
    config = replace(first.config, seed=seed, preregistered=spec.mark, intervention=intervention)
    if isinstance(config, ReplayConfig):
        base, variants = _shared(config).objective, []
        for condition in conditions:
            values = {key: getattr(condition.config.objective, key) for key in LOSS_KEYS}
            changes = {key: value for key, value in values.items() if value != getattr(base, key)}
            variants.append(LossCondition(name=condition.name, changes=changes))
        config = replace(config, objective=base, conditions=tuple(variants))
    parts = [] if len(conditions) == len(spec.conditions) > 1 else [first.name]
    name = "-".join([spec.name, *parts, *(arms if config.trains else ()), f"seed{seed}"])
    return Job(
        config=config,
        settings_file=_settings_file(spec, out_dir, name),
        directory=out_dir / "runs" / name,
        seed=seed,
        conditions=tuple(condition.name for condition in conditions),
        arms=arms,
    )


def _settings_file(spec: Spec, out_dir: Path, name: str) -> Path:
    # The path has the spec's hash: jobs of an edited spec must not change files that a running sweep has yet to read.
    return sweep_folder(spec, out_dir) / "settings" / spec.sha256[:12] / f"{name}.json"
