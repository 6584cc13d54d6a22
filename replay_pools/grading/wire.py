"""Plain Python values as strict JSON documents: the form in which arguments and answers cross the process boundary.

None, booleans, integers, strings and lists are written as JSON has them. Every other type carries a tag, so that a
tuple does not become a list, and -0.0, NaN and the last bit of a float survive:

    1.5 -> {"float": "0x1.8000000000000p+0"}      (1, 2) -> {"tuple": [1, 2]}      {3} -> {"set": [3]}
    {"a": 1} -> {"dict": [["a", 1]]}              b"x" -> {"bytes": "78"}          frozenset -> {"frozenset": [...]}

Only the builtin types themselves have a form. An instance of a subclass, such as an int that is equal to everything,
cannot be an answer. This file also runs inside the isolated worker: standard library only.
"""

from typing import Any

MAX_DEPTH = 64  # levels of nesting
MAX_INT_BITS = 8192  # below the 4300 digits that Python converts to text at most
MAX_LINE = 1 << 20  # bytes of one answer

_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class WireError(ValueError):
    """A value that has no wire form, or a document that is the wire form of no value."""


def encode(value: Any, depth: int = 0) -> Any:
    """The JSON document of `value`.

    Args:
        value: None, bool, int, float, str, bytes, or a list, tuple, set, frozenset or dict of such values.
        depth: levels of nesting around `value`.

    Raises:
        WireError: another type, an integer over MAX_INT_BITS, or nesting deeper than MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    # Compared by `is`, not isinstance: a subclass may override any method that is called below.
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise WireError(f"integer over {MAX_INT_BITS} bits")
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is dict:
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    for tag, collection in _COLLECTIONS.items():
        if kind is collection:
            return {tag: [encode(item, depth + 1) for item in value]}
    raise WireError(f"{kind.__name__} is not a plain value")


def decode(document: Any, depth: int = 0) -> Any:
    """The value of a JSON document; WireError for a document of a form that `encode` does not write."""
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(document, list):
        return [decode(item, depth + 1) for item in document]
    if not isinstance(document, dict):
        if isinstance(document, float):
            raise WireError("a bare float")
        return document
    if len(document) != 1:
        raise WireError("an object without exactly one tag")
    ((tag, body),) = document.items()
    try:
        return _decode_tagged(tag, body, depth)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a malformed {tag!r}") from error


def _decode_tagged(tag: str, body: Any, depth: int) -> Any:
    """The value of `{tag: body}`; ValueError, TypeError or OverflowError when it is malformed."""
    if tag == "float":
        return float.fromhex(body)
    if tag == "bytes":
        return bytes.fromhex(body)
    if tag == "dict" and isinstance(body, list):
        return {decode(key, depth + 1): decode(item, depth + 1) for key, item in body}
    if tag in _COLLECTIONS and isinstance(body, list):
        return _COLLECTIONS[tag](decode(item, depth + 1) for item in body)
    raise WireError("an unknown tag")
