"""Nested tables (of JSON or TOML): one laid over another, and flat, under names with dots."""

from collections.abc import Mapping
from typing import Any


def overlaid(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with the values of `over`; tables inside are merged key by key, everything else is replaced.

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
    """{name with dots: value} of everything in a table that is no table itself.

    >>> flat({"a": {"b": 1, "c": [2]}, "d": 3})
    {'a.b': 1, 'a.c': [2], 'd': 3}
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return found
