"""Tables of JSON and TOML: read into frozen dataclasses, flattened to dotted keys, compared.

    decode(ReplayConfig, {"model": {"dtype": "bfloat16"}}, "preset.toml")       # missing keys keep their defaults

`decode` is the inverse of `dataclasses.asdict`. It is strict: unknown keys and values of the wrong type are errors.
pydantic validates; its complaints become `InputError`s, one for each key.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_type_hints

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from replay_pools.base.errors import Faults, InputError, cut
from replay_pools.base.files import dump_json, parse_json

Kind = TypeVar("Kind")
MAX_SHOWN_CHARS = 200  # of a value in an error
NO_VALUE = "none"  # TOML has no null: this text means None if the field accepts it
TRUTHS: dict[str, bool] = {  # words for yes and no in other programs' tables, in lower case
    **dict.fromkeys(("true", "yes", "y", "1", "1.0"), True),
    **dict.fromkeys(("false", "no", "n", "0", "0.0"), False),
}
# {a label or a verdict, in lower case: is it a hack}
HACKS = TRUTHS | {"hack": True, "hacked": True, "clean": False, "honest": False}
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # pydantic's options for settings
Extra = Literal["forbid", "allow"]
Maybe = Kind | None  # a setting that may be `none`


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """Define a setting as a dataclass field.

    Args:
        default: its default; `...` makes it required.
        meaning: its text in help and in the guide's table.
        **limits: pydantic's: ge, gt, le, lt, min_length, pattern.
    """
    return Field(default, description=meaning, **limits)


def field_of(kind: Any, key: str) -> FieldInfo:
    """Return the field of a dotted key in nested pydantic dataclasses."""
    name, _, rest = key.partition(".")
    entry = kind.__pydantic_fields__[name]
    return field_of(_inner(entry.annotation), rest) if rest else entry


def decode(kind: type[Kind], table: Any, where: object, *, known: Iterable[str] = (), extra: Extra = "forbid") -> Kind:
    """Read the dataclass `kind` from a table; missing keys keep their defaults.

    If the field accepts it, an integer becomes a float, a list a tuple and "none" None. Nothing else is converted.

    Args:
        kind: a dataclass, perhaps of dataclasses.
        table: as returned by `json.loads` or `tomllib.loads`.
        where: names the table in errors (a file, an option).
        known: dotted keys to suggest for an unknown one; default: the keys of `kind`.
        extra: `allow` accepts unknown keys.

    Raises:
        InputError: every unknown key, value of the wrong type or out of range, and number that is not finite.
    """
    try:
        text = orjson.dumps(table, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as error:  # JSON cannot hold numbers beyond 64 bits, dates, or text that is not Unicode
        raise InputError(where, expected="64-bit numbers and UTF-8 text", found=str(error)) from error
    if b"\\u0000" in text:  # no path contains it
        key = next(key for key, value in flat(table, lists=True).items() if "\0" in str(value))
        raise InputError(f"{where} {key}", expected="a text without null bytes", found="one with")
    try:
        # orjson would write NaN as null.
        return _adapter(kind).validate_json(json.dumps(_cleared(kind, table)), strict=True, extra=extra)
    except ValidationError as error:
        _refuse(table, error, where, tuple(known) or tuple(keys_of(kind)))


def decode_json(kind: type[Kind], text: bytes, where: object) -> Kind:
    """Read the dataclass `kind` from one of our own JSON documents, fast.

    Raises:
        InputError: no JSON; or every unknown or missing key and value of the wrong type.
    """
    try:
        return _adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        _refuse(parse_json(text, where), error, where, tuple(keys_of(kind)))


def flat(table: Any, path: str = "", *, lists: bool = False) -> dict[str, Any]:
    """Flatten a table to {dotted key: value}; with `lists`, lists are flattened too.

    >>> flat({"a": {"b": 1, "c": [2]}, "d": 3})
    {'a.b': 1, 'a.c': [2], 'd': 3}
    """
    leaves: dict[str, Any] = {}
    for name, value in table.items() if isinstance(table, Mapping) else enumerate(table):
        if isinstance(value, Mapping) or (lists and isinstance(value, list)):
            leaves |= flat(value, f"{path}{name}.", lists=lists)
        else:
            leaves[f"{path}{name}"] = value
    return leaves


def first_difference(stored: Any, wanted: Any, *, free: str | None = None) -> tuple[str, Any, Any] | None:
    """Return (dotted name, stored leaf, wanted leaf) of the first differing leaf, by name; None if all are equal.

    A missing leaf counts as None. Leaves with names that begin with `free` may differ.
    """
    stored_leaves = flat(stored, lists=True)
    # Compare in stored form: tuples as lists, NaN as null.
    wanted_leaves = flat(orjson.loads(dump_json(wanted)), lists=True)
    for name in sorted(stored_leaves.keys() | wanted_leaves.keys()):
        if stored_leaves.get(name) != wanted_leaves.get(name) and not (free and name.startswith(free)):
            return name, stored_leaves.get(name), wanted_leaves.get(name)
    return None


def keys_of(kind: Any, path: str = "") -> list[str]:
    """Return the dotted keys of a dataclass and its inner dataclasses."""
    keys: list[str] = []
    for name, hint in _hints(kind).items():
        is_list = get_args(hint)[1:] == (...,)  # tuple[X, ...]: tables in a list have no dotted keys
        inner = None if is_list else _inner(hint)
        keys += [f"{path}{name}"] if inner is None else keys_of(inner, f"{path}{name}.")
    return keys


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that a wrong one most likely means; None if none is similar.

    A key with the same last part comes first, then the most similar spelling.
    """
    known, last = list(known), key.rpartition(".")[2]
    if same := [name for name in known if name.rpartition(".")[2] == last]:
        return max(same, key=lambda name: SequenceMatcher(None, key, name).ratio())
    return next(iter(get_close_matches(key, known, n=1)), None)


def _cleared(kind: Any, table: Any) -> Any:
    """Replace the text "none" by None in fields of `kind`, and of its tables, that accept None."""
    if not isinstance(table, Mapping):
        return table
    cleared = dict(table)
    for name, hint in _hints(kind).items():
        value, parts = table.get(name), get_args(hint)
        if value == NO_VALUE and NoneType in parts:
            cleared[name] = None
        elif isinstance(value, Mapping) and (inner := _inner(hint)) is not None:
            cleared[name] = _cleared(inner, value)
    return cleared


def _inner(hint: Any) -> Any:
    """Return the dataclass of a hint `X` or `X | None`; None for other hints."""
    return next(filter(is_dataclass, (hint, *get_args(hint))), None)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _refuse(table: Any, error: ValidationError, where: object, known: Sequence[str]) -> NoReturn:
    """Raise the complaints of pydantic: one for a key (a union has one a member), one for all items of a list."""
    errors: dict[str, InputError] = {}
    for complaint in error.errors():
        key, value = _key(table, complaint["loc"])
        cause, fix = complaint.get("ctx", {}).get("error"), ""
        expected, found = complaint["msg"].removeprefix("Input should be "), cut(repr(value), MAX_SHOWN_CHARS)
        if complaint["type"] in ("missing", "missing_argument"):
            expected, found = "a value", "no such key"
        elif complaint["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            near = nearest(key, known)
            expected, found, fix = "a known key", "an unknown key", f"did you mean {near}?" if near else ""
        own = InputError("", expected=expected, found=found, fix=fix)
        for part in cause.errors if isinstance(cause, InputError) else [own]:
            dotted = ".".join(filter(None, (key, part.where)))
            errors.setdefault(dotted, part.at(f"{where} {dotted}".rstrip()))
    faults = Faults()
    for dotted, fault in errors.items():
        faults.note(fault, re.sub(r"\[\d+\]", "", dotted))
    faults.check(where)
    raise error


def _key(table: Any, loc: Sequence[int | str]) -> tuple[str, Any]:
    """Return (dotted key, value) of a pydantic location, without the parts that name a union member.

    A table in a list is named by its `name`, if it has one.
    """
    key = ""
    value: Any = table
    for part in loc:
        if isinstance(value, Mapping) and isinstance(part, str) and (part in value or part == loc[-1]):
            value = value.get(part)
            key += f".{part}"
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            value = value[part]
            has_name = isinstance(value, Mapping) and isinstance(value.get("name"), str)
            key += f".{value['name']}" if has_name else f"[{part}]"
    return key.lstrip("."), value
