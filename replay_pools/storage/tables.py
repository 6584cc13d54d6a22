"""Tables of JSON or TOML: read into frozen dataclasses, overlaid, flattened to keys with dots.

    decode(RunConfig, {"model": {"dtype": "bfloat16"}}, "preset.toml")       # what is left out keeps its default

`decode` is the inverse of `dataclasses.asdict`. It is strict: a key that the dataclass lacks is an error, and so is a
value of another type. pydantic validates; this file turns its complaints into an `InputError` of one line.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from replay_pools.errors import FieldError, InputError

Kind = TypeVar("Kind")
NO_VALUE = "none"  # TOML has no null: this text stands for it where the field may be None


def decode(kind: type[Kind], table: Any, where: object, *, known: Iterable[str] = ()) -> Kind:
    """The dataclass `kind` from a table; what the table leaves out keeps its default.

    A whole number becomes a float, a list a tuple, and "none" None where the field asks for it; nothing else is
    converted.

    Args:
        kind: a dataclass, whose fields may be dataclasses.
        table: as `json.loads` or `tomllib.loads` returns it.
        where: names the table in errors (a file, an option).
        known: keys with dots to suggest for an unknown key; those of `kind` where none are given.

    Raises:
        InputError: not a table; an unknown key, a value of another type or out of its range, a number that is not
            finite. It describes the first fault and names the places of the others.
    """
    if not isinstance(table, Mapping):
        raise InputError(where, expected="a table", found=repr(table))
    _check_finite(table, where)
    try:
        document = orjson.dumps(table)
    except TypeError as error:  # what JSON cannot hold: a number beyond 64 bits, text that is not Unicode
        raise InputError(where, expected="numbers of 64 bits, and text in UTF-8", found=str(error)) from error
    try:
        return _validated(kind, table, document)
    except ValidationError as error:
        raise _explained(kind, table, error, where, tuple(known)) from error
    except InputError as error:
        # A check of the dataclass raised one that is no ValueError (an unknown arm), which pydantic lets through.
        place = f"{where} {error.where}"
        raise InputError(place, expected=error.expected, found=error.found, fix=error.fix) from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table in a TOML file.

    Args:
        what: names the kind of the file in errors, as "a preset".

    Raises:
        InputError: no such file, or not TOML in UTF-8.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(path, expected=f"{what} (TOML)", found="no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(path, expected="TOML in UTF-8", found=str(error)) from error
    except RecursionError as error:
        raise InputError(path, expected="TOML of a few levels", found="nested too deep") from error


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


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{key with dots: value} of every value in a table that is not a table itself.

    >>> flat({"a": {"b": 1, "c": [2]}, "d": 3})
    {'a.b': 1, 'a.c': [2], 'd': 3}
    """
    leaves: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{path}{name}.")
        else:
            leaves[f"{path}{name}"] = value
    return leaves


def keys_of(kind: Any, path: str = "") -> list[str]:
    """The keys with dots that a table of the dataclass `kind` may have, those of its inner dataclasses included."""
    keys: list[str] = []
    for name, hint in get_type_hints(kind).items():
        inner = None
        for part in (hint, *get_args(hint)):  # a dataclass, or `dataclass | None`
            if inner is None and is_dataclass(part):
                inner = part
        is_list = get_args(hint)[1:] == (...,)  # tuple[X, ...]: the tables in a list have no key with dots
        if inner is None or is_list:
            keys.append(f"{path}{name}")
        else:
            keys += keys_of(inner, f"{path}{name}.")
    return keys


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that a wrong one most likely means: the nearest with the same last part, else a near spelling."""
    known = list(known)
    table, leaf = key.rpartition(".")[0], _leaf(key)
    if same_leaf := [name for name in known if _leaf(name) == leaf]:
        return max(same_leaf, key=lambda name: SequenceMatcher(None, table, name.rpartition(".")[0]).ratio())
    # Reversed, so that of several keys with one last part the first stays.
    by_leaf = {_leaf(known_key): known_key for known_key in reversed(known)}
    ways = [(key, {name: name for name in known}), (leaf, by_leaf)]
    # A last part alone is compared with last parts first.
    for text, names in ways if table else reversed(ways):
        if close := get_close_matches(text, names, n=1):
            return names[close[0]]
    return None


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _check_finite(table: Mapping[str, Any], where: object) -> None:
    """Refuse nan and inf before pydantic sees the table: orjson writes null for them, which an optional field takes."""
    for key, value in flat(table).items():
        for item in _floats(value):
            if not isfinite(item):
                raise InputError(f"{where} {key}", expected="a finite number", found=repr(item))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _floats(value: Any) -> Iterator[float]:
    """The floats in a value, those in lists and in the tables of lists included."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        yield from _floats([*value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _floats(item)


def _validated(kind: type[Kind], table: Mapping[str, Any], document: bytes) -> Kind:
    """Validate; where values "none" are among the complaints, validate once more with null in their places.

    A text field keeps the text "none": it does not complain.
    """
    adapter = _adapter(kind)
    try:
        return adapter.validate_json(document, strict=True, extra="forbid")
    except ValidationError as error:
        places = [_place(table, entry["loc"]) for entry in error.errors() if entry.get("input") == NO_VALUE]
        if not places:
            raise
        changed = orjson.loads(document)
        for place in places:
            _set_null(changed, place)
        return adapter.validate_json(orjson.dumps(changed), strict=True, extra="forbid")


def _set_null(document: Any, place: Sequence[int | str]) -> None:
    for part in place[:-1]:
        document = document[part]
    document[place[-1]] = None


def _explained(
    kind: Any, table: Mapping[str, Any], error: ValidationError, where: object, known: tuple[str, ...]
) -> InputError:
    """pydantic's complaints as one error: the first fault in full, the places of the others in its `fix`."""
    # The same place has one complaint for each member of a union: they are one fault.
    faults: dict[str, list[Any]] = {}
    for complaint in error.errors():
        faults.setdefault(_key(table, complaint["loc"]), []).append(complaint)
    key, complaints = next(iter(faults.items()))
    first, fix = complaints[0], ""
    if len(faults) > 1:
        fix = f"wrong too: {', '.join(list(faults)[1:])}"
    place = f"{where} {key}".rstrip()
    if first["type"] in ("missing", "missing_argument"):
        return InputError(place, expected="a value", found="no such key", fix=fix)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        near = nearest(key, known or (keys_of(kind) if is_dataclass(kind) else _names_at(kind, first["loc"])))
        if near:
            fix = "; ".join(filter(None, [f"did you mean {near}?", fix]))
        names = ", ".join(_names_at(kind, first["loc"]))
        return InputError(place, expected=f"one of the keys {names}", found="an unknown key", fix=fix)
    if first["type"] == "value_error":  # raised by __post_init__ of the dataclass
        cause = first["ctx"]["error"]
        if isinstance(cause, FieldError):
            dotted = f"{key}.{cause.where}" if key else cause.where
            return InputError(f"{where} {dotted}", expected=cause.expected, found=cause.found, fix=fix)
        return InputError(place, expected="values that fit together", found=str(cause), fix=fix)
    expected = " or ".join(dict.fromkeys(_plain(complaint["msg"]) for complaint in complaints))
    value = _value_at(table, _place(table, first["loc"]))
    return InputError(place, expected=expected, found=repr(value), fix=fix)


def _plain(message: str) -> str:
    """A message of pydantic in the words that this package uses of tables: list, text, whole number."""
    text = message.removeprefix("Input should be ")
    plain_words = {
        "array": "list",
        "tuple": "list",
        "string": "text",
        "integer": "whole number",
        "dictionary": "table",
        "object": "table",
    }
    for word, plain_word in plain_words.items():
        text = text.replace(f"a valid {word}", f"a {plain_word}").replace(f"an {word}", f"a {plain_word}")
    return text.replace("a valid number", "a number").replace("a valid boolean", "true or false")


def _place(table: Any, loc: Sequence[int | str]) -> list[int | str]:
    """The keys and indices of a pydantic location; parts that name a member of a union are left out."""
    place: list[int | str] = []
    value = table
    for part in loc:
        if isinstance(value, Mapping) and isinstance(part, str) and (part in value or part == loc[-1]):
            place.append(part)
            value = value.get(part)
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            place.append(part)
            value = value[part]
    return place


def _value_at(table: Any, place: Sequence[int | str]) -> Any:
    """The value at the keys and indices of `_place`; None for a key that is missing."""
    value = table
    for part in place:
        value = value.get(part) if isinstance(value, Mapping) else cast(Any, value)[part]
    return value


def _key(table: Any, loc: Sequence[int | str]) -> str:
    """A location as a key with dots; a table in a list is named by its `name` where it has one, else by its index."""
    key, value = "", table
    for part in _place(table, loc):
        value = value.get(part) if isinstance(value, Mapping) else cast(Any, value)[part]
        if isinstance(part, str):
            key += f".{part}"
        elif isinstance(value, Mapping) and isinstance(value.get("name"), str):
            key += f".{value['name']}"
        else:
            key += f"[{part}]"
    return key.lstrip(".")


def _names_at(kind: Any, loc: Sequence[int | str]) -> list[str]:
    """The keys of the table in which an unknown key stands: follows the type hints of `kind` along the location."""
    for part in loc[:-1]:
        hints = get_type_hints(kind) if isinstance(kind, type) else {}
        if part not in hints:
            continue
        hint = hints[str(part)]
        candidates = [hint, *get_args(hint)]
        for argument in get_args(hint):  # `tuple[X, ...] | None` holds its table two levels down
            candidates += get_args(argument)
        kind = next(filter(_is_table, candidates), kind)
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel))
