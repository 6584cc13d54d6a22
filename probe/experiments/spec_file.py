"""Read and check a spec (`spec/NAME.toml`), or the remedies in the conditions of one.

A spec fixes the runs, the criteria and the decisions before the data exist. Every run stores the spec's hash in its
config, so a verdict can state whether the criteria are older than the data.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, Field

from probe.analysis import measures
from probe.experiments.spec import OUTCOME, VERDICT, WORDS, Spec, SpecCondition
from probe.settings.arms import measured_arm
from probe.settings.presets import configure, overlaid, read_toml
from probe.settings.remedy import LENGTH, TRAINED_ARMS, TRAINING_STEPS, arm_of
from probe.settings.verbs import field_errors
from probe.settings.words import OF_CRITERION, Verb
from replay_pools.base.errors import InputError, refuse, unknown_name
from replay_pools.base.files import sha256
from replay_pools.base.tables import decode, flat

VERBS = ("replay", "train")
BOUNDS = ("above", "below", "inside")
RESERVED = {"seed", "intervention.arms", "conditions", "preregistered"}  # the sweep sets these settings


def load_spec(path: Path) -> Spec:
    """Read, check and resolve a spec.

    Raises:
        InputError: no such file, invalid TOML, an unknown or missing key, a wrong type, inconsistent names, an unknown
            or refused setting, or an estimate that the runs lack.
    """
    document = read_toml(path, "a spec, see spec/")
    spec = decode(Spec, document, path)
    # The hash covers the content only: comments and layout may change.
    spec.path, spec.sha256 = path, sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))
    for row in spec.conditions:
        row.arms, row.seeds = row.arms or spec.arms, row.seeds or spec.seeds
    _refuse(spec, _names(spec))
    for row in spec.conditions:
        # A training of several arms is refused, so the check uses the first one.
        arms = {"intervention": {"arms": row.arms[:1] if spec.trains else row.arms}}
        place = f"conditions.{row.name}" if row.settings else "settings"
        row.config = _configured(
            spec, spec.settings["verb"], overlaid(overlaid(spec.settings, row.settings), arms), place
        )
    for pool in spec.pools:
        pool.config = _configured(spec, "generate", pool.settings, f"pools.{pool.name}")
    for criterion in spec.criteria:
        condition = spec.condition(criterion.condition)
        left = condition.name, criterion.arm or measured_arm(condition.arms) or condition.arms[0]
        right = criterion.versus_condition or left[0], criterion.versus_arm or left[1]
        criterion.sides = (left, right) if criterion.versus_condition or criterion.versus_arm else (left,)
    _refuse(spec, [*_criteria(spec), *_decisions(spec)])
    return spec


def _refuse(spec: Spec, faults: Iterable[InputError]) -> None:
    refuse([fault.at(f"{spec.path} {fault.where}") for fault in faults])


def _unknown(where: str, names: Iterable[Any], known: Collection[Any]) -> Iterator[InputError]:
    """Yield a fault for each name that is not known."""
    for name in names:
        if name not in known:
            yield InputError(where, expected=f"one of {', '.join(known)}", found=repr(name))


def _names(spec: Spec) -> Iterator[InputError]:
    """Check that names refer to something, that nobody else sets the settings, and that there is one primary."""
    conditions, criteria = [row.name for row in spec.conditions], [row.name for row in spec.criteria]
    yield from _unknown("settings.verb", [spec.settings.get("verb", "none")], VERBS)
    for row in spec.conditions:
        yield from _unknown(f"conditions.{row.name}.arms", row.arms, spec.arms)
    for row in spec.criteria:
        named = filter(None, (row.condition, row.versus_condition))
        yield from _unknown(f"criteria.{row.name}.condition", named, conditions)
    yield from _unknown("ceiling.criteria", () if spec.ceiling is None else spec.ceiling.criteria, criteria)
    tables = {"settings": spec.settings} | {f"conditions.{row.name}": row.settings for row in spec.conditions}
    for where, table in tables.items():
        for key in sorted(RESERVED & flat(table).keys()):
            yield InputError(where, expected="no key that the sweep sets (arms, seeds, conditions)", found=key)
    primaries = [row.name for row in spec.criteria if row.role == "primary"]
    stem = spec.path.stem
    yield from field_errors(
        (spec.name != stem, "experiment.name", f"the file's name, {stem!r}", repr(spec.name)),
        (len(primaries) != 1, "criteria", "exactly one of role primary", ", ".join(primaries) or "none"),
        (not WORDS.keys().isdisjoint(criteria), "criteria", f"other names than {' and '.join(WORDS)}", "one of them"),
    )


def _configured(spec: Spec, verb: Verb, tables: Mapping[str, Any], place: str) -> Any:
    """Return the configuration of the tables at a place of a spec, which errors name."""
    leaves = flat(tables)
    preset = str(leaves.pop("preset", "")) or None
    return configure(verb, preset=preset, options=leaves, where=f"{spec.path} {place}:")


def _criteria(spec: Spec) -> Iterator[InputError]:
    """Check that each criterion has one bound, and an estimate that its runs have."""
    for criterion in spec.criteria:
        where, name, inside = f"criteria.{criterion.name}", criterion.estimate, criterion.inside or (0, 0)
        bounds = [bound for bound in BOUNDS if getattr(criterion, bound) is not None]
        yield from field_errors(
            (len(bounds) != 1, where, f"one of {', '.join(BOUNDS)}", " and ".join(bounds) or "none"),
            (inside[0] > inside[1], f"{where}.inside", "[low, high]", [*inside]),
        )
        for key, (condition, arm) in zip(("arm", "versus_arm"), criterion.sides, strict=False):
            arms = spec.condition(condition).arms
            measured, known = measured_arm(arms), measures.names(trains=spec.trains)
            yield from _unknown(f"{where}.{key}", [arm], arms)
            if name not in known:
                expected = f"an estimate of a {'training' if spec.trains else 'replay'}"
                yield unknown_name(f"{where}.estimate", name, known, expected=expected, fix="see probe docs specs")
            elif not spec.trains and measures.of_measured_arm(name):
                others = f"{measured or 'an arm along v_hack'}, the only arm for which {name} is measured"
                compares = "a number of the step records: only these are compared between sides"
                is_compared = arm == measured and len(criterion.sides) > 1
                yield from field_errors(
                    (arm != measured, f"{where}.{key}", others, repr(arm)),
                    (is_compared, f"{where}.estimate", compares, repr(name)),
                )


def _decisions(spec: Spec) -> Iterator[InputError]:
    """Check that decisions rest on evidence that the runs give, and the ceiling on runs of one arm."""
    words: dict[str, tuple[str, ...]] = {row.name: OF_CRITERION for row in spec.criteria if row.role != "mechanism"}
    # The primary's runs also have a verdict (replay), an outcome (an arm compared with vanilla), or neither.
    if not spec.trains:
        words[VERDICT] = WORDS[VERDICT]
    elif spec.baseline not in (None, spec.primary.sides[0]):
        words[OUTCOME] = WORDS[OUTCOME]
    for decision in spec.decisions:
        where = f"decisions.{decision.name}.requires"
        yield from _unknown(where, decision.requires, words)
        for name, allowed in decision.requires.items():
            yield from _unknown(f"{where}.{name}", allowed, words.get(name, allowed))
        if bool(decision.requires) == (decision is spec.decisions[-1]):
            expected, found = "none in the last decision, some in all others", str(len(decision.requires))
            yield InputError(where, expected=expected, found=found)
    moving = any(row.config.trains for row in spec.conditions) and not spec.trains
    yield from field_errors(
        (spec.ceiling is not None and not spec.trains, "ceiling", "runs that train, one arm each", "a replay"),
        (moving, "settings.optimizer.lr", '0 in a spec of replays: those of `verb = "train"` train', "more"),
    )


class _Conditions(BaseModel):
    """The conditions of a spec; other tables are ignored."""

    conditions: tuple[SpecCondition, ...] = ()
    arms: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


def read_candidates(path: Path) -> dict[str, dict[str, Any]]:
    """Return {remedy: settings} for `probe screen`: each arm of each condition in a TOML file, but plain vanilla.

    A condition that changes the loss keeps the shared loss settings. One that changes the number of steps scales
    TRAINING_STEPS by the same factor.

    Raises:
        InputError: the file cannot be read, has no such conditions, or has a faulty one.
    """
    table = decode(_Conditions, read_toml(path, "a spec, or the conditions of one"), path, extra="allow")
    common = flat(table.settings)
    shared = {key: value for key, value in common.items() if key.startswith("objective.")}
    candidates: dict[str, dict[str, Any]] = {}
    for row in table.conditions:
        settings = flat(row.settings)
        steps, of_spec = settings.get(LENGTH), common.get(LENGTH, TRAINING_STEPS)
        if isinstance(steps, int) and isinstance(of_spec, int) and of_spec > 0:
            settings[LENGTH] = max(1, round(steps / of_spec * TRAINING_STEPS))
        loss = shared if any(key.startswith("objective.") for key in settings) else {}
        arms = row.arms or table.arms or (arm_of(settings),)
        for arm in arms:
            if settings or arm != "vanilla":
                name = row.name if len(arms) == 1 else f"{row.name}-{arm}"
                candidates[name] = loss | settings | {TRAINED_ARMS: [arm]}
    if not candidates:
        raise InputError(path, expected="[[conditions]] that differ from plain vanilla", found="none")
    return candidates
