"""replay_pools.tables: the inverse of asdict, and one line for everything else."""

from dataclasses import asdict, dataclass, field
from typing import Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.errors import InputError
from replay_pools.tables import decode


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    rate: float | None = 0.5

    def __post_init__(self):
        if self.rate is not None and self.rate < 0:
            raise ValueError(f"rate: expected at least 0, found {self.rate}")


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    name: str | None = None
    flag: bool = False
    words: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)


outers = st.builds(
    Outer,
    count=st.integers(-(2**63), 2**63 - 1),
    name=st.none() | st.text(),
    flag=st.booleans(),
    words=st.lists(st.text()).map(tuple),
    inner=st.builds(Inner, kind=st.sampled_from("ab"), rate=st.none() | st.floats(0, 1e300)),
)


@settings(deadline=None, max_examples=100)
@given(value=outers)
def test_round_trip_through_json(value):
    """decode(asdict(x)) = x, through bytes, with None kept apart from the default and from a text `none`."""
    assert decode(Outer, orjson.loads(orjson.dumps(asdict(value))), "x") == value


def test_what_is_left_out_keeps_its_default():
    assert decode(Outer, {"count": 1, "inner": {"kind": "b"}}, "x") == Outer(count=1, inner=Inner(kind="b"))


def test_the_two_conversions():
    """A whole number for a float, and `none` where a number may be missing; a text field keeps the word."""
    assert decode(Outer, {"count": 1, "inner": {"rate": 2}}, "x").inner.rate == 2.0
    assert decode(Outer, {"count": 1, "name": "none", "inner": {"rate": "none"}}, "x") == Outer(
        count=1, name="none", inner=Inner(rate=None)
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "x: expected a table"),
        ({"count": 1, "inner": {"rat": 1}}, "x inner: expected fields out of kind, rate, found unknown: rat"),
        ({"count": 1.0}, "x count: expected int, found 1.0"),
        ({"count": True}, "x count: expected int, found True"),
        ({"count": 1, "flag": 1}, "x flag: expected bool, found 1"),
        ({"count": 1, "words": "ab"}, "x words: expected a list, found 'ab'"),
        ({"count": 1, "words": ["a", 2]}, r"x words \[1\]: expected str, found 2"),
        ({"count": 1, "inner": {"kind": "c"}}, "x inner kind: expected one of a, b, found 'c'"),
        ({"count": 1, "inner": {"rate": -1}}, "x inner: .* rate: expected at least 0, found -1.0"),
        ({}, "x: .*count"),
    ],
)
def test_bad_tables_name_the_field(row, message):
    with pytest.raises(InputError, match=message):
        decode(Outer, row, "x")
