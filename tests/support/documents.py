"""Documents that were changed after they had been written."""

import json
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any


def single_changes(plain: bytes) -> Iterator[tuple[str, bytes]]:
    """(what, document) of a JSON document with one change: each leaf changed, each left out."""
    for path in _leaves(json.loads(plain)):
        for is_left_out in (False, True):
            changed = json.loads(plain)
            inner, key = reduce(getitem, path[:-1], changed), path[-1]
            if is_left_out:
                del inner[key]
            else:
                value = inner[key]
                inner[key] = value + 1 if isinstance(value, bool | int | float) else f"{value}x"
            yield f"{'no ' * is_left_out}{'.'.join(map(str, path))}", json.dumps(changed, indent=2).encode() + b"\n"


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if not value or not isinstance(value, dict | list):
        yield path
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*path, key))
