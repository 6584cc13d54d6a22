"""Resolve a spec: the full settings, defaults included, of every condition and of every run that it asks for.

    spec.settings, a condition's settings over them, then arms and seed  ->  one StepConfig for each run

Frozen weights: conditions that differ in their objective alone are evaluated side by side on one forward and backward,
and one run serves all arms. Training: every arm is a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from probe.experiments.spec.types import ResolvedCondition, Spec, SpecCondition
from probe.settings.loss import LOSS_KEYS, LossCondition, LossSettings
from probe.settings.presets import configure
from probe.settings.run import GenerateConfig, ReplayConfig, TrainConfig
from probe.settings.words import Verb
from replay_pools.errors import InputError, InputErrors, refuse
from replay_pools.storage.tables import flat, overlaid

VERBS: tuple[Verb, ...] = ("replay", "train")
# Keys that the sweep sets itself, from `arms`, `seeds` and `conditions` of the spec.
RESERVED = ("verb", "seed", "intervention.arms", "conditions", "preregistered")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a block: the conditions that it measures in one pass, and its settings."""

    conditions: tuple[str, ...]
    config: ReplayConfig | TrainConfig


def resolve(spec: Spec) -> dict[str, ResolvedCondition]:
    """{name of a condition: its settings}.

    Raises:
        InputError: a key that no run has, or a value that it refuses; file, table and key are named.
    """
    verb = spec.settings.get("verb")
    if verb not in VERBS:
        actual = "none" if verb is None else repr(verb)
        raise InputError(f"{spec.path} settings.verb", expected=" or ".join(VERBS), found=actual)
    return {condition.name: _resolve(spec, condition, verb) for condition in spec.conditions}


def pool_config(name: str, settings: Mapping[str, Any], where: str) -> GenerateConfig:
    """The settings of a pool that a spec asks for.

    Raises:
        InputError: as `resolve`; the message begins with `where`, the file of the spec.
    """
    _check_reserved(settings, f"{where} pools.{name}", ("verb", "preregistered"))
    return _configured("generate", settings, f"{where} pools.{name}")


def planned_runs(spec: Spec, seed: int, preregistered: str) -> list[PlannedRun]:
    """The runs of one seed: for a replay one for each set of conditions that share a pass, else one for each arm.

    Args:
        preregistered: NAME@SHA256 of the spec, which every run's config holds.
    """
    runs = []
    for conditions in _passes(list(spec.resolved.values())):
        first = conditions[0]
        config = replace(first.config, seed=seed, preregistered=preregistered)
        if spec.settings["verb"] == "replay":
            config = _side_by_side(config, conditions)
        # A training run has one arm; a replay measures all arms on the same frozen weights.
        runs_arms = [first.arms] if first.frozen else [(arm,) for arm in first.arms]
        for arms in runs_arms:
            runs.append(
                PlannedRun(
                    conditions=tuple(condition.name for condition in conditions),
                    config=replace(config, intervention=replace(config.intervention, arms=arms)),
                )
            )
    return runs


def _resolve(spec: Spec, condition: SpecCondition, verb: Verb) -> ResolvedCondition:
    """The settings of the spec with those of the condition over them, checked by building the `StepConfig`."""
    arms = spec.arms_of(condition)
    tables = overlaid(spec.settings, condition.settings)
    given = [key for key in flat(tables) if key not in ("verb", "preset")]
    # The table [settings] is the one place that may say the verb, the first of RESERVED.
    _check_reserved(spec.settings, f"{spec.path} settings", RESERVED[1:])
    _check_reserved(condition.settings, f"{spec.path} conditions.{condition.name}", RESERVED)
    where = f"{spec.path} settings" if not condition.settings else f"{spec.path} conditions.{condition.name}"
    # A training configuration with several arms is refused: it is checked with the first of them.
    config = _configured(verb, overlaid(tables, {"intervention": {"arms": arms[:1]}}), where)
    if not config.trains:
        config = replace(config, intervention=replace(config.intervention, arms=arms))
    return ResolvedCondition(name=condition.name, arms=arms, config=config, given=frozenset(given))


def _check_reserved(table: Mapping[str, Any], where: str, reserved: tuple[str, ...]) -> None:
    """Refuse keys that the sweep itself sets."""
    taken = [key for key in flat(table) if key in reserved]
    if taken:
        expected = "no key that the sweep sets (arms, seeds, conditions, verb)"
        raise InputError(where, expected=expected, found=taken[0])


def _configured(verb: Verb, tables: Mapping[str, Any], where: str) -> Any:
    """`configure` on the tables of a spec; its errors name the place in the spec."""
    leaves = flat(tables)
    preset = leaves.pop("preset", None)
    leaves.pop("verb", None)
    if not isinstance(preset, str | None):
        raise InputError(f"{where}.preset", expected="a name or a .toml file", found=repr(preset))
    try:
        return configure(verb, preset=preset, options=leaves)
    except InputError as error:
        faults = []
        for part in error.errors if isinstance(error, InputErrors) else (error,):
            place = f"{where}: {part.where.removeprefix('settings ')}"
            faults.append(InputError(place, expected=part.expected, found=part.found, fix=part.fix))
        refuse(faults)
        raise


def _passes(conditions: list[ResolvedCondition]) -> list[list[ResolvedCondition]]:
    """Group the conditions by pass: frozen ones that differ in the weights of the objective alone share a pass."""
    passes: list[list[ResolvedCondition]] = []
    for condition in conditions:
        same = next((group for group in passes if _same_pass(group[0], condition)), None)
        if same is None:
            passes.append([condition])
        else:
            same.append(condition)
    return passes


def _same_pass(left: ResolvedCondition, right: ResolvedCondition) -> bool:
    """Whether one forward and backward and one set of directions serves both conditions."""
    if not (left.frozen and right.frozen):
        return False
    return left.arms == right.arms and _shared(left.config) == _shared(right.config)


def _shared(config: ReplayConfig | TrainConfig) -> ReplayConfig | TrainConfig:
    """A configuration without what a condition may change in one pass: the objective, all but its normaliser."""
    objective = config.objective
    # v_hack is extracted with the normaliser of the run: another one needs other directions, and so another run.
    normaliser = LossSettings(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)
    return replace(config, objective=normaliser)


def _side_by_side(
    config: ReplayConfig | TrainConfig, conditions: list[ResolvedCondition]
) -> ReplayConfig | TrainConfig:
    """The replay that evaluates several conditions: the shared objective, and the changes of each condition to it."""
    base = _shared(config).objective
    changes = []
    for condition in conditions:
        objective = condition.config.objective
        different = {}
        for key in LOSS_KEYS:
            if getattr(objective, key) != getattr(base, key):
                different[key] = getattr(objective, key)
        changes.append(LossCondition(name=condition.name, changes=different))
    return replace(config, objective=base, conditions=tuple(changes))
