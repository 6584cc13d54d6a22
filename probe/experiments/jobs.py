"""The runs of a spec: the settings of its conditions, and the commands that make its pools and runs.

    spec.settings, overlaid by a condition's settings, then arms and seed  ->  one configuration for each run

With frozen weights, one run serves all arms, and conditions that differ only in their objective share one forward and
backward pass. In training, every arm is a run. Each job is an ordinary `probe` command that reads its settings from a
file (`--config`), can be repeated by hand and resumes by itself.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from extraction.files import resolve_directions
from probe.experiments.spec import Criterion, ResolvedCondition, Spec, SpecStatus
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.settings.loss import LOSS_KEYS, LossCondition, LossSettings, check_recorded
from probe.settings.presets import configure
from probe.settings.run import GenerateConfig, ReplayConfig, RunConfig, TrainConfig, read_config
from probe.settings.words import Verb
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError, refuse
from replay_pools.base.files import read_json, write_json
from replay_pools.base.tables import flat, overlaid
from replay_pools.environments.registry import get_environment
from replay_pools.pool import MANIFEST_NAME, open_pool, resolve_pool

VERBS: tuple[Verb, ...] = ("replay", "train")
# Keys that the sweep sets from `arms`, `seeds` and `conditions` of the spec.
RESERVED = ("verb", "seed", "intervention.arms", "conditions", "preregistered")
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
    spec_status: SpecStatus | None = None  # of the run on disk; None: no run, or not checked

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.settings_file.stem

    @property
    def args(self) -> tuple[str, ...]:
        """Command line after `probe`."""
        verb = ("pool", "generate") if isinstance(self.config, GenerateConfig) else (self.config.verb,)
        name = ("--name", self.directory.name, "--out", str(self.directory.parents[1]))
        return (*verb, "--config", str(self.settings_file), *name)

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
    # One process samples a pool, so `launch` does not apply.
    place = words.index(COMMAND) if job.seed is not None else None
    before, after = ([], []) if place is None else (words[:place], words[place + 1 :])
    return [*before, *program, *job.args, *after]


def resolve(spec: Spec) -> dict[str, ResolvedCondition]:
    """Return {condition: its settings}.

    Raises:
        InputError: an unknown key or a refused value; the error names file, table and key.
    """
    verb = spec.settings.get("verb")
    if verb not in VERBS:
        found = "none" if verb is None else repr(verb)
        raise InputError(f"{spec.path} settings.verb", expected=" or ".join(VERBS), found=found)
    # Only [settings] may give the verb, the first of RESERVED.
    _check_reserved(spec.settings, f"{spec.path} settings", RESERVED[1:])
    resolved = {}
    for condition in spec.conditions:
        where = f"{spec.path} conditions.{condition.name}"
        _check_reserved(condition.settings, where, RESERVED)
        arms = spec.arms_of(condition)
        # A training configuration with several arms is refused, so the check uses the first arm.
        tables = overlaid(overlaid(spec.settings, condition.settings), {"intervention": {"arms": arms[:1]}})
        config = _configured(verb, tables, where if condition.settings else f"{spec.path} settings")
        if not config.trains:
            config = replace(config, intervention=replace(config.intervention, arms=arms))
        seeds = spec.seeds_of(condition)
        resolved[condition.name] = ResolvedCondition(name=condition.name, arms=arms, seeds=seeds, config=config)
    return resolved


def pool_config(name: str, settings: Mapping[str, Any], where: str) -> GenerateConfig:
    """Return the settings of a pool that a spec generates.

    Raises:
        InputError: as `resolve`; the message begins with `where`, the spec's file.
    """
    _check_reserved(settings, f"{where} pools.{name}", ("verb", "preregistered"))
    return _configured("generate", settings, f"{where} pools.{name}")


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return the jobs that generate pools; they precede the runs."""
    return [
        Job(
            config=pool_config(pool.name, pool.settings, str(spec.path)),
            settings_file=_settings_file(spec, out_dir, f"pool-{pool.name}"),
            directory=out_dir / "pools" / pool.name,
        )
        for pool in spec.pools
    ]


def run_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, seed by seed, in the order of the sweep.

    A replay has one run for each set of conditions that share a pass; a training has one for each arm and condition.
    """
    seeds = dict.fromkeys(seed for table in (spec, *spec.resolved.values()) for seed in table.seeds)
    return [
        _job(spec, conditions, arms, seed, out_dir)
        for seed in seeds
        for conditions in _passes(spec.resolved.values())
        if seed in conditions[0].seeds
        for arms in ([conditions[0].arms] if conditions[0].frozen else [(arm,) for arm in conditions[0].arms])
    ]


def is_about(job: Job, criterion: Criterion, spec: Spec) -> bool:
    """Return whether a training is on one side of a criterion."""
    return (job.conditions[0], job.arms[0]) in spec.sides_of(criterion)


def spec_status(config: RunConfig, spec: Spec) -> SpecStatus:
    """Return whether a run with these settings was made under this spec, an edited version of it, or neither."""
    stored = config.preregistered
    if stored == spec.mark:
        return "frozen"
    return "edited" if stored is not None and stored.partition("@")[0] == spec.name else "none"


def runs_of(spec: Spec, out_dir: Path) -> list[Job]:
    """Return every run of the spec, in the order of the sweep, with the status of the run on disk."""
    runs = []
    for run in run_jobs(spec, out_dir):
        # A run with refused input has no steps and does not count.
        status, path = None, run.directory / CONFIG_FILE
        if (run.directory / STEPS_FILE).is_file():
            status = spec_status(read_config(read_json(path)["settings"], f"{path} settings"), spec)
        runs.append(replace(run, spec_status=status))
    return runs


def write_settings(jobs: Sequence[Job]) -> None:
    """Write the settings file of each job."""
    for job in jobs:
        write_json(job.settings_file, {"settings": asdict(job.config)})


def sweep_folder(spec: Spec, out_dir: Path) -> Path:
    """Return the folder of a sweep's state, logs and settings."""
    return out_dir / "sweeps" / spec.name


def read_state(spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Return the table last written by the sweep of this version of the spec; empty before its first command."""
    path = sweep_folder(spec, out_dir) / STATE_FILE
    state = read_json(path) if path.is_file() else {}
    return state if state.get("spec") == spec.mark else {}


def stored_groups(condition: ResolvedCondition, out_dir: Path) -> ReplaySource | None:
    """Return the groups of a replay, drawn with the seed of its settings; None if it samples or reads a log.

    Raises:
        InputError: a pool is missing or unreadable, the pools give no groups, or the samplers did not record what the
            objective needs.
    """
    config = condition.config
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
    configs: list[Any] = [pool_config(pool.name, pool.settings, str(spec.path)) for pool in spec.pools]
    for name, condition in spec.resolved.items():
        place, config = f"conditions.{name}: ", condition.config
        there = [is_sound("", _check_pool, pool, out_dir) for pool in condition.pools if pool not in made]
        # Groups need all pools of a condition.
        if all(there) and made.isdisjoint(condition.pools):
            is_sound(place, stored_groups, condition, out_dir)
        if config.intervention.v_hack is not None:
            is_sound(place, resolve_directions, config.intervention.v_hack, out_dir)
        configs += [] if isinstance(config, ReplayConfig) else [config]
    for env in dict.fromkeys(config.rollouts.env for config in configs):
        is_sound("rollouts.env: ", get_environment, env)
    return [*faults.values()]


def _check_pool(pool: str, out_dir: Path) -> None:
    if not resolve_pool(pool, out_dir).is_dir():
        raise InputError(f"pool {pool}", expected="a directory", found="no such directory")


def _check_reserved(table: Mapping[str, Any], where: str, reserved: tuple[str, ...]) -> None:
    """Refuse keys that the sweep sets."""
    if taken := [key for key in flat(table) if key in reserved]:
        expected = "no key that the sweep sets (arms, seeds, conditions, verb)"
        raise InputError(where, expected=expected, found=taken[0])


def _configured(verb: Verb, tables: Mapping[str, Any], where: str) -> Any:
    """Call `configure` on tables of a spec, with errors that name the place in the spec."""
    leaves = {key: value for key, value in flat(tables).items() if key != "verb"}
    preset = leaves.pop("preset", None)
    if not isinstance(preset, str | None):
        raise InputError(f"{where}.preset", expected="a name or a .toml file", found=repr(preset))
    try:
        return configure(verb, preset=preset, options=leaves)
    except InputError as error:
        refuse([part.at(f"{where}: {part.where.removeprefix('settings ')}") for part in error.errors])
        raise


def _passes(conditions: Iterable[ResolvedCondition]) -> list[list[ResolvedCondition]]:
    """Return the conditions of each pass; replays that differ only in the objective share one."""
    passes: list[list[ResolvedCondition]] = []
    for condition in conditions:
        for shared in passes:
            first = shared[0]
            same = (first.arms, first.seeds, first.frozen) == (condition.arms, condition.seeds, True)
            if same and _shared(first.config) == _shared(condition.config):
                shared.append(condition)
                break
        else:
            passes.append([condition])
    return passes


def _shared(config: ReplayConfig | TrainConfig) -> ReplayConfig | TrainConfig:
    """Return a configuration without what may differ within one pass: the objective, except its normaliser."""
    objective = config.objective
    # v_hack is extracted with the run's normaliser, so another normaliser needs another run.
    normaliser = LossSettings(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)
    return replace(config, objective=normaliser)


def _job(spec: Spec, conditions: Sequence[ResolvedCondition], arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """Return the job of one run, named after its first condition (unless it has all), trained arm and seed."""
    first = conditions[0]
    intervention = replace(first.config.intervention, arms=arms)
    config = replace(first.config, seed=seed, preregistered=spec.mark, intervention=intervention)
    if isinstance(config, ReplayConfig):
        base = _shared(config).objective
        changes = []
        for condition in conditions:
            objective = condition.config.objective
            values = {key: getattr(objective, key) for key in LOSS_KEYS}
            different = {key: value for key, value in values.items() if value != getattr(base, key)}
            changes.append(LossCondition(name=condition.name, changes=different))
        config = replace(config, objective=base, conditions=tuple(changes))
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
