"""The oracle: parses the answer pipe of an isolated process as hostile input, and compares answers to expected values.

An answer matches an expected value as Python's `==` says, with two exceptions (`matches`): where a float is expected, a
number a matches b when |a - b| <= 1e-9 max(|a|, |b|, 1); and NaN matches NaN.
No value of a submission is put into a set or a dictionary: integers with chosen hashes would take quadratic time there.
"""

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from replay_pools.grading import wire

TOLERANCE = 1e-9
# Limits of one execution's answers, in bytes and in lists and objects. They keep the grader's cost below half a CPU
# second and 200 MB for any stream. A problem that needs more for its right answers fails the canary.
MAX_STREAM = 4 << 20
MAX_CONTAINERS = 1 << 18

RAISED = object()  # matches nothing
_NUMBERS = {bool, int, float}
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PATH = re.compile(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)+")


def matches(document: Any, expected: Any) -> bool:
    """Return whether the answer in a wire document matches `expected`, by the rules at the head of this file.

    A malformed document matches nothing; this never raises. It goes no deeper into a document than `expected` goes, and
    reads no list of another length.

    Args:
        document: the JSON that a submission sent.
        expected: a plain value, as `wire.decode` returns it.
    """
    kind = type(expected)
    if kind is int or kind is bool:  # exact in Python, also between int and float
        return type(document) in _NUMBERS and document == expected
    if kind is float:
        return type(document) in _NUMBERS and _near(document, expected)
    if expected is None or isinstance(expected, str):
        return type(document) is type(expected) and document == expected
    tag = "set" if isinstance(expected, frozenset) else type(expected).__name__
    if isinstance(expected, bytes):
        return _body(document, tag) == expected.hex()
    items = document if isinstance(expected, list) else _body(document, tag)
    if not isinstance(items, list) or len(items) != len(expected):
        return False
    if isinstance(expected, list | tuple):
        return all(map(matches, items, expected))
    if isinstance(expected, dict):
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            return False
        keys = [_key(item[0]) for item in items]
        return _same_members(keys, expected) and all(
            matches(item[1], expected[key]) for key, item in zip(keys, items, strict=True)
        )
    return _same_members([_key(item) for item in items], expected)


def _near(actual: float, expected: float) -> bool:
    try:
        if math.isnan(expected):
            return math.isnan(actual)
        return math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an int beyond the floats
        return False


def _body(document: Any, tag: str) -> Any:
    """Return what `document` holds under its only key, `tag`; None for any other document."""
    return document[tag] if isinstance(document, dict) and document.keys() == {tag} else None


def _same_members(keys: list[Any], expected: Collection[Any]) -> bool:
    """Return whether `keys` are the members of a set, or the keys of a dictionary, each once."""
    # The table that is looked into holds expected values alone, and so does the set that is built.
    return all(key in expected for key in keys) and len({*keys}) == len(expected)


def _key(document: Any, depth: int = 0) -> Any:
    """Return the scalar, bytes or tuple of a document, as a member of a set; for any other, what equals nothing."""
    if document is None or isinstance(document, str | int | float):
        return document
    body = _body(document, "tuple")
    if isinstance(body, list) and depth < wire.MAX_DEPTH:
        return tuple(_key(item, depth + 1) for item in body)
    body = _body(document, "bytes")
    try:
        return bytes.fromhex(body)
    except (TypeError, ValueError):
        return object()


def one_line(text: object) -> str:
    """Return an error message as grades store it: one line of printable ASCII, at most 200 characters.

    Addresses and paths are replaced, since they differ from run to run and a grade must not.
    """
    # Cut first: a forged error may be as long as a line. The worker's own have at most 500 characters.
    line = str(text)[:500].split("\n")[0].encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else "?" for character in line)
    return _PATH.sub("<path>", _ADDRESS.sub("0x", line))[:200]


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line of UTF-8 of at most MAX_LINE bytes; ValueError for anything else."""
    if len(line) > wire.MAX_LINE:
        raise ValueError("line too long")
    try:
        row = json.loads(line.decode())
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
    answers: list[Any] = field(default_factory=list)  # wire documents; RAISED for an input that raised
    _rest: bytearray = field(default_factory=bytearray)  # of a line that has no end yet
    _num_bytes: int = 0
    _num_containers: int = 0

    @property
    def complete(self) -> bool:
        """True when all answers are in, or no more can count."""
        if self.compiled:
            return self.forged or len(self.answers) == self.num_answers
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
        if not 0 <= index <= len(self.answers):
            raise ValueError("an index before its turn")
        if index < len(self.answers):
            return
        if "value" not in row:
            self._take_error(row)
        self.answers.append(row.get("value", RAISED))

    def _take_error(self, row: dict[str, Any]) -> None:
        error = one_line(_exact(row["error"], str))
        self.error = self.error or error

    def said(self, value: bool | None) -> list[bool]:
        """Return for each answer whether it is `value` itself, which an equal number is not; [] for a forged stream."""
        return [] if self.forged else [document is value for document in self.answers]

    def right(self, expected: list[Any]) -> list[bool]:
        """Return for each expected value whether its answer matches; all False for a forged stream."""
        answers = [] if self.forged else self.answers
        verdicts = list(map(matches, answers, expected))
        return verdicts + [False] * (len(expected) - len(verdicts))


def _exact(value: Any, kind: type) -> Any:
    """Return the value; TypeError unless its type is exactly `kind`."""
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value
