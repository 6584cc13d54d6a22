"""replay_pools.base.tables: the inverse of asdict, one line for all else, and tables laid over one another."""

from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Literal

import orjson
import pytest

from replay_pools.base.errors import InputError, InputErrors
from replay_pools.base.tables import Maybe, decode, keys_of, nearest


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    rate: Maybe[float] = 0.5

    def __post_init__(self):
        if self.rate is not None and self.rate < 0:
            raise InputError("rate", expected="at least 0", found=str(self.rate))
        if self.rate == 99:
            raise ValueError("99 and a do not go together")


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    name: str | None = None
    flag: bool = False
    words: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    other: Maybe[Inner] = None
    rows: tuple[Row, ...] = ()


INNER = Inner(kind="b", rate=None)
FULL = Outer(
    count=2**63 - 1, name="\u4e2d\n", flag=True, words=("", "a"), inner=INNER, other=Inner(rate=1e300),
    rows=(Row(name="r", numbers={"x": 0.1, "y": None}), Row(name="")),
)  # fmt: skip


@pytest.mark.parametrize("value", [Outer(count=-(2**63)), FULL])
def test_round_trip_through_json(value):
    """decode(asdict(x)) = x, through bytes or not, with None kept apart from the default."""
    for table in (asdict(value), orjson.loads(orjson.dumps(asdict(value)))):
        assert decode(Outer, table, "x") == value


def test_the_conversions():
    """A whole number for a float, `none` where a value may be missing, and a default for what is left out."""
    assert decode(Outer, {"count": 1, "inner": {"kind": "b"}}, "x") == Outer(count=1, inner=Inner(kind="b"))
    found = decode(Outer, {"count": 1, "inner": {"rate": 2}}, "x").inner.rate
    assert (found, type(found)) == (2.0, float)
    table = {"count": 1, "name": "none", "inner": {"rate": "none"}, "other": "none"}
    assert decode(Outer, table, "x") == Outer(count=1, inner=Inner(rate=None))
    assert table["inner"] == {"rate": "none"}, "the table was changed"


# (a table, the place that is named)
REFUSED = [
    ([], "x"),
    ({"count": 1, "inner": {"rat": 1}}, "x inner.rat"),
    ({"count": 1.0}, "x count"),
    ({"count": 1, "flag": 1}, "x flag"),
    ({"count": 1, "words": ["a", 2]}, "x words[1]"),
    ({"count": 1, "inner": {"kind": "c"}}, "x inner.kind"),
    ({"count": 1, "other": {"rate": -1}}, "x other.rate"),
    ({"count": 1, "inner": {"rate": 99}}, "x inner"),
    ({"count": 1, "rows": [{"name": "n", "numbers": {"b": "no"}}]}, "x rows.n.numbers.b"),
    ({"count": 1, "rows": [{}]}, "x rows[0].name"),
    ({}, "x count"),
    ({"count": 10**30}, "x"),
    ({"count": 1, "name": date(2026, 1, 1)}, "x"),
    ({"count": 1, "name": "\udcff"}, "x"),
]


@pytest.mark.parametrize(("table", "where"), REFUSED)
def test_bad_tables_name_the_field(table, where):
    """Every place with its dots."""
    with pytest.raises(InputError) as caught:
        decode(Outer, table, "x")
    assert caught.value.where == where


def test_all_faults_are_said_at_once():
    """One for all items of a list."""
    with pytest.raises(InputErrors) as caught:
        decode(Outer, {"count": 1.5, "flag": "yes", "inner": {"kind": "c"}, "words": [1, "a", 2]}, "x")
    assert [error.where for error in caught.value.errors] == ["x count", "x flag", "x words[0]", "x inner.kind"]
    assert "1 more" in caught.value.errors[2].found


def test_keys_of_a_dataclass():
    """Those of inner tables with their dots; a list of tables is one key."""
    own = ("count", "name", "flag", "words", "inner.kind", "inner.rate", "other.kind", "other.rate", "rows")
    assert (*keys_of(Outer),) == own


KNOWN = ["a.rate", "b.rate", "b.first_step", "c.inner.kind", "steps"]


NEAREST = {
    **{"rate": "a.rate", "bb.rate": "b.rate", "z.kind": "c.inner.kind", "optimizer.steps": "steps"},
    **{"b.frist_step": "b.first_step", "first_stp": "b.first_step", "b.q": None, "": None},
}


def test_the_nearest_key_by_hand():
    """The same last part before any spelling, there in the nearest table; nothing where nothing is near."""
    assert {key: nearest(key, KNOWN) for key in NEAREST} == NEAREST
