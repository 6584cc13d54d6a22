"""The oracle: parses the answer pipe of an isolated process as hostile input, and compares answers to expected values.

An answer matches an expected value (`matches`) by these rules:
- types are exact: a bool is not an int, a tuple is not a list, an instance of a subclass never gets here (`wire`);
- int and float are both numbers: two ints match when equal, other pairs when |a - b| <= 1e-9 max(|a|, |b|, 1);
- NaN matches NaN, infinities match themselves, 0.0 matches -0.0;
- dictionary keys and set elements match exactly, without tolerance, in any order.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

from replay_pools.grading import wire

TOLERANCE = 1e-9
MAX_STREAM = 16 << 20  # bytes of one execution's answers

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PATH = re.compile(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)+")

_Exact = TypeVar("_Exact")


def matches(actual: Any, expected: Any) -> bool:
    """Whether an answer is the expected value, by the rules at the head of this file.

    Both are plain values (`wire.decode` makes no others), so that no comparison calls code of a submission.
    """
    if type(actual) in (int, float) and type(expected) in (int, float):
        return _numbers_match(actual, expected)
    if type(actual) is not type(expected):
        return False
    if isinstance(actual, list | tuple):
        return len(actual) == len(expected) and all(matches(a, b) for a, b in zip(actual, expected, strict=True))
    if isinstance(actual, dict):
        actual_items = {_key(key): item for key, item in actual.items()}
        expected_items = {_key(key): item for key, item in expected.items()}
        if actual_items.keys() != expected_items.keys():
            return False
        return all(matches(item, expected_items[key]) for key, item in actual_items.items())
    if isinstance(actual, set | frozenset):
        return {_key(item) for item in actual} == {_key(item) for item in expected}
    return actual == expected


def _numbers_match(a: float, b: float) -> bool:
    if type(a) is int and type(b) is int:
        return a == b
    try:
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an int beyond the floats
        return False


def _key(value: Any) -> str:
    """A string that is the same for two hashable values exactly when they and their types are equal.

    Needed because Python's own equality of keys has 1 == True == 1.0.
    """
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_key, value))})"
    if isinstance(value, tuple):
        return f"({[_key(item) for item in value]})"
    return json.dumps(wire.encode(value))


def one_line(text: object) -> str:
    """An error message in the form that grades store: one line of printable ASCII, at most 200 characters.

    Without addresses and paths, which differ from run to run where a grade must not.
    """
    line = str(text).split("\n")[0].encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else "?" for character in line)
    return _PATH.sub("<path>", _ADDRESS.sub("0x", line))[:200]


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON document; ValueError for a duplicate key, of which `json` would keep the last."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _no_constant(name: str) -> float:
    """ValueError for NaN and infinities, which `json` reads although JSON has none."""
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_strict_object, parse_constant=_no_constant)


def parse_line(line: bytes) -> dict[str, Any]:
    """One strict JSON object (UTF-8, no NaN, no duplicate key, at most MAX_LINE bytes); ValueError otherwise."""
    if len(line) > wire.MAX_LINE:
        raise ValueError("line too long")
    try:
        row = _JSON.decode(line.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


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
    _rest: bytes = b""
    _num_bytes: int = 0

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
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._num_bytes += len(line) + 1
            try:
                self._take_row(parse_line(line))
            except (ValueError, KeyError, TypeError):
                self.forged = True
            self.forged |= self._num_bytes > MAX_STREAM
            if self.complete:
                self._rest = b""
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
                verdicts[i] = answered and _is_right(document, expected[i])
        return verdicts


def _exact(value: Any, kind: type[_Exact]) -> _Exact:
    """`value`; TypeError unless its type is exactly `kind`."""
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value


def _is_right(document: Any, expected: Any) -> bool:
    """Whether the value of a wire document matches `expected`; False for a malformed document."""
    # A document of another size is wrong, and must not be decoded: decoding puts values into sets and dictionaries,
    # where integers chosen to collide take quadratic time.
    try:
        return _size(document) == _size(wire.encode(expected)) and matches(wire.decode(document), expected)
    except ValueError:
        return False


def _size(document: Any) -> int:
    """How many values a wire document holds. Without recursion, because a hostile document may be nested deeply."""
    size, unvisited = 0, [document]
    while unvisited:
        item = unvisited.pop()
        size += 1
        if isinstance(item, dict):
            item = next(iter(item.values()), None)  # {tag: body}: go on with the body
        if isinstance(item, list):
            unvisited += item
    return size
