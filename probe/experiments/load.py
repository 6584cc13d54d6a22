"""Read and check a spec (`spec/NAME.toml`).

A spec fixes the runs, the criteria and the decisions before the data exist. Every run stores the spec's hash in its
config, so a verdict can state whether the criteria are older than the data.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from probe.analysis import measures
from probe.experiments.spec import OUTCOME, VERDICT, WORDS, Cell, Criterion, Spec
from probe.settings.arms import measured_arm
from probe.settings.presets import configure
from probe.settings.words import OF_CRITERION, Verb
from replay_pools.base.errors import FieldError, InputError, field_errors, refuse, unknown_name
from replay_pools.base.files import sha256
from replay_pools.base.tables import decode, flat, overlaid, read_toml

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
    for row in spec.conditions:
        row.arms, row.seeds = row.arms or spec.arms, row.seeds or spec.seeds
    # The hash covers the content only: comments and layout may change.
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    spec.path, spec.sha256 = path, sha256(canonical)
    _refuse(spec, _names(spec))
    for criterion in spec.criteria:
        criterion.sides = _sides(spec, criterion)
    _configure(spec)
    _refuse(spec, _evidence(spec))
    return spec


def _refuse(spec: Spec, faults: Iterable[InputError]) -> None:
    refuse([fault.at(f"{spec.path} {fault.where}") for fault in faults])


def _unknown(where: str, names: Iterable[Any], known: Collection[Any]) -> Iterator[FieldError]:
    """Yield a fault for each name that is not known."""
    for name in names:
        if name not in known:
            yield FieldError(where, f"one of {', '.join(known)}", repr(name))


def _names(spec: Spec) -> Iterator[FieldError]:
    """Check that names refer to something, that nobody else sets the settings, and that there is one primary."""
    conditions, criteria = [row.name for row in spec.conditions], [row.name for row in spec.criteria]
    yield from _unknown("settings.verb", [spec.settings.get("verb", "none")], VERBS)
    for row in spec.conditions:
        yield from _unknown(f"conditions.{row.name}.arms", row.arms, spec.arms)
    for row in spec.criteria:
        named = [name for name in (row.condition, row.versus_condition) if name is not None]
        yield from _unknown(f"criteria.{row.name}.condition", named, conditions)
    if spec.ceiling is not None:
        yield from _unknown("ceiling.criteria", spec.ceiling.criteria, criteria)
    tables = {"settings": spec.settings} | {f"conditions.{row.name}": row.settings for row in spec.conditions}
    for where, table in tables.items():
        for key in sorted(RESERVED & flat(table).keys()):
            yield FieldError(where, "no key that the sweep sets (arms, seeds, conditions)", key)
    primaries = [row.name for row in spec.criteria if row.role == "primary"]
    stem = spec.path.stem
    yield from field_errors(
        (spec.name != stem, "experiment.name", f"the file's name, {stem!r}", repr(spec.name)),
        (len(primaries) != 1, "criteria", "exactly one of role primary", ", ".join(primaries) or "none"),
        (not WORDS.keys().isdisjoint(criteria), "criteria", f"other names than {' and '.join(WORDS)}", "one of them"),
    )


def _sides(spec: Spec, criterion: Criterion) -> tuple[Cell, ...]:
    """Return the cells of a criterion; by default, the arm is the one that represents vanilla under the condition."""
    condition = spec.condition(criterion.condition)
    left = condition.name, criterion.arm or measured_arm(condition.arms) or condition.arms[0]
    if criterion.versus_arm is None and criterion.versus_condition is None:
        return (left,)
    return left, (criterion.versus_condition or left[0], criterion.versus_arm or left[1])


def _configure(spec: Spec) -> None:
    """Set the configuration of each condition and pool.

    Raises:
        InputError: an unknown key or a refused value; the error names file, table and key.
    """
    for row in spec.conditions:
        # A training configuration with several arms is refused, so the check uses the first arm.
        tables = overlaid(overlaid(spec.settings, row.settings), {"intervention": {"arms": row.arms[:1]}})
        place = f"conditions.{row.name}" if row.settings else "settings"
        config = _configured(spec.settings["verb"], tables, f"{spec.path} {place}")
        if not config.trains:
            config = replace(config, intervention=replace(config.intervention, arms=row.arms))
        row.config = config
    for pool in spec.pools:
        pool.config = _configured("generate", pool.settings, f"{spec.path} pools.{pool.name}")


def _configured(verb: Verb, tables: Mapping[str, Any], where: str) -> Any:
    """Call `configure` on tables of a spec, with errors that name the place in the spec."""
    leaves = flat(tables)
    preset = leaves.pop("preset", None)
    try:
        return configure(verb, preset=None if preset is None else str(preset), options=leaves)
    except InputError as error:
        refuse([part.at(f"{where}: {part.where.removeprefix('settings ')}") for part in error.errors])
        raise


def _evidence(spec: Spec) -> Iterator[InputError]:
    """Check that the runs have the estimates of the criteria, and that the decisions rest on evidence."""
    for criterion in spec.criteria:
        where, name, inside = f"criteria.{criterion.name}", criterion.estimate, criterion.inside or (0, 0)
        bounds = [bound for bound in BOUNDS if getattr(criterion, bound) is not None]
        yield from field_errors(
            (len(bounds) != 1, where, f"one of {', '.join(BOUNDS)}", " and ".join(bounds) or "none"),
            (inside[0] > inside[1], f"{where}.inside", "[low, high]", [*inside]),
        )
        for key, (condition, arm) in zip(("arm", "versus_arm"), criterion.sides, strict=False):
            row, measured = spec.condition(condition), measured_arm(spec.condition(condition).arms)
            yield from _unknown(f"{where}.{key}", [arm], row.arms)
            known = measures.names(trains=not row.frozen)
            if name not in known:
                expected = f"an estimate of a {'replay' if row.frozen else 'training'}"
                yield unknown_name(f"{where}.estimate", name, known, expected=expected, fix="see probe docs specs")
            elif row.frozen and measures.of_measured_arm(name):
                others = f"{measured or 'an arm along v_hack'}, the only arm for which {name} is measured"
                compares = "a number of the step records: only these are compared between sides"
                yield from field_errors(
                    (arm != measured, f"{where}.{key}", others, repr(arm)),
                    (arm == measured and len(criterion.sides) > 1, f"{where}.estimate", compares, repr(name)),
                )
    words: dict[str, tuple[str, ...]] = {row.name: OF_CRITERION for row in spec.criteria if row.role != "mechanism"}
    # The primary's runs also have a verdict (replay), an outcome (an arm compared with vanilla), or neither.
    if spec.condition(spec.judged[0]).frozen:
        words[VERDICT] = WORDS[VERDICT]
    elif spec.trains and spec.baseline not in (None, spec.judged):
        words[OUTCOME] = WORDS[OUTCOME]
    for decision in spec.decisions:
        where = f"decisions.{decision.name}.requires"
        yield from _unknown(where, decision.requires, words)
        for name, allowed in decision.requires.items():
            yield from _unknown(f"{where}.{name}", allowed, words.get(name, allowed))
        if bool(decision.requires) == (decision is spec.decisions[-1]):
            yield FieldError(where, "none in the last decision, some in all others", len(decision.requires))
    if spec.ceiling is not None and any(condition.frozen for condition in spec.conditions):
        yield FieldError("ceiling", "runs that train, one arm each", "a replay")
