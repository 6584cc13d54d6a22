"""Refusals before anything is run: criteria that no run could answer, what no data could decide, and missing inputs.

    open_spec       a spec whose questions have answers, which its decisions can reach; else all that is wrong at once
    input_faults    pools and direction files that its runs read and that are not there, or do not serve
    environment_faults    the same of files of problems

`prereg` checks that a spec fits together, `floors` that its tests can pass, `reach` that its decisions can be taken.
`vacuity` names what makes no difference; that is not refused.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from probe.analysis.metrics import QUOTIENT_STATISTICS, Availability, replay_metrics, training_metrics
from probe.experiments.spec.floors import unpassable_criteria
from probe.experiments.spec.prereg import load_spec
from probe.experiments.spec.reach import unreachable_decisions
from probe.experiments.spec.resolve import pool_config
from probe.experiments.spec.stored import stored
from probe.experiments.spec.types import Criterion, ResolvedCondition, Spec, SpecCondition
from probe.experiments.spec.vacuity import settings_key, vacuous_parts
from probe.records.root import DEFAULT_OUT
from probe.settings.arms import measured_arm
from probe.settings.loss import check_recorded
from probe.settings.run import ReplayConfig
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError, refuse
from replay_pools.pool import MANIFEST_NAME, resolve_pool
from replay_pools.storage.files import by_name, read_json

EXTREMES = ("min", "max", "n")  # all that there is of steps of training, which are autocorrelated


def open_spec(path: Path, out_dir: Path = DEFAULT_OUT) -> Spec:
    """Read a spec, and refuse what no run of it could answer or decide.

    Args:
        out_dir: where pools are looked up, whose prompts say what a test over prompts can reach.

    Raises:
        InputError: what `load_spec` refuses; a metric, unit, arm, statistic or null that there is none of.
        InputErrors: several of those, and of criteria that are never PASS and decisions that are never taken.
    """
    spec = load_spec(path)
    unanswerable = _unanswerable(spec)
    # A criterion about nothing has neither a smallest p nor verdicts.
    refuse(unanswerable or undecidable(spec, out_dir))
    return spec


def undecidable(spec: Spec, out_dir: Path) -> list[InputError]:
    """What no data could decide: criteria that are never PASS, decisions that are never taken."""
    vacuous = {part.where for part in vacuous_parts(spec, out_dir)}
    never_pass = set()
    for criterion in spec.criteria:
        key = f"criteria.{criterion.name}"
        if any(where == key or where.startswith(f"{key}.") for where in vacuous):
            never_pass.add(criterion.name)
    return [*unpassable_criteria(spec, out_dir), *unreachable_decisions(spec, frozenset(never_pass))]


def input_faults(spec: Spec, out_dir: Path) -> list[InputError]:
    """What is wrong with the pools and direction files that conditions name.

    Pools that the sweep generates first are not there yet, and are no fault.
    """
    made = {pool.name for pool in spec.pools}
    faults: dict[str, InputError] = {}
    for condition in spec.resolved.values():
        pools = [pool for pool in condition.pools if pool not in made]
        checks: list[Callable[[], None]] = [
            *(partial(_check_pool, spec, pool, out_dir) for pool in pools),
            partial(_check_directions, spec, condition, out_dir),
        ]
        before = len(faults)
        for check in checks:
            _collect(faults, check)
        # Groups are made of all pools of a condition, and only where each of them can be read.
        if len(faults) == before and len(pools) == len(condition.pools):
            _collect(faults, partial(_check_groups, spec, condition, out_dir))
    return [*faults.values()]


def environment_faults(spec: Spec) -> list[InputError]:
    """What is wrong with the files of problems that trainings and pools sample from, once for each."""
    configs = [condition.config for condition in spec.resolved.values()]
    configs = [config for config in configs if not isinstance(config, ReplayConfig)]
    configs += [pool_config(pool.name, pool.settings, str(spec.path)) for pool in spec.pools]
    faults: dict[str, InputError] = {}
    for config in configs:
        _collect(faults, partial(_check_environment, spec, config.rollouts.env))
    return [*faults.values()]


def _check_environment(spec: Spec, env: str) -> None:
    try:
        get_environment(env)
    except InputError as error:
        where = f"{spec.path} rollouts.env: {error.where}"
        raise InputError(where, expected=error.expected, found=error.found, fix=error.fix) from error


def _collect(faults: dict[str, InputError], check: Callable[[], None]) -> None:
    """Run a check, and keep what it refuses, once."""
    try:
        check()
    except InputError as error:
        faults.setdefault(str(error), error)


def _unanswerable(spec: Spec) -> list[InputError]:
    """Where a metric does not exist, or has not the unit, the arm, the statistic or the null asked for."""
    faults: dict[str, InputError] = {}
    for criterion in spec.criteria:
        for condition in _sides(spec, criterion):
            _collect(faults, partial(_check, spec, criterion, condition))
    return [*faults.values()]


def _check_pool(spec: Spec, pool: str, out_dir: Path) -> None:
    try:
        path = resolve_pool(pool, out_dir)
    except InputError as error:
        raise InputError(f"{spec.path} {error.where}", expected=error.expected, found=error.found) from error
    if not path.is_dir():
        raise InputError(f"{spec.path} pool {pool}", expected="a directory", found="no such directory")


def _check_directions(spec: Spec, condition: ResolvedCondition, out_dir: Path) -> None:
    """The direction file of a condition, given by its path or its name in `out_dir`/directions."""
    name = condition.config.intervention.v_hack
    if name is not None and not directions_file(name, out_dir).is_file():
        raise InputError(
            f"{spec.path} {settings_key(condition.name, 'intervention.v_hack')}",
            expected=f"a file of probe extract, or its name in {out_dir / 'directions'}",
            found=repr(name),
            fix=f"probe extract --name {Path(name).stem}",
        )


def directions_file(name: str, out_dir: Path) -> Path:
    """The direction file that a setting names: a path, or else a name in `out_dir`/directions."""
    return by_name(Path(name), out_dir / "directions" / f"{Path(name).name}.safetensors")


def _check_groups(spec: Spec, condition: ResolvedCondition, out_dir: Path) -> None:
    """The pools of a replay give groups, and their samplers what its objective reads of them."""
    if not isinstance(condition.config, ReplayConfig):
        return
    try:
        stored(condition, out_dir)
        samplers = {}
        for pool in condition.pools:
            manifest = resolve_pool(pool, out_dir) / MANIFEST_NAME
            if manifest.is_file():
                samplers[f"pool {pool}"] = read_json(manifest).get("sampler")
        check_recorded(condition.config.objectives().values(), samplers)
    except InputError as error:
        where = f"{spec.path} conditions.{condition.name}: {error.where}"
        raise InputError(where, expected=error.expected, found=error.found, fix=error.fix) from error


def _sides(spec: Spec, criterion: Criterion) -> list[SpecCondition]:
    """Both sides; the first condition where none is named."""
    names = (spec.condition_of(criterion).name, criterion.versus_condition)
    return [condition for condition in spec.conditions if condition.name in names]


def _check(spec: Spec, criterion: Criterion, condition: SpecCondition) -> None:
    trains = not spec.resolved[condition.name].frozen
    known = training_metrics() if trains else replay_metrics()
    kind = "runs that train" if trains else "a replay"
    entry = known.get(criterion.metric)
    if entry is None:
        close = get_close_matches(criterion.metric, known, n=1)
        fix = f"did you mean {close[0]}?" if close else "see spec/guide/specs.md"
        raise _wrong(spec, criterion, "metric", f"a metric of {kind}", repr(criterion.metric), fix)
    if criterion.unit not in entry.units:
        units = " or ".join(entry.units)
        raise _wrong(spec, criterion, "unit", f"{units}, of {criterion.metric} in {kind}", repr(criterion.unit))
    if entry.is_quotient and criterion.statistic not in QUOTIENT_STATISTICS:
        expected = f"{', '.join(QUOTIENT_STATISTICS)}, of {criterion.metric}, which has no value by {criterion.unit}"
        raise _wrong(spec, criterion, "statistic", expected, repr(criterion.statistic))
    if trains and criterion.unit == "step" and criterion.statistic not in EXTREMES:
        expected = f"{', '.join(EXTREMES)} of steps of training (autocorrelated), or the unit seed"
        raise _wrong(spec, criterion, "statistic", expected, repr(criterion.statistic))
    if _has_null(criterion) and (reason := _no_null(criterion, entry)):
        fix = "N4 is a diagnostic of cosines: rewards have an axis of their own" if criterion.null == "N4" else ""
        raise _wrong(spec, criterion, "null", reason, repr(criterion.null), fix)
    if not trains:
        _check_arm(spec, criterion, condition, entry)


def _check_arm(spec: Spec, criterion: Criterion, condition: SpecCondition, entry: Availability) -> None:
    """What is derived, and every null, is of the arm that stands for vanilla."""
    measured = measured_arm(spec.arms_of(condition))
    of_one_arm = entry.measured_alone or _has_null(criterion)
    if measured is None and of_one_arm:
        raise _wrong(spec, criterion, "metric", "a metric of any arm: no arm uses v_hack", repr(criterion.metric))
    asked = [arm for arm in (criterion.arm, criterion.versus_arm) if arm not in (None, measured)]
    if asked and of_one_arm:
        what = criterion.metric if entry.measured_alone else f"the null {criterion.null} of {criterion.metric}"
        key = "arm" if criterion.arm == asked[0] else "versus_arm"
        raise _wrong(spec, criterion, key, f"{measured}, of which alone {what} is measured", repr(asked[0]))


def _has_null(criterion: Criterion) -> bool:
    """Apart from pairs swapped within themselves, which `probe.experiments.spec.vacuity` says are void."""
    return criterion.null not in ("none", "pair-swap")


def _no_null(criterion: Criterion, entry: Availability) -> str:
    """What to expect instead of a null that is never measured; empty where it is."""
    if criterion.versus_arm is not None or criterion.versus_condition is not None:
        return "none of a difference, which is tested against 0"
    if criterion.null not in entry.nulls or criterion.unit != "prompt":
        there = f"or one of {', '.join(entry.nulls)} by prompt" if entry.nulls else "(there is no null of it)"
        return f"none {there}"
    return ""


def _wrong(spec: Spec, criterion: Criterion, key: str, expected: str, found: str, fix: str = "") -> InputError:
    return InputError(f"{spec.path} criteria.{criterion.name}.{key}", expected=expected, found=found, fix=fix)
