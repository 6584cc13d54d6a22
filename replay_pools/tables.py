"""Nested frozen dataclasses from nested tables (JSON or TOML): the inverse of `dataclasses.asdict`, strict."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from replay_pools.errors import InputError

Table = TypeVar("Table")


def decode(kind: type[Table], row: Any, where: object) -> Table:
    """The dataclass `kind` from a table; what the table leaves out keeps its default.

    Field types may be str, int, float, bool, a Literal, a dataclass, `tuple[one of these, ...]`, or one of these or
    None. A whole number is taken where a float is expected, and "none" for None where anything but a text may be left
    out (TOML has no null); nothing else is converted.

    Args:
        where: names the table in errors; fields are appended with dots.

    Raises:
        InputError: not a table, an unknown field, a value of another type, or values that `kind` itself refuses.
    """
    if not isinstance(row, Mapping):
        raise InputError(where, expected="a table", found=repr(row))
    hints = get_type_hints(kind)
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(row.keys() - set(names)):
        raise InputError(where, expected=f"fields out of {', '.join(names)}", found=f"unknown: {', '.join(unknown)}")
    values = {name: _value(hints[name], row[name], f"{where} {name}") for name in names if name in row}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # a required field that is missing, or the dataclass's own checks
        raise InputError(where, expected="settings that fit together", found=str(error)) from error


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise InputError(where, expected=f"one of {', '.join(map(str, arguments))}", found=repr(value))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(where, expected="a list", found=repr(value))
        if arguments[0] is float and all(type(item) in (float, int) for item in value) and all(map(isfinite, value)):
            return tuple(map(float, value))  # long rows of numbers, without a place in an error for each
        return tuple(_value(arguments[0], item, f"{where} [{i}]") for i, item in enumerate(value))
    if NoneType in arguments:
        inner = next(argument for argument in arguments if argument is not NoneType)
        absent = value is None or (value == "none" and inner is not str)
        return None if absent else _value(inner, value, where)
    if is_dataclass(hint):
        return decode(hint, value, where)  # type: ignore[arg-type]
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:  # bool is an int to isinstance
        raise InputError(where, expected=hint.__name__, found=repr(value))
    if hint is float and not isfinite(value):  # TOML has nan and inf
        raise InputError(where, expected="a finite number", found=repr(value))
    return value
