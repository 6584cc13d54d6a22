"""The trusted side of the grader: extraction, wire form, comparator, answer pipe. No process is started here."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.environments.exploits import fence
from replay_pools.grading import wire
from replay_pools.grading.assertions import Assertion, parse_assertion
from replay_pools.grading.extract import extract_source
from replay_pools.grading.oracle import TOLERANCE, AnswerStream, matches, one_line, parse_line

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


EXACT = st.recursive(SCALARS, collections, max_leaves=8)  # no floats: equality is exact
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


@settings(deadline=None)
@given(VALUES)
def test_matches_is_reflexive(value):
    assert matches(through_the_pipe(value), value), "a right answer is graded wrong"


@settings(deadline=None)
@given(VALUES, VALUES)
def test_matches_is_symmetric(a, b):
    assert matches(a, b) == matches(b, a)


@settings(deadline=None, max_examples=200)
@given(EXACT, EXACT)
def test_matches_without_floats_is_exact_equality(a, b):
    """Reference: `exact_form`, an equivalence relation; so matches is one on values without floats."""
    assert matches(a, b) == (exact_form(a) == exact_form(b)), "types are confused, or order matters where it should not"


FEW = st.recursive(  # so few values that three of them are often equal
    st.sampled_from([0, 1, False, True, None, "", "a", b""]),
    lambda inner: st.lists(inner, max_size=1) | st.lists(inner, max_size=1).map(tuple) | st.sets(KEYS, max_size=1),
    max_leaves=2,
)


@settings(deadline=None, max_examples=300)
@given(FEW, FEW, FEW)
def test_matches_without_floats_is_transitive(a, b, c):
    assert matches(a, c) or not (matches(a, b) and matches(b, c))


def retyped(value):
    """Values that look like `value` and have another type."""
    others = {
        bool: [int, str],
        int: [lambda v: bool(v) if v in (0, 1) else str(v), str, lambda v: (v,)],
        str: [lambda v: v.encode(errors="surrogatepass"), list, lambda v: [v]],
        list: [tuple, str, lambda v: {"list": v}],
        tuple: [list, str],
        set: [frozenset, list],
        frozenset: [set, tuple],
        dict: [lambda v: list(v.items()), list, str],
        type(None): [bool, str, lambda v: [v], lambda v: 0],
    }
    return [other(value) for other in others[type(value)]]


@settings(deadline=None)
@given(EXACT, st.sampled_from([lambda v: v, lambda v: [v], lambda v: (0, v), lambda v: {"k": v}]))
def test_matches_respects_types_at_every_depth(value, wrap):
    for other in retyped(value):
        assert not matches(wrap(other), wrap(value)), f"{wrap(other)!r} passes for {wrap(value)!r}"


@settings(deadline=None)
@given(
    st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6),
    st.sampled_from([(0.0, True), (0.999, True), (1.001, False), (2.0, False)]),
    st.sampled_from([1, -1]),
)
def test_the_tolerance_at_its_edges(a, edge, sign):
    """|a - b| <= 1e-9 max(|a|, |b|, 1): b is put a thousandth of it inside and outside, on both sides."""
    share, within = edge
    b = a + sign * share * TOLERANCE * max(abs(a), 1)
    assert matches(a, float(b)) == matches(float(b), a) == within


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (True, 1), (1, True), (False, 0), (0.0, False), (1.0, True), ((1, 2), [1, 2]), ([1, 2], (1, 2)), ([1], [True]),
        ({1: 2}, {True: 2}), ({1}, {True}), ({1}, frozenset({1})), ("1", 1), (b"a", "a"), (None, 0), (None, False),
        (math.nan, 1.0), (math.inf, 1e308), (-math.inf, math.inf), (10**400, 1.0), (10**17 + 1, 10**17), (2, 2.001),
        ([], None), ([1, 2], [1]), ({}, []), ({"a": 1}, {"a": 1, "b": 2}), (1e-8, 0.0),
    ],
)  # fmt: skip
def test_never_equal(actual, expected):
    assert not matches(actual, expected), f"{actual!r} passes for {expected!r}"


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(2, 2.0), (2.0, 2), (0.1 + 0.2, 0.3), (math.nan, math.nan), (math.inf, math.inf), (-0.0, 0),
     (1e300, 1e300 * (1 + 1e-12)), ({"b": [1.0], "a": 2}, {"a": 2, "b": [1]})],
)  # fmt: skip
def test_numbers_match_within_the_stated_tolerance(actual, expected):
    assert matches(actual, expected)


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


def test_a_cycle_has_no_wire_form():
    cycle = []
    cycle.append(cycle)
    with pytest.raises(wire.WireError, match="deeper"):
        wire.encode(cycle)


@pytest.mark.parametrize(
    "document",
    [1.5, {"float": 1}, {"float": "x"}, {"tuple": 3}, {"dict": [[1]]}, {"dict": [[[], 1]]}, {"set": [[]]}, {"a": 1},
     {}, {"float": "0x1p0", "set": []}, {"tuple": [{"list": []}]}],
)  # fmt: skip
def test_foreign_documents_are_refused(document):
    with pytest.raises(wire.WireError):
        wire.decode(document)


def stream(*lines, num_answers=2):
    """A stream fed with `lines`: dictionaries get the nonce, bytes go in as they are."""
    result = AnswerStream(nonce="n", num_answers=num_answers)
    for line in lines:
        result.feed(line if isinstance(line, bytes) else json.dumps({"nonce": "n", **line}).encode() + b"\n")
    return result


START = ({"ready": True}, {"compiled": True})


def test_answers_in_order_complete_the_stream():
    result = stream(*START, {"i": 0, "value": 1}, {"i": 1, "error": "KeyError: 'x'"})
    assert (result.complete, result.right([1, None]), result.error) == (True, [True, False], "KeyError: 'x'")


def test_the_first_answer_of_an_index_wins():
    result = stream(*START, {"i": 0, "value": 1}, {"i": 0, "value": 2}, {"i": 1, "value": 3})
    assert result.right([1, 3]) == [True, True]
    assert result.right([2, 3]) == [False, True], "a later answer replaced the first"


@pytest.mark.parametrize(
    "line",
    [
        b'{"i":0,"value":1}\n',
        b'{"nonce":"m","i":0,"value":1}\n',
        b'{"nonce":"n","i":1,"value":1}\n',
        b'{"nonce":"n","i":true,"value":1}\n',
        b'{"nonce":"n","i":0,"i":0,"value":1}\n',
        b'{"nonce":"n","i":0,"value":NaN}\n',
        b'{"nonce":"n","i":0,"value":"\xff"}\n',
        b'{"nonce":"n","i":0}\n',
        b"[1]\n",
        b"\n",
        b"[" * 100_000 + b"\n",
        b'{"nonce":"n","i":0,"value":' + b"9" * 5000 + b"}\n",
        b"x" * (wire.MAX_LINE + 1),
    ],
    ids=lambda line: repr(line[:32]),
)
def test_a_line_that_the_worker_would_not_write_voids_the_stream(line):
    result = stream(*START, line, {"i": 0, "value": 1}, {"i": 1, "value": 2})
    assert result.forged
    assert result.right([1, 2]) == [False, False]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b'{"nonce":"n",', b'"i":0}\n'])))
def test_no_bytes_raise(chunks):
    result = AnswerStream(nonce="n", num_answers=1)
    for chunk in chunks:
        result.feed(chunk)
    assert result.right([1]) == [False]


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_chunking_does_not_matter(cuts):
    """Any split of the bytes gives the state that one read gives."""
    rows = [*START, {"i": 0, "value": "a\u2028b"}, {"i": 1, "value": [1]}]
    data = "".join(json.dumps({"nonce": "n", **row}, ensure_ascii=False) + "\n" for row in rows).encode()
    result = AnswerStream(nonce="n", num_answers=2)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in zip(edges, edges[1:], strict=False):
        result.feed(data[start:end])
    assert (result.complete, result.right(["a\u2028b", [1]])) == (True, [True, True])


def test_parse_line_is_strict():
    assert parse_line(b'{"a": [1, "b"]}') == {"a": [1, "b"]}


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
    ("completion", "source"),
    [
        ("no code", None),
        ("```python\na = 1\n```", "a = 1"),
        ("draft\n```python\na = 1\n```\nbetter\n```py\na = 2\n```\ndone", "a = 2"),
        ("```python\na = 1\n```\nprints\n```text\n1\n```", "a = 1"),
        ("```\na = 1\n```", "a = 1"),
        ("```Python\r\na = 1\r\n```", "a = 1\r"),
        ("```python\na = 1", "a = 1"),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''"),
        ("```json\n{}\n```", None),
        ("inline ```python a``` text", None),
    ],
)
def test_the_last_python_block_is_the_submission(completion, source):
    assert extract_source(completion) == source


@settings(deadline=None)
@given(st.text().filter(lambda text: "```" not in text))
def test_extraction_inverts_fencing(source):
    assert extract_source(f"Some words.\n{fence(source)}\nMore words.") == source


@pytest.mark.parametrize("filler", [" ", "a", "`", "a ", "\t`"])
@pytest.mark.parametrize("end", ["`", "\f", "` x `"])
def test_a_hostile_fence_takes_linear_time(filler, end):
    """200 000 characters that a backtracking expression would try in every split."""
    start = time.process_time()
    extract_source(f"```{filler * (200_000 // len(filler))}{end}")
    assert time.process_time() - start < 1.0, "extraction backtracks: a completion can stop the grader"
