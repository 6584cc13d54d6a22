"""Values: what crosses the pipe, what equals what, and any document of a submission, against Python's own `==`."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.grading import wire
from replay_pools.grading.oracle import TOLERANCE, matches, one_line

SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.integers() | st.sampled_from(["", "a", b"", b"a"])
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 0.5, math.inf, -math.inf, 1e300]) | st.floats(allow_nan=False)
KEYS = st.recursive(SCALARS | FLOATS, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)
VALUES = st.recursive(
    SCALARS | FLOATS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=8,
)
MANY = settings(deadline=None, max_examples=80)


def through_the_pipe(value):
    return json.loads(json.dumps(wire.encode(value)))


def equal(actual, expected):
    """The slow, obvious rule: Python's `==`, with the tolerance where a float is expected."""
    if isinstance(expected, float) and isinstance(actual, int | float):
        try:
            return math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:
            return False
    if type(actual) is type(expected) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(equal, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(equal(actual[key], expected[key]) for key in expected)
    return actual == expected


@MANY
@given(VALUES)
def test_a_plain_value_survives_the_pipe(value):
    assert repr(wire.decode(through_the_pipe(value))) == repr(value) or isinstance(value, dict | set | list | tuple)
    assert wire.decode(through_the_pipe(value)) == value
    assert matches(through_the_pipe(value), value)


@MANY
@given(VALUES, VALUES)
def test_two_values_match_as_python_says(actual, expected):
    assert matches(through_the_pipe(actual), expected) is equal(actual, expected)


TAGS = ["bytes", "tuple", "set", "frozenset", "dict", "list", "float", "", "\ud800"]
BARE = SCALARS.filter(lambda value: type(value) is not bytes) | st.floats() | st.sampled_from(["78", 10**4000])
DOCUMENTS = st.recursive(
    BARE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS), inner | st.lists(inner, max_size=3), max_size=2)
        | st.lists(st.lists(inner, min_size=2, max_size=2), max_size=3).map(lambda pairs: {"dict": pairs})
    ),
    max_leaves=8,
)


@MANY
@given(DOCUMENTS, VALUES)
def test_any_document_has_a_verdict(document, expected):
    """None raises; one that matches decodes to an equal value."""
    if matches(document, expected):
        assert equal(wire.decode(document), expected)


@pytest.mark.parametrize("depth", [64, 65, 900])
@pytest.mark.parametrize(
    "wrap", [lambda inner: [inner], lambda inner: {"tuple": [inner]}, lambda inner: {"set": [inner]},
             lambda inner: {"dict": [[inner, 1]]}], ids=["list", "tuple", "set", "dict"],
)  # fmt: skip
def test_deep_documents_are_wrong_and_do_not_raise(wrap, depth):
    deep = 1
    for _ in range(depth):
        deep = wrap(deep)
    for expected in (None, 1, 1.0, "a", b"a", [1], [[1]], (1,), {1}, {(1,)}, {1: 1}, {(1,): [1]}):
        for document in (deep, [deep], {"set": [deep]}, {"dict": [[deep, 1]]}):
            assert matches(document, expected) is False


@pytest.mark.parametrize("kind", [list, tuple])
def test_as_deep_as_the_wire_allows(kind):
    value = kind()
    for _ in range(wire.MAX_DEPTH):
        value = kind([value])
    assert matches(through_the_pipe(value), value)
    with pytest.raises(wire.WireError):
        wire.encode(kind([value]))


COLLIDING = [k * ((1 << 61) - 1) for k in range(50_000)]


@pytest.mark.parametrize(
    ("forged", "expected"),
    [
        ({"set": COLLIDING}, {*range(50_000)}),
        ({"dict": [[k, 0] for k in COLLIDING]}, dict.fromkeys(range(50_000), 0)),
        ({"set": [{"tuple": [k]} for k in COLLIDING]}, {(k,) for k in range(50_000)}),
    ],
    ids=["set", "keys", "tuples"],
)
def test_integers_that_collide_as_hashes_cost_what_others_cost(forged, expected):
    """Put into a set, 50 000 of them take forty seconds."""
    assert len(set(map(hash, COLLIDING[:100]))) == 1
    start = time.process_time()
    assert matches(wire.encode(expected), expected)
    assert not matches(forged, expected)
    assert time.process_time() - start < 2


def test_errors_are_one_deterministic_ascii_line():
    """Cut first: sixteen forged lines of a megabyte would keep the grader busy for seconds."""
    text = "ValueError: <object at 0x7f01> in /tmp/probe-1/x.py \ud800\x1b\nsecond line"
    assert one_line(text) == "ValueError: <object at 0x> in <path> \\ud800?"
    assert len(one_line("x" * 999)) == 200
    assert one_line("/a/b " * 200_000) == one_line(("/a/b " * 200_000)[:500])
