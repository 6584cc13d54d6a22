"""Tables of JSON or TOML: read into frozen dataclasses, overlaid, flattened to keys with dots.

    decode(ReplayConfig, {"model": {"dtype": "bfloat16"}}, "preset.toml")       # what is left out keeps its default

`decode` is the inverse of `dataclasses.asdict`. It is strict: a key that the dataclass lacks is an error, and so is a
value of another type. pydantic validates; its complaints become `InputError`s, one for each key.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, time
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import orjson
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from replay_pools.base.errors import Faults, FieldError, InputError, cut, refuse
from replay_pools.base.files import MAX_DEPTH, TOO_DEEP, check_depth, dump_json, read_plain

Kind = TypeVar("Kind")
MOST_SHOWN = 200  # characters of a value in an error
NEAR = 0.6  # of a spelling: the share of characters in common from which on a key is suggested
MAX_TOML = 256 << 10  # bytes
# A dotted key of more parts than MAX_DEPTH, for which tomllib takes quadratic time and memory.
LONG_KEY = re.compile(
    r"""(?<![\w"'.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % MAX_DEPTH  # noqa: UP031 (braces)
)
NO_VALUE = "none"  # TOML has no null: this text stands for it where the field may be None
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # of the dataclasses that settings are read into
Extra = Literal["forbid", "allow"]
Maybe = Kind | None  # a setting that may be `none`


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A field of a table of settings; `...` as its default makes it needed.

    Args:
        default: its value where it is not given.
        meaning: for help texts and the guide's table.
        **limits: pydantic's: ge, gt, le, lt, min_length, pattern.
    """
    return Field(default, description=meaning, **limits)


def word_of(table: Iterable[str]) -> AfterValidator:
    """The check of a text that is a key of a table (arms, loophole modes)."""

    def check(word: str) -> str:
        if word not in table:
            raise FieldError("", f"one of {', '.join(table)}", repr(word))
        return word

    return AfterValidator(check)


def field_of(kind: Any, key: str) -> FieldInfo:
    """The field of a key with dots, in a pydantic dataclass whose fields may be such dataclasses."""
    name, _, rest = key.partition(".")
    entry = kind.__pydantic_fields__[name]
    return field_of(_inner(entry.annotation), rest) if rest else entry


def decode(kind: type[Kind], table: Any, where: object, *, known: Iterable[str] = (), extra: Extra = "forbid") -> Kind:
    """The dataclass `kind` from a table; what the table leaves out keeps its default.

    A whole number becomes a float, a list a tuple, and "none" None where the field takes it; nothing else is
    converted.

    Args:
        kind: a dataclass, whose fields may be dataclasses.
        table: as `json.loads` or `tomllib.loads` returns it.
        where: names the table in errors (a file, an option).
        known: keys with dots to suggest for an unknown key; those of `kind` where none are given.
        extra: `allow` takes unknown keys.

    Raises:
        InputError: not a table; unknown keys, values of another type or out of their range, numbers that are not
            finite: all of them.
    """
    if not isinstance(table, Mapping):
        raise InputError(where, expected="a table", found=repr(table))
    try:
        text = orjson.dumps(table)
    except TypeError as error:  # what JSON cannot hold: a number beyond 64 bits, text that is not Unicode
        raise InputError(where, expected="numbers of 64 bits, and text in UTF-8", found=str(error)) from error
    if b"\\u0000" in text:  # which no path has
        leaves = flat(table, lists=True).items()
        wrong = [(key, value) for key, value in leaves if isinstance(value, str) and "\0" in value]
        expected = "a text without null bytes"
        refuse([InputError(f"{where} {key}", expected=expected, found=repr(value)) for key, value in wrong])
    try:
        # Not orjson's text, in which NaN is null.
        return _adapter(kind).validate_json(json.dumps(_cleared(kind, table)), strict=True, extra=extra)
    except ValidationError as error:
        refuse(_faults(table, error, where, tuple(known) or tuple(keys_of(kind))))
        raise
    except InputError as error:  # raised by a check within, and no ValueError
        raise error.at(f"{where} {error.where}") from error


def decode_json(kind: type[Kind], text: bytes, where: object) -> Kind:
    """The dataclass `kind` of one JSON document of our own, exactly of its types: fast, and a key twice is not seen.

    Raises:
        InputError: not JSON; unknown or missing keys, values of another type: all of them.
    """
    try:
        return _adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        try:
            table = orjson.loads(text)
        except orjson.JSONDecodeError as damage:
            raise InputError(where, expected="strict JSON", found=str(damage)) from damage
        faults = Faults()
        for fault in _faults(table, error, where, tuple(keys_of(kind))):
            faults.note(fault, re.sub(r"\[\d+\]", "", fault.where))  # one for all items of a list
        faults.check(where)
        raise


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table in a TOML file.

    Args:
        what: names the kind of the file in errors, as "a preset".

    Raises:
        InputError: no such file, a large one, or not TOML in UTF-8.
    """
    plain = read_plain(path, MAX_TOML)
    try:
        return parse_toml(plain.decode())
    except ValueError as error:
        raise InputError(path, expected=f"{what}: TOML in UTF-8", found=str(error)) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a text in TOML; ValueError where it is none, has a date or a time, or is beyond MAX_DEPTH."""
    if LONG_KEY.search(text):
        raise ValueError(TOO_DEEP)
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    check_depth(table, text)
    for key, value in flat(table, lists=True).items():
        if isinstance(value, date | time):
            raise ValueError(f"{key} = {value}, a date or a time, which no value here is")
    return table


def toml_text(value: Any) -> str:
    """A value in TOML: of JSON what TOML has too, tables on one line, `"none"` for None.

    >>> toml_text({"a": [1, None], "b": "two words"})
    '{a = [1, "none"], b = "two words"}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    text = json.dumps(NO_VALUE if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # a control character that JSON takes as it is


def overlaid(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with the values of `over`; inner tables are merged key by key, every other value is replaced.

    >>> overlaid({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}})
    {'a': {'b': 1, 'c': 4}, 'd': 3}
    """
    merged = dict(table)
    for name, value in over.items():
        if isinstance(value, Mapping):
            inner = merged.get(name)
            value = overlaid(inner if isinstance(inner, Mapping) else {}, value)
        merged[name] = value
    return merged


def flat(table: Any, path: str = "", *, lists: bool = False) -> dict[str, Any]:
    """{key with dots: value} of every value in a table that is not a table itself; with `lists`, nor a list.

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
    """(dotted name, stored leaf, wanted leaf) of the first leaf, by name, that differs; None where none does.

    A leaf that one side lacks counts as None there; leaves whose names begin with `free` may differ.
    """
    stored_leaves = flat(stored, lists=True)
    # As it would be stored: tuples as lists, NaN as null.
    wanted_leaves = flat(orjson.loads(dump_json(wanted)), lists=True)
    for name in sorted(stored_leaves.keys() | wanted_leaves.keys()):
        if stored_leaves.get(name) != wanted_leaves.get(name) and not (free and name.startswith(free)):
            return name, stored_leaves.get(name), wanted_leaves.get(name)
    return None


def keys_of(kind: Any, path: str = "") -> list[str]:
    """The keys with dots that a table of the dataclass `kind` may have, those of its inner dataclasses included."""
    keys: list[str] = []
    for name, hint in _hints(kind).items():
        is_list = get_args(hint)[1:] == (...,)  # tuple[X, ...]: the tables in a list have no key with dots
        inner = None if is_list else _inner(hint)
        keys += [f"{path}{name}"] if inner is None else keys_of(inner, f"{path}{name}.")
    return keys


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that a wrong one most likely means: the nearest with the same last part, else a near spelling."""

    def rank(name: str) -> tuple[bool, float]:
        whole, last = (
            SequenceMatcher(None, *pair).ratio()
            for pair in ((key, name), (key.rpartition(".")[2], name.rpartition(".")[2]))
        )
        return last == 1, whole if last == 1 else max(whole, last)

    best = max(known, key=rank, default=None)
    return best if best is not None and rank(best) >= (False, NEAR) else None


def _cleared(kind: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with None for the text "none" where a field of `kind`, or of a table in it, may have no value."""
    cleared = dict(table)
    for name, hint in _hints(kind).items():
        value, parts = table.get(name), get_args(hint)
        if value == NO_VALUE and NoneType in parts:
            cleared[name] = None
        elif isinstance(value, Mapping) and (inner := _inner(hint)) is not None:
            cleared[name] = _cleared(inner, value)
    return cleared


def _inner(hint: Any) -> Any:
    """The dataclass of a hint that is one, or one or None."""
    return next(filter(is_dataclass, (hint, *get_args(hint))), None)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _faults(table: Mapping[str, Any], error: ValidationError, where: object, known: Sequence[str]) -> list[InputError]:
    """pydantic's complaints, one for each key: a union has one of each of its members for the same key."""
    faults: dict[str, InputError] = {}
    for complaint in error.errors():
        key, value = _key(table, complaint["loc"])
        place, kind = f"{where} {key}".rstrip(), complaint["type"]
        cause = complaint.get("ctx", {}).get("error")
        if kind in ("missing", "missing_argument"):
            faults.setdefault(key, InputError(place, expected="a value", found="no such key"))
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            near = nearest(key, known)
            fix = f"did you mean {near}?" if near else ""
            faults.setdefault(key, InputError(place, expected="a known key", found="an unknown key", fix=fix))
        elif isinstance(cause, InputError):
            for part in cause.errors:
                dotted = ".".join(filter(None, (key, part.where)))
                faults.setdefault(dotted, part.at(f"{where} {dotted}"))
        else:
            expected = complaint["msg"].removeprefix("Input should be ")
            if kind == "too_short":
                expected = f"at least {complaint.get('ctx', {})['min_length']}"
            faults.setdefault(key, InputError(place, expected=expected, found=cut(repr(value), MOST_SHOWN)))
    return [*faults.values()]


def _key(table: Any, loc: Sequence[int | str]) -> tuple[str, Any]:
    """(key with dots, value) of a location of pydantic, without its parts that name a member of a union.

    A table in a list is named by its `name` where it has one.
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
