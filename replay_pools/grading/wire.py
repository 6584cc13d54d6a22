"""Plain Python values as JSON documents: the form in which arguments and answers cross the process boundary.

None, booleans, numbers, strings and lists are written as JSON has them (with NaN and Infinity, as Python's json). Every
other type carries a tag:

    (1, 2) -> {"tuple": [1, 2]}    {3} -> {"set": [3]}    {"a": 1} -> {"dict": [["a", 1]]}    b"x" -> {"bytes": "78"}

An answer of another type is written as the plain value that it equals: a Counter as its dict, a namedtuple as its
tuple, a frozenset as its set, an IntEnum as its int, Fraction(4) as 4. No object of a submission's class is sent: an
instance of a subclass is sent as its builtin value, or refused when the class defines `==`.
This file also runs inside the isolated worker: standard library only.
"""

import contextlib
import sys
from collections import UserList, UserString
from collections.abc import Mapping, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 64  # levels of nesting
MAX_INT_BITS = 8192  # below the 4300 digits that Python converts to text at most
MAX_LINE = 1 << 20  # bytes of one answer


class WireError(ValueError):
    """A value that equals no plain value, or one beyond the limits above."""


_PLAIN = {bool, int, float, str, bytes, list, tuple, dict, set, frozenset}


def encode(value: Any, depth: int = 0) -> Any:
    """Return the JSON document of the plain value that `value` equals.

    Raises:
        WireError: it equals none, has an integer over MAX_INT_BITS, or is nested deeper than MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    if type(value) not in _PLAIN:
        definer = next(kind for kind in type(value).__mro__ if "__eq__" in vars(kind))
        if definer.__module__.partition(".")[0] not in sys.stdlib_module_names:
            raise WireError(f"{type(value).__name__} defines its own ==")
    # Methods of the builtin types themselves: a subclass may override its own.
    if isinstance(value, int):
        if int.bit_length(value) > MAX_INT_BITS:
            raise WireError(f"integer over {MAX_INT_BITS} bits")
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str | UserString):
        return str.__str__(value if isinstance(value, str) else str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(memoryview(value)).hex()}
    if isinstance(value, list | UserList):
        return [encode(item, depth + 1) for item in (list.__iter__(value) if isinstance(value, list) else value)]
    if isinstance(value, dict | Mapping):
        items = dict.items(value) if isinstance(value, dict) else value.items()
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in items]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, depth + 1) for item in tuple.__iter__(value)]}
    if isinstance(value, Set):  # set, frozenset and the views of a dict
        iterate: Any = next((kind.__iter__ for kind in (set, frozenset) if isinstance(value, kind)), iter)
        return {"set": [encode(item, depth + 1) for item in iterate(value)]}
    if isinstance(value, Fraction | Decimal):
        for kind in (int, float):
            with contextlib.suppress(ValueError, OverflowError):
                if kind(value) == value:
                    return encode(kind(value), depth)
    raise WireError(f"{type(value).__name__} is not a plain value")


def decode(document: Any) -> Any:
    """Return the value of a document that `encode` wrote."""
    if isinstance(document, list):
        return [decode(item) for item in document]
    if not isinstance(document, dict):
        return document
    ((tag, body),) = document.items()
    if tag == "bytes":
        return bytes.fromhex(body)
    if tag == "dict":
        return {decode(key): decode(item) for key, item in body}
    return {"tuple": tuple, "set": set}[tag](map(decode, body))
