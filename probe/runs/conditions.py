"""Conditions: objectives with names. Every condition and every arm is evaluated on the same forward and backward.

NAME                       the plain run: the settings of the other options
NAME:key=value,key=value   the plain run with these settings of `Objective` changed
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probe.objective.objective import Objective
from probe.records.records import DEFAULT_CONDITION
from replay_pools.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A named objective.

    >>> parse_conditions(["capped:advantage_clip=2"], Objective())[0].objective.advantage_clip
    2.0
    """

    name: str
    objective: Objective

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Condition":
        """Inverse of `asdict`."""
        return cls(name=row["name"], objective=Objective(**row["objective"]))


def parse_conditions(texts: Sequence[str], base: Objective) -> tuple[Condition, ...]:
    """The conditions of `--condition`, in order; without any, `base` under the name `default`.

    Raises:
        InputError: a malformed or repeated name, an unknown setting, a value of the wrong type, settings that do not
            fit together.
    """
    conditions = tuple(_parse(text, base) for text in texts or (DEFAULT_CONDITION,))
    names = [condition.name for condition in conditions]
    if len(set(names)) != len(names):
        raise InputError("--condition", expected="different names", found=", ".join(names))
    return conditions


def _parse(text: str, base: Objective) -> Condition:
    name, _, settings = text.partition(":")
    where = f"--condition {text}"
    if not _NAME.fullmatch(name):
        raise InputError(where, expected="NAME:key=value,... (a name of letters, digits and . _ -)", found=repr(name))
    changes = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = (part.strip() for part in setting.partition("="))
        changes[key] = _value(key, value, where)
    return Condition(name=name, objective=replace(base, **changes))


def _value(key: str, text: str, where: str) -> Any:
    """The value of a setting, read by the type of its field; `none` where the field allows it."""
    kinds = get_type_hints(Objective)
    if key not in kinds:
        raise InputError(where, expected=f"a setting out of {', '.join(kinds)}", found=repr(key))
    parts = get_args(kinds[key])
    kind, *nothing = parts if NoneType in parts else (kinds[key],)
    if nothing and text == "none":
        return None
    if get_origin(kind) is Literal:
        if text not in (choices := get_args(kind)):
            names = ", ".join((*choices, "none") if nothing else choices)
            raise InputError(f"{where}: {key}", expected=f"one of {names}", found=repr(text))
        return text
    try:
        if isfinite(value := kind(text)):
            return value
    except ValueError:
        pass
    raise InputError(f"{where}: {key}", expected=f"a number ({kind.__name__})", found=repr(text))
