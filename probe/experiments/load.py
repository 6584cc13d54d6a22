"""Read and check a spec (`spec/NAME.toml`), and choose its decision.

A spec fixes the runs, the criteria and the decisions before the data exist. Every run stores the spec's hash in its
config, so a verdict can state whether the criteria are older than the data.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson

from probe.analysis import measures
from probe.experiments.spec import OUTCOME, VERDICT, WORDS, Criterion, Spec, SpecCondition, SpecDecision
from probe.settings.arms import ARMS, measured_arm
from probe.settings.presets import configure
from probe.settings.words import OF_CRITERION, Verb
from replay_pools.base.errors import InputError, refuse
from replay_pools.base.files import PLAIN_NAME, sha256
from replay_pools.base.tables import decode, flat, overlaid, read_toml

VERBS: tuple[Verb, ...] = ("replay", "train")
# Keys that the sweep sets from `arms`, `seeds` and `conditions` of the spec.
RESERVED = ("verb", "seed", "intervention.arms", "conditions", "preregistered")
BOUNDS = ("above", "below", "inside")
Faults = Iterator[tuple[str, str, str]]  # key of the spec, expected, found


def load_spec(path: Path) -> Spec:
    """Read, check and resolve a spec.

    Raises:
        InputError: no such file, invalid TOML, an unknown or missing key, a wrong type, inconsistent names, an unknown
            or refused setting, or an estimate that the runs lack.
    """
    document = read_toml(path, "a spec, see spec/")
    spec = decode(Spec, document, path)
    filled = [
        row.model_copy(update={"arms": row.arms or spec.arms, "seeds": row.seeds or spec.seeds})
        for row in spec.conditions
    ]
    spec = spec.model_copy(update={"conditions": tuple(filled)})
    # The hash covers the content only: comments and layout may change.
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    spec._path, spec._sha256 = path, sha256(canonical)
    _refuse(spec, _names(spec))
    _configure(spec)
    _refuse(spec, (fault for criterion in spec.criteria for fault in _criterion(spec, criterion)))
    _refuse(spec, _decisions(spec))
    return spec


def _configure(spec: Spec) -> None:
    """Set the configuration of each condition and pool.

    Raises:
        InputError: an unknown key or a refused value; the error names file, table and key.
    """
    verb = spec.settings.get("verb")
    if verb not in VERBS:
        found = "none" if verb is None else repr(verb)
        raise InputError(f"{spec.path} settings.verb", expected=" or ".join(VERBS), found=found)
    # Only [settings] may give the verb, the first of RESERVED.
    _check_reserved(spec.settings, f"{spec.path} settings", RESERVED[1:])
    for row in spec.conditions:
        where = f"{spec.path} conditions.{row.name}"
        _check_reserved(row.settings, where, RESERVED)
        # A training configuration with several arms is refused, so the check uses the first arm.
        tables = overlaid(overlaid(spec.settings, row.settings), {"intervention": {"arms": row.arms[:1]}})
        config = _configured(verb, tables, where if row.settings else f"{spec.path} settings")
        if not config.trains:
            config = replace(config, intervention=replace(config.intervention, arms=row.arms))
        row._config = config
    for pool in spec.pools:
        where = f"{spec.path} pools.{pool.name}"
        _check_reserved(pool.settings, where, ("verb", "preregistered"))
        pool._config = _configured("generate", pool.settings, where)


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


def decide(spec: Spec, verdicts: Mapping[str, str]) -> SpecDecision:
    """Return the first decision with all requirements met.

    Args:
        verdicts: {criterion: verdict} for all criteria of the spec, with the word of `verdict` or `outcome`.
    """
    return next(decision for decision in spec.decisions if not unmet(decision, verdicts))


def unmet(decision: SpecDecision, verdicts: Mapping[str, str]) -> list[str]:
    """Return the unmet requirements of a decision, each as "NAME VERDICT"."""
    return [f"{name} {verdicts[name]}" for name in decision.requires if verdicts[name] not in decision.allowed(name)]


def _refuse(spec: Spec, faults: Faults) -> None:
    refuse([InputError(f"{spec.path} {key}", expected=expected, found=found) for key, expected, found in faults])


def _names(spec: Spec) -> Faults:
    """Check that names are unique, fit into file names and refer to something, and that there is one primary."""
    if spec.name != spec.path.stem:
        yield "experiment.name", f"the file's name, {spec.path.stem!r}", repr(spec.name)
    conditions, criteria = [row.name for row in spec.conditions], [row.name for row in spec.criteria]
    lists = [("conditions", conditions), ("criteria", criteria), ("arms", spec.arms), ("seeds", spec.seeds)]
    lists += [(f"conditions.{row.name}.seeds", row.seeds) for row in spec.conditions if row.seeds != spec.seeds]
    for key, names in lists:
        for name, count in Counter(names).items():
            if count > 1:
                yield key, "different names", f"{name!r} twice"
            elif isinstance(name, str) and not PLAIN_NAME.fullmatch(name):
                yield key, "letters, digits and . _ -", repr(name)
    known = [("arms", spec.arms, [*ARMS])]
    known += [(f"conditions.{row.name}.arms", row.arms, [*spec.arms]) for row in spec.conditions]
    for row in spec.criteria:
        for key, choice in (("arm", [*spec.arms]), ("condition", conditions)):
            for side in (key, f"versus_{key}"):
                known.append((f"criteria.{row.name}.{side}", (getattr(row, side) or choice[0],), choice))
    for key, values, choice in known:
        for value in values:
            if value not in choice:
                yield key, f"one of {', '.join(choice)}", repr(value)
    if taken := [name for name in criteria if name in WORDS]:
        yield "criteria", f"other names than {' and '.join(WORDS)}", taken[0]
    primaries = [criterion.name for criterion in spec.criteria if criterion.role == "primary"]
    if len(primaries) != 1:
        yield "criteria", "exactly one of role primary", ", ".join(primaries) or "none"


def _criterion(spec: Spec, criterion: Criterion) -> Faults:
    """Check that there is one bound, and that the runs of both sides have the estimate."""
    where = f"criteria.{criterion.name}"
    bounds = [name for name in BOUNDS if getattr(criterion, name) is not None]
    if len(bounds) != 1:
        yield where, f"one of {', '.join(BOUNDS)}", " and ".join(bounds) or "none"
    if criterion.inside is not None and criterion.inside[0] > criterion.inside[1]:
        yield f"{where}.inside", "[low, high]", repr([*criterion.inside])
    left = spec.condition(criterion.condition)
    sides = [("arm", criterion.arm, left)]
    if criterion.compared:
        right = left if criterion.versus_condition is None else spec.condition(criterion.versus_condition)
        sides.append(("versus_arm", criterion.versus_arm or criterion.arm, right))
    for key, arm, condition in sides:
        if arm is not None and arm not in condition.arms:
            runs = ", ".join(condition.arms)
            yield f"{where}.{key}", f"an arm that {condition.name} runs ({runs})", repr(arm)
        for place, expected, found in _estimate(spec, criterion, key, arm, condition):
            yield f"{where}.{place}", expected, found


def _estimate(spec: Spec, criterion: Criterion, key: str, arm: str | None, condition: SpecCondition) -> Faults:
    """Check that the runs of one side have the criterion's estimate."""
    trains, name = not condition.frozen, criterion.estimate
    known = measures.names(trains=trains)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ", see probe docs specs"
        yield "estimate", f"an estimate of {'a training' if trains else 'a replay'}{hint}", repr(name)
    elif not trains and measures.of_measured_arm(name):
        measured = measured_arm(condition.arms)
        if measured is None:
            yield "estimate", "an estimate of any arm: no arm uses v_hack", repr(name)
        elif arm not in (None, measured):
            yield key, f"{measured}, the only arm for which {name} is measured", repr(arm)
        elif criterion.compared:
            yield "estimate", "a number of the step records: only these are compared between sides", repr(name)


def _decisions(spec: Spec) -> Faults:
    """Check that requirements name existing evidence, and that exactly the last decision is unconditional."""
    words: dict[str, tuple[str, ...]] = {
        criterion.name: OF_CRITERION for criterion in spec.criteria if criterion.role != "mechanism"
    }
    # The primary's runs also have a verdict (replay), an outcome (an arm compared with vanilla), or neither.
    if spec.condition(spec.judged[0]).frozen:
        words[VERDICT] = WORDS[VERDICT]
    elif spec.settings["verb"] == "train" and spec.baseline not in (None, spec.judged):
        words[OUTCOME] = WORDS[OUTCOME]
    for decision in spec.decisions:
        where = f"decisions.{decision.name}.requires"
        for name in decision.requires:
            if name not in words:
                yield where, f"some of {', '.join(words)}, of which none is a mechanism", name
                continue
            for word in decision.allowed(name):
                if word not in words[name]:
                    yield f"{where}.{name}", f"some of {', '.join(words[name])}", repr(word)
        if bool(decision.requires) == (decision is spec.decisions[-1]):
            yield where, "none in the last decision, some in all others", f"{len(decision.requires)}"
    if spec.ceiling is not None:
        for name in {*spec.ceiling.criteria} - {criterion.name for criterion in spec.criteria}:
            yield "ceiling.criteria", "names of criteria", name
    if spec.ceiling is not None and any(condition.frozen for condition in spec.conditions):
        yield "ceiling", "runs that train, one arm each", "a replay"
