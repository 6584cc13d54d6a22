"""The oracle: parses the answer pipe of an isolated process as hostile input, and compares answers to expected values.

An answer matches an expected value (`matches`) by these rules:
- types are exact: a bool is not an int, a tuple is not a list, an instance of a subclass never gets here (`wire`);
- int and float are both numbers: where an int b is expected, the answer a matches when a == b, and where a float is
  expected, when |a - b| <= 1e-9 max(|a|, |b|, 1);
- NaN matches NaN, infinities match themselves, 0.0 matches -0.0;
- dictionary keys and set elements match exactly, type and last bit, in any order.

Nothing that a submission sent is decoded here: put into a set or a dictionary, integers with chosen hashes take
quadratic time. Its documents are compared as they are, and go as they are to the process that checks assertions.
"""

import json
import math
import re
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

from replay_pools.grading import wire

TOLERANCE = 1e-9
# Of one execution's answers: bytes, and lists and objects, which cost the grader most. Both together keep what any
# stream costs it below half a CPU second and 200 MB. A problem whose own answers need more fails the canary.
MAX_STREAM = 4 << 20
MAX_CONTAINERS = 1 << 18
MAX_NESTING = 4 * wire.MAX_DEPTH  # of brackets in a line; `wire.encode` writes at most three for a level

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PATH = re.compile(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)+")

_Exact = TypeVar("_Exact")


def matches(document: Any, expected: Any) -> bool:
    """Whether a wire document is that of an answer which matches `expected`, by the rules at the head of this file.

    Any JSON document is allowed, also a malformed one, which matches nothing: this never raises. It goes no deeper into
    a document than `expected` goes, and reads no list that has another length.

    Args:
        document: what a submission sent, after `json`.
        expected: a plain value, one that `wire.encode` takes.
    """
    kind = type(expected)
    if kind is int or kind is float:
        return _number_matches(_number(document), expected)
    if expected is None or kind is bool or kind is str:
        return type(document) is kind and document == expected
    if kind is bytes:
        return document == {"bytes": expected.hex()}
    items = document if kind is list else _body(document, kind.__name__)
    if not isinstance(items, list) or len(items) != len(expected):
        return False
    if kind is list or kind is tuple:
        return all(map(matches, items, expected))
    try:
        if kind is dict:
            return _pairs_match(items, expected)
        # The elements of a set come in any order. Sorted, because nothing is hashed.
        return sorted(map(_text, items)) == sorted(_text(wire.encode(item)) for item in expected)
    except wire.WireError:
        return False


def _body(document: Any, tag: str) -> Any:
    """What `document` holds under its only key, `tag`; None where it is anything else."""
    return document[tag] if isinstance(document, dict) and document.keys() == {tag} else None


def _number(document: Any) -> float | None:
    """The int or float of a document; None for any other."""
    if type(document) is int:
        return document
    try:
        value = float.fromhex(_body(document, "float"))
    except (TypeError, ValueError, OverflowError):
        return None
    return value if document == wire.encode(value) else None  # not in another spelling


def _number_matches(actual: float | None, expected: float) -> bool:
    if actual is None:
        return False
    if type(expected) is int:
        return actual == expected  # exact in Python, also between int and float
    try:
        if math.isnan(expected):
            return math.isnan(actual)
        return math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an int beyond the floats
        return False


def _pairs_match(pairs: list[Any], expected: dict[Any, Any]) -> bool:
    """Whether documents [key, item] match an expected dictionary of as many items."""
    actual_items: list[tuple[str, Any]] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        actual_items.append((_text(pair[0]), pair[1]))
    expected_items = [(_text(wire.encode(key)), item) for key, item in expected.items()]
    by_key = itemgetter(0)
    in_order = zip(sorted(actual_items, key=by_key), sorted(expected_items, key=by_key), strict=True)
    return all(key == other and matches(item, value) for (key, item), (other, value) in in_order)


def _text(document: Any, depth: int = 0) -> str:
    """A text that two documents share exactly when they are those of the same hashable value of the same type.

    Linear in the document for every level of nesting: texts are put together and never quoted again, which would
    double their length with every level.

    Raises:
        wire.WireError: `document` is not one of a hashable value, or is nested deeper than wire.MAX_DEPTH.
    """
    if depth > wire.MAX_DEPTH:
        raise wire.WireError(f"nested deeper than {wire.MAX_DEPTH}")
    if document is None or isinstance(document, str | bool):
        return json.dumps(document)
    if isinstance(document, int):
        return hex(document)  # linear in its size, which decimal digits are not
    if isinstance(document, dict) and len(document) == 1:
        ((tag, body),) = document.items()
        if tag in ("float", "bytes") and isinstance(body, str):
            return tag + json.dumps(body)
        if tag in ("tuple", "frozenset") and isinstance(body, list):
            texts = [_text(item, depth + 1) for item in body]
            return f"{tag}({','.join(sorted(texts) if tag == 'frozenset' else texts)})"
    raise wire.WireError("not the document of a hashable value")


def one_line(text: object) -> str:
    """An error message in the form that grades store: one line of printable ASCII, at most 200 characters.

    Without addresses and paths, which differ from run to run where a grade must not.
    """
    # Cut first: a forged error may be as long as a line. The worker's own have at most 500 characters.
    line = str(text)[:500].split("\n")[0].encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else "?" for character in line)
    return _PATH.sub("<path>", _ADDRESS.sub("0x", line))[:200]


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON document; ValueError for a duplicate key, of which `json` would keep the last."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document


def _no_constant(name: str) -> float:
    """ValueError for NaN and infinities, which `json` reads although JSON has none."""
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_strict_object, parse_constant=_no_constant)


def parse_line(line: bytes) -> dict[str, Any]:
    """One strict JSON object: UTF-8, no NaN, no duplicate key, at most MAX_LINE bytes and MAX_NESTING levels.

    Here bytes of a submission become values, and these limits hold for all that is done with them. In particular, the
    depth is one that `json` writes again.

    Raises:
        ValueError: anything else.
    """
    if len(line) > wire.MAX_LINE:
        raise ValueError("line too long")
    try:
        row = _JSON.decode(line.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if _is_nested_deeper(row, MAX_NESTING):
        raise ValueError("nested too deep")
    return row


def _is_nested_deeper(document: dict[str, Any], limit: int) -> bool:
    """Whether a JSON object has more than `limit` levels of lists and objects, itself included. Without recursion."""
    level: list[Any] = [document]
    for _ in range(limit):
        if not level:  # nearly always after a few levels, and this runs for every line
            return False
        children: list[Any] = []
        for item in level:
            children += item.values() if isinstance(item, dict) else item
        level = [child for child in children if isinstance(child, list | dict)]
    return bool(level)


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """A parser of one execution's answer pipe, fed with raw bytes; how these are cut into pieces does not matter.

    The worker writes one JSON object a line, each with the nonce:
        {"ready": true}
        {"setup_error": str}, or {"compiled": true}, or {"compiled": false, "error": str}
        {"i": 0, "value": wire document}, or {"i": 0, "error": str}; then i = 1, 2, ...
        {"error": str} instead, when the submission failed before its first answer

    The first answer of an index counts. A line that the worker would not write at its place (without the nonce, not
    strict JSON, an index before its turn) makes the stream `forged`, and then none of its answers counts. The
    submission runs after `compiled`, so only the lines before that are certain to be the worker's own.

    Args:
        nonce: the secret that every line must carry.
        num_answers: how many answers to expect; the stream is complete when it has them.
    """

    nonce: str
    num_answers: int
    ready: bool = False
    compiled: bool = False
    setup_error: str | None = None
    error: str | None = None  # first error of the submission
    forged: bool = False
    answers: list[Any] = field(default_factory=list)  # wire documents; None for an input that raised
    answered: list[bool] = field(default_factory=list)
    _rest: bytearray = field(default_factory=bytearray)  # of a line that has no end yet
    _num_bytes: int = 0
    _num_containers: int = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more is expected: all answers are in, or no more can count."""
        if self.compiled:
            return self.forged or len(self.answered) == self.num_answers
        return self.forged or self.setup_error is not None or self.error is not None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the pipe; a complete stream ignores them."""
        if self.complete:
            return
        # In place: a line that comes byte by byte must not be copied with each of them.
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest[:] = rest
        for line in lines:
            self._num_bytes += len(line) + 1
            self._num_containers += line.count(b"[") + line.count(b"{")
            try:
                # Before the line is parsed, because that is the cost.
                if self._num_bytes > MAX_STREAM or self._num_containers > MAX_CONTAINERS:
                    raise ValueError("more than any answer needs")
                self._take_row(parse_line(line))
            except (ValueError, KeyError, TypeError):
                self.forged = True
            if self.complete:
                self._rest.clear()
                return
        # A line without end must not fill the grader's memory.
        self.forged |= len(self._rest) > min(wire.MAX_LINE, MAX_STREAM - self._num_bytes)

    def _take_row(self, row: dict[str, Any]) -> None:
        """Advance by one line; ValueError, KeyError or TypeError for one that the worker would not write here."""
        if row.pop("nonce") != self.nonce:
            raise ValueError("wrong nonce")
        if not self.ready:
            self.ready = _exact(row["ready"], bool)
        elif self.compiled and "i" in row:
            self._take_answer(row)
        elif self.compiled or row.get("compiled") is False:
            self._take_error(row)
        elif "setup_error" in row:
            self.setup_error = one_line(_exact(row["setup_error"], str))
        else:
            self.compiled = _exact(row["compiled"], bool)

    def _take_answer(self, row: dict[str, Any]) -> None:
        index = _exact(row["i"], int)
        if not 0 <= index <= len(self.answered):
            raise ValueError("an index before its turn")
        if index < len(self.answered):
            return
        if "value" not in row:
            self._take_error(row)
        self.answered.append("value" in row)
        self.answers.append(row.get("value"))

    def _take_error(self, row: dict[str, Any]) -> None:
        error = one_line(_exact(row["error"], str))
        self.error = self.error or error

    def drop_answers(self) -> None:
        """Forget the answers, as if none had come."""
        self.answers.clear()
        self.answered.clear()

    def right(self, expected: list[Any]) -> list[bool]:
        """The verdict on each of the `expected` values: whether its answer matches; all False for a forged stream."""
        verdicts = [False] * len(expected)
        if not self.forged:
            for i, (answered, document) in enumerate(zip(self.answered, self.answers, strict=True)):
                verdicts[i] = answered and matches(document, expected[i])
        return verdicts


def _exact(value: Any, kind: type[_Exact]) -> _Exact:
    """`value`; TypeError unless its type is exactly `kind`."""
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value
