"""The trusted side of the grader: extraction, wire form, comparator, answer pipe. No process is started here."""

import json
import math
import os
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.grading import wire
from replay_pools.grading.assertions import Assertion, parse_assertion
from replay_pools.grading.labels import extract_source
from replay_pools.grading.oracle import MAX_NESTING, TOLERANCE, matches, one_line, parse_line
from replay_pools.rollout import CODE_RULES

FUZZED = int(os.environ.get("FUZZED", 500))  # documents of each fuzz test
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.text(max_size=3)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)


def collections(inner):
    lists = st.lists(inner, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
    )


VALUES = st.recursive(SCALARS | st.floats(), collections, max_leaves=8)


def exact_form(value):
    """The slow, obvious reference of exact-type equality: every value beside the name of its type."""
    name = type(value).__name__
    if isinstance(value, list | tuple):
        return name, [exact_form(item) for item in value]
    if isinstance(value, set | frozenset):
        return name, sorted((exact_form(item) for item in value), key=repr)
    if isinstance(value, dict):
        return name, sorted(((exact_form(k), exact_form(v)) for k, v in value.items()), key=repr)
    return name, value


def through_the_pipe(value):
    return wire.decode(json.loads(json.dumps(wire.encode(value), allow_nan=False)))


@settings(deadline=None, max_examples=60)
@given(VALUES)
def test_wire_form_keeps_value_and_types(value):
    """decode . json . encode is the identity, types, NaN and -0.0 included (sets may iterate in another order)."""
    assert repr(exact_form(through_the_pipe(value))) == repr(exact_form(value))


def is_right(answer, expected):
    """Whether the document of an answer matches, as it comes out of the pipe."""
    return matches(json.loads(json.dumps(wire.encode(answer), allow_nan=False)), expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (True, 1), (1, True), (False, 0), (0.0, False), (1.0, True), ((1, 2), [1, 2]), ([1, 2], (1, 2)), ([1], [True]),
        ({1: 2}, {True: 2}), ({1}, {True}), ({1}, frozenset({1})), ("1", 1), (b"a", "a"), (None, 0), (None, False),
        (math.nan, 1.0), (math.inf, 1e308), (-math.inf, math.inf), (10**400, 1.0), (10**17 + 1, 10**17), (2, 2.001),
        ([], None), ([1, 2], [1]), ({}, []), ({"a": 1}, {"a": 1, "b": 2}), (1.001e-9, 0.0), (1e6 + 1.001e-3, 1e6),
        (1000000006.9, 1000000006), (1e17, 10**17 + 1), (1e-300, 0), (math.nan, 0), (math.inf, 10**400),
        (10**400, math.nan), (10**400, math.inf), ([1 + 1e-12], [1]), ({"k": 3.0000000001}, {"k": 3}), ({1.0}, {1}),
        ({0.0}, {-0.0}), ({"a": 1, "b": 2}, {"a": 2, "b": 1}), ({(1, 2)}, {(2, 1)}),
    ],
)  # fmt: skip
def test_never_equal(actual, expected):
    assert not is_right(actual, expected), f"{actual!r} passes for {expected!r}"


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(2, 2.0), (2.0, 2), (0.1 + 0.2, 0.3), (math.nan, math.nan), (math.inf, math.inf), (-0.0, 0), (1e17, 10**17),
     (1e300, 1e300 * (1 + 1e-12)), (0.999e-9, 0.0), (1e6 + 0.999e-3, 1e6),
     ({"b": [1.0], "a": 2}, {"a": 2, "b": [1]}), (3, 3.0000000001),
     ({3, 1, 2}, {1, 2, 3}), ({frozenset({"b", "a"})}, {frozenset({"a", "b"})}), ({(math.nan,)}, {(math.nan,)})],
)  # fmt: skip
def test_numbers_match_within_the_stated_tolerance(actual, expected):
    assert is_right(actual, expected)


def reference_matches(document, expected):
    """The slow, obvious way: decode the document, refuse one that `encode` does not write, compare the values."""
    try:
        value = wire.decode(document)
        written = wire.encode(value)
    except wire.WireError:
        return False
    return repr(sorted_sets(document)) == repr(sorted_sets(written)) and values_match(value, expected)


def sorted_sets(document):
    """A document with the bodies of its sets and dictionaries in one order."""
    if isinstance(document, list):
        return [sorted_sets(item) for item in document]
    if isinstance(document, dict):
        (tag, body), *_ = document.items()
        body = sorted_sets(body)
        return {tag: sorted(body, key=repr) if tag in ("set", "frozenset", "dict") and type(body) is list else body}
    return document


def values_match(actual, expected):
    if type(expected) is int and type(actual) in (int, float):
        return actual == expected
    if type(expected) is float and type(actual) in (int, float):
        if not math.isfinite(expected) or not -1e300 < actual < 1e300:
            return repr(float(actual)) == repr(expected) if abs(actual) < 1e308 or type(actual) is float else False
        return abs(actual - expected) <= TOLERANCE * max(abs(actual), abs(expected), 1)
    if type(actual) is not type(expected):
        return False
    if isinstance(actual, list | tuple):
        return len(actual) == len(expected) and all(map(values_match, actual, expected))
    if isinstance(actual, set | frozenset):
        return sorted(map(key_form, actual)) == sorted(map(key_form, expected))
    if isinstance(actual, dict):
        if sorted(map(key_form, actual)) != sorted(map(key_form, expected)):
            return False
        pairs = zip(sorted(actual, key=key_form), sorted(expected, key=key_form))
        return all(values_match(actual[a], expected[b]) for a, b in pairs)
    return actual == expected


def key_form(key):
    return repr(exact_form(key))  # by its text, in which nan is nan and -0.0 is not 0.0


TAGS = ["float", "bytes", "tuple", "set", "frozenset", "dict", "list", "", "\ud800"]
BARE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    | st.sampled_from(["0x1p+0", "0x1.0p0", "nan", "-inf", "0x1p99999", "78", "7 8", "\ud800", 10**4000, -(10**400)])
)  # fmt: skip
DOCUMENTS = st.recursive(
    BARE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS), inner | st.lists(inner, max_size=3), max_size=2)
        | st.lists(st.lists(inner, min_size=2, max_size=2), max_size=3).map(lambda pairs: {"dict": pairs})
    ),
    max_leaves=8,
)


@st.composite
def altered(draw, document):
    """The document with, at some places, an item doubled, moved, dropped or replaced by anything."""
    change = draw(st.integers(0, 9))
    if change == 0:
        return draw(DOCUMENTS)
    if isinstance(document, list):
        items = [draw(altered(item)) for item in document]
        if change == 1:
            items = draw(st.permutations(items))
        if change == 2:
            items = [*items, *items[:1]]
        return items[1:] if change == 3 else items
    if isinstance(document, dict):
        return {tag: draw(altered(body)) for tag, body in document.items()}
    return document


@st.composite
def cases(draw):
    """(document, expected): mostly an altered document of the expected value, sometimes of another one."""
    expected = draw(VALUES)
    return draw(altered(wire.encode(draw(st.just(expected) | VALUES)))), expected


@settings(deadline=None, max_examples=FUZZED)
@given(cases())
def test_any_document_is_judged_as_by_decoding_it(case):
    """Malformed documents included: none raises, and none is right that `encode` would not write."""
    document, expected = case
    assert matches(document, expected) is reference_matches(document, expected)


def nest(wrap, times, document=1):
    for _ in range(times):
        document = wrap(document)
    return document


WRAPS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: {"tuple": [inner]},
    "frozenset": lambda inner: {"frozenset": [inner]},
    "set": lambda inner: {"set": [inner]},
    "key": lambda inner: {"dict": [[inner, 1]]},
    "item": lambda inner: {"dict": [[1, inner]]},
    "unknown": lambda inner: {"?": inner},
}


@pytest.mark.parametrize("times", [64, 65, 10_000])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_deep_documents_are_wrong_and_do_not_raise(wrap, times):
    deep = nest(wrap, times)
    for expected in (None, 1, 1.0, "a", b"a", [1], [[1]], (1,), {1}, {(1,)}, {frozenset({1})}, {1: 1}, {(1,): [1]}):
        for document in (deep, [deep], {"set": [deep]}, {"dict": [[deep, 1]]}):
            assert matches(document, expected) is False


@pytest.mark.parametrize("kind", [list, tuple])
def test_as_deep_as_the_wire_allows(kind):
    value = nest(lambda inner: kind([inner]), wire.MAX_DEPTH)
    assert is_right(value, value)
    with pytest.raises(wire.WireError):
        wire.encode(kind([value]))


def test_quotes_deep_in_a_set_do_not_double_with_every_level():
    """A text that quotes the texts inside it doubles their backslashes with every level."""
    key = nest(lambda inner: (inner,), 20, document="'\"\\")
    document = wire.encode({key})
    tracemalloc.start()
    assert matches(document, {key})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000, "bytes"
    deepest = nest(lambda inner: (inner,), 60, document="'\"\\")
    assert is_right({deepest}, {deepest})
    assert not is_right({deepest}, {1})


COLLIDING = [k * ((1 << 61) - 1) for k in range(50_000)]


@pytest.mark.parametrize(
    ("forged", "honest", "expected"),
    [
        ({"set": COLLIDING}, wire.encode(set(range(50_000))), set(range(50_000))),
        ({"dict": [[k, 0] for k in COLLIDING]}, wire.encode(dict.fromkeys(range(50_000), 0)),
         dict.fromkeys(range(50_000), 0)),
        ({"set": [{"tuple": [k]} for k in COLLIDING]}, wire.encode({(k,) for k in range(50_000)}),
         {(k,) for k in range(50_000)}),
    ],
    ids=["set", "keys", "tuples"],
)  # fmt: skip
def test_integers_that_collide_as_hashes_cost_what_others_cost(forged, honest, expected):
    """Put into a set, 50 000 of them take a hundred times the time of an honest answer, and forty seconds in all."""
    assert len(set(map(hash, COLLIDING[:100]))) == 1

    def cost(document):
        start = time.process_time()
        right = matches(document, expected)
        return time.process_time() - start, right

    honest_runs, forged_runs = ([cost(document) for _ in range(3)] for document in (honest, forged))
    assert [right for _, right in honest_runs + forged_runs] == [True] * 3 + [False] * 3
    assert min(forged_runs) < (10 * min(honest_runs)[0],), "the answer's values are hashed"


class AlwaysEqual(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value", [AlwaysEqual(1), object(), [AlwaysEqual(1)], {AlwaysEqual(1): 1}, 1j, (i for i in "a"), 1 << 9000]
)
def test_only_plain_values_have_a_wire_form(value):
    with pytest.raises(wire.WireError):
        wire.encode(value)


@pytest.mark.parametrize(
    "document",
    [1.5, {"float": 1}, {"float": "x"}, {"tuple": 3}, {"dict": [[1]]}, {"dict": [[[], 1]]}, {"set": [[]]}, {"a": 1},
     {}, {"float": "0x1p0", "set": []}, {"tuple": [{"list": []}]}],
)  # fmt: skip
def test_foreign_documents_are_refused(document):
    with pytest.raises(wire.WireError):
        wire.decode(document)


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_parsed_can_be_written_again(opened, closed):
    """The depth of a line is bounded far below the recursion of `json`, and above the deepest line of the worker."""

    def line(depth):
        return b'{"a":' + opened * (depth - 1) + b"1" + closed * (depth - 1) + b"}"

    json.dumps([[[parse_line(line(MAX_NESTING))]]])
    for depth in (MAX_NESTING + 1, 900, 990, 100_000):
        with pytest.raises(ValueError):
            parse_line(line(depth))
    deepest = nest(lambda inner: {1: inner}, wire.MAX_DEPTH)
    assert parse_line(json.dumps({"value": wire.encode(deepest)}).encode())


def test_a_forged_error_is_cut_before_it_is_cleaned():
    """Sixteen lines of a megabyte each would keep the parent busy for seconds. Reference: what the worker sends."""
    assert one_line("/a/b " * 200_000) == one_line(("/a/b " * 200_000)[:500])


@pytest.mark.parametrize(
    ("text", "calls", "check"),
    [
        ("assert sorted(Solution().f(a=[1])) == [1]", ("Solution().f(a=[1])",), "bool(sorted(_0) == [1])"),
        ("assert Solution().f(1) == -1, 'message'", ("Solution().f(1)",), "bool(_0 == -1)"),
        ("assert Solution().f(1) < Solution().g()", ("Solution().f(1)", "Solution().g()"), "bool(_0 < _1)"),
        ("assert all(Solution().f(n) for n in [1])", ("bool(all((Solution().f(n) for n in [1])))",), None),
        ("assert Solution().f(len('a')) == 1", ("bool(Solution().f(len('a')) == 1)",), None),
        ("assert Solution().f(1) is Solution", ("bool(Solution().f(1) is Solution)",), None),
        ("assert 1", (), "bool(1)"),
    ],
)
def test_assertions_are_taken_apart_by_hand(text, calls, check):
    """The submission answers calls with literal arguments; a test that uses Solution otherwise stays whole."""
    assert parse_assertion(text) == Assertion(calls, check)
    with pytest.raises(SyntaxError):
        parse_assertion(text.removeprefix("assert "))


def test_errors_are_one_deterministic_ascii_line():
    text = "ValueError: <object at 0x7f01> in /tmp/probe-1/x.py \ud800\x1b\nsecond line"
    assert one_line(text) == "ValueError: <object at 0x> in <path> \\ud800?"
    assert len(one_line("x" * 999)) == 200


@pytest.mark.parametrize(
    ("completion", "last", "joined"),
    [
        ("no code", None, None),
        ("```python\na = 1\n```", "a = 1", "a = 1"),
        ("draft\n```python\na = 1\n```\nbetter\n```python\na = 2\n```\ndone", "a = 2", "a = 1\n\na = 2"),
        ("```python\na = 1\n```\nlike\n```python\nprint(a)\n```", "print(a)", "a = 1\n\nprint(a)"),
        ("```python\na = 1\n```\n```\n```", "", "a = 1"),
        ("```python\na = 1\n```\nprints\n```\n1 2\n```", "1 2", "a = 1\n\n1 2"),
        ("```python\na = 1\n```\n```python\nb = 2", "b = 2", "a = 1\n\nb = 2"),
        ("```\na = 1\n```", "a = 1", "a = 1"),
        ("```python\n\n  a = 1\n\n```", "\n  a = 1\n", "a = 1"),
        ("```python\na = 1", "a = 1", "a = 1"),
        ("```Python\na = 1\n```", "a = 1", "a = 1"),
        ("```\n```", "", None),
        # Oddities of the benchmark's expression, which `joined` has to share.
        ("```py\na = 1\n```\nprose", "a = 1", "prose"),
        ("```text\n1\n```\nprose\n```python\na = 1\n```", "a = 1", "prose"),
        ("```Python\r\na = 1\r\n```", "a = 1\r", None),
        ("```json\n{}\n```", None, None),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''", "'''"),
        ("inline ```python a``` text", None, None),
    ],
)
def test_which_blocks_are_the_submission(completion, last, joined):
    assert (extract_source(completion, "last"), extract_source(completion, "joined")) == (last, joined)


@pytest.mark.parametrize("rule", CODE_RULES)
@pytest.mark.parametrize("filler", [" ", "`", "a ", "```\n", "```python", "\n```a\n"])
@pytest.mark.parametrize("end", ["`", "` x `"])
def test_a_hostile_fence_takes_linear_time(filler, end, rule):
    """200 000 characters that a backtracking expression would try in every split."""
    start = time.process_time()
    extract_source(f"```{filler * (200_000 // len(filler))}{end}", rule)
    assert time.process_time() - start < 1.0, "extraction backtracks: a completion can stop the grader"
