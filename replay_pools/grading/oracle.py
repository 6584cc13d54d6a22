"""The trusted side: reads the answer pipe as hostile input and compares answers with what it alone knows.

Equality is of exact types: a bool is not an int, a tuple is not a list, a subclass is nothing at all (it has no wire
form). int and float are both numbers: two ints match when equal; otherwise |a - b| <= 1e-9 max(|a|, |b|, 1). NaN
matches NaN, infinities match themselves, 0.0 matches -0.0. Dictionary keys and set elements match exactly, without
tolerance, in any order.
"""

import ast
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from replay_pools.grading import wire

TOLERANCE = 1e-9
MAX_STREAM = 16 << 20  # bytes of one execution's answers

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PATH = re.compile(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)+")


def matches(actual: Any, expected: Any) -> bool:
    """Whether an answer is the expected value, by the rules at the head of this file; never calls model code."""
    if type(actual) in (int, float) and type(expected) in (int, float):
        return _numbers_match(actual, expected)
    if type(actual) is not type(expected):
        return False
    if isinstance(actual, list | tuple):
        return len(actual) == len(expected) and all(matches(a, b) for a, b in zip(actual, expected, strict=True))
    if isinstance(actual, dict):
        left, right = ({_key(key): item for key, item in value.items()} for value in (actual, expected))
        return left.keys() == right.keys() and all(matches(left[key], right[key]) for key in left)
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
    """A string that is equal for exactly equal values of exactly equal types."""
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_key, value))})"
    if isinstance(value, tuple):
        return f"({[_key(item) for item in value]})"
    return json.dumps(wire.encode(value))


def split_assertion(text: str) -> tuple[str, Any]:
    """(expression, expected) of `assert expression == literal`: the child evaluates, the parent compares.

    Any other assertion becomes (its truth value, True): there the child evaluates the whole test, which an object with
    an __eq__ of its own can fool. That is why assertions are the weaker class.

    Raises:
        SyntaxError: `text` is not one assert statement.
    """
    (statement,) = ast.parse(text).body or (None,)
    if not isinstance(statement, ast.Assert):
        raise SyntaxError(f"not an assert statement: {text!r}")
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        try:
            expected = ast.literal_eval(test.comparators[0])
            wire.encode(expected)
            return ast.unparse(test.left), expected
        except ValueError:
            pass
    return f"bool({ast.unparse(test)})", True


def one_line(text: object) -> str:
    """An error as it may be stored: one line of printable ASCII without addresses and paths, at most 200 characters."""
    line = str(text).split("\n")[0].encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else "?" for character in line)
    return _PATH.sub("<path>", _ADDRESS.sub("0x", line))[:200]


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def parse_line(line: bytes) -> dict[str, Any]:
    """One strict JSON object (UTF-8, no NaN, no duplicate key, at most MAX_LINE bytes); ValueError otherwise."""
    if len(line) > wire.MAX_LINE:
        raise ValueError("line too long")
    try:
        row = json.loads(line.decode(), object_pairs_hook=_strict_object, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """State of one execution's answer pipe, fed with raw bytes.

    The first answer per index wins. A line that the worker would not write (no nonce, not strict JSON, an index before
    its turn) is `forged`: nothing of the stream counts any more.
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
    _rest: bytearray = field(default_factory=bytearray)
    _num_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Nothing more is expected: every answer is in, or none will come."""
        all_in = self.compiled and len(self.answered) == self.num_answers
        return self.forged or self.setup_error is not None or all_in

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the pipe."""
        self._num_bytes += len(data)
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        self.forged |= self._num_bytes > MAX_STREAM or len(rest) > wire.MAX_LINE
        for line in lines:
            if self.complete:
                return
            try:
                self._take(parse_line(line))
            except (ValueError, KeyError, TypeError):
                self.forged = True

    def _take(self, row: dict[str, Any]) -> None:
        if row.pop("nonce") != self.nonce:
            raise ValueError("wrong nonce")
        if "i" in row:
            self._take_answer(row)
        elif "ready" in row:
            self.ready = True
        elif "setup_error" in row:
            self.setup_error = one_line(row["setup_error"])
        else:
            self.compiled = row.get("compiled", self.compiled) is True
            self.error = one_line(row["error"]) if "error" in row else self.error

    def _take_answer(self, row: dict[str, Any]) -> None:
        index = row["i"]
        if type(index) is not int or index > len(self.answered):
            raise ValueError("an index before its turn")
        if index < len(self.answered):
            return
        if "value" not in row and self.error is None:
            self.error = one_line(row["error"])
        self.answered.append("value" in row)
        self.answers.append(row.get("value"))

    def right(self, expected: list[Any]) -> list[bool]:
        """Whether each answer is the expected one; all False for a forged stream."""
        verdicts = [False] * len(expected)
        if not self.forged:
            for i, (answered, document) in enumerate(zip(self.answered, self.answers, strict=True)):
                try:
                    verdicts[i] = answered and matches(wire.decode(document), expected[i])
                except ValueError:
                    verdicts[i] = False
        return verdicts
