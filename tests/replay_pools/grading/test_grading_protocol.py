"""The answer protocol under hostile bytes, against a slow, obvious interpreter that reads one line at a time."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay_pools.grading import oracle, wire
from replay_pools.grading.oracle import AnswerStream, matches

NONCE = "0123456789abcdef"
EXPECTED = [1, [1, 2], "a", 0.5]
START = ({"ready": True}, {"compiled": True})
RIGHT = tuple({"i": i, "value": wire.encode(value)} for i, value in enumerate(EXPECTED))
ENDS = ("failed", "broken", "done")  # states in which nothing more counts
MANY = settings(deadline=None, max_examples=120)


class ForgedError(Exception):
    """The worker would not have written this line here."""


def interpret(data, num_answers=len(EXPECTED)):
    """Reference: what `observe` sees after the bytes `data`, one line at a time."""
    state, answers, forged = "start", [], False
    *lines, rest = data.split(b"\n")
    for line in lines:
        if state in ENDS:
            break
        try:
            state = advance(state, strict(line), answers, num_answers)
        except (ForgedError, ValueError, RecursionError):
            forged = True
            break
    else:
        forged |= state not in ENDS and len(rest) > wire.MAX_LINE
    verdicts = [False] * len(EXPECTED)
    for i, (has_value, document) in enumerate(answers):
        verdicts[i] = has_value and not forged and matches(document, EXPECTED[i])
    compiled = state in ("running", "done")
    return {
        "ready": state != "start",
        "compiled": compiled,
        "blames the problem": state == "broken",
        "forged": forged,
        "verdicts": verdicts,
    }


def strict(line):
    """The object in a line: UTF-8, no more than MAX_LINE bytes."""
    if len(line) > wire.MAX_LINE:
        raise ForgedError
    row = json.loads(line.decode("utf-8"))
    if type(row) is not dict or row.get("nonce") != NONCE:
        raise ForgedError
    return row


def advance(state, row, answers, num_answers):
    """The state after one well-formed line; ForgedError when the line has no place there."""

    def need(key, kind):
        if type(row.get(key)) is not kind:
            raise ForgedError
        return row[key]

    if state == "start":
        return "ready" if need("ready", bool) else "start"
    if state == "ready":
        if row.get("compiled") is False:
            need("error", str)
            return "failed"
        if "setup_error" in row:
            need("setup_error", str)
            return "broken"
        need("compiled", bool)
        return "done" if num_answers == 0 else "running"
    if "i" not in row:
        need("error", str)
        return "running"
    index = need("i", int)
    if index < 0 or index > len(answers):
        raise ForgedError
    if index == len(answers):
        if "value" not in row:
            need("error", str)
        answers.append(("value" in row, row.get("value")))
    return "done" if len(answers) == num_answers else "running"


def feed(pieces, num_answers=len(EXPECTED)):
    stream = AnswerStream(nonce=NONCE, num_answers=num_answers)
    for piece in pieces:
        stream.feed(piece)
    return stream


def observe(stream):
    return {
        "ready": stream.ready,
        "compiled": stream.compiled,
        "blames the problem": stream.setup_error is not None,
        "forged": stream.forged,
        "verdicts": stream.right(EXPECTED),
    }


def line_of(row, **change):
    return json.dumps({"nonce": NONCE, **row, **change}).encode() + b"\n"


def cut(data, cuts):
    """`data` in pieces that end at the given places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats(width=32) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
DOCUMENTS = st.sampled_from([row["value"] for row in RIGHT]) | JSON_VALUES
KEYS = st.sampled_from(["nonce", "i", "value", "error", "ready", "compiled", "setup_error", "x"])
ROWS = (
    st.sampled_from([*START, *RIGHT, {"error": "E"}, {"compiled": False, "error": "E"}, {"setup_error": "E"}])
    | st.fixed_dictionaries({"i": st.integers(-1, 5), "value": DOCUMENTS})
    | st.fixed_dictionaries({"i": st.integers(-1, 5), "error": st.text(max_size=3) | JSON_VALUES})
    | st.dictionaries(KEYS, JSON_VALUES, max_size=3)
)
LINES = ROWS.map(line_of) | st.sampled_from(
    [
        *(b"\n", b"[]\n", b"null\n", b"{}\n", b"\xff\xfe\n", b'{"nonce": "%s"\n' % NONCE.encode(), b"\x00\n"),
        *(line_of(RIGHT[0], nonce=nonce) for nonce in (None, "", NONCE.upper(), [NONCE], NONCE + " ")),
        *(line_of(RIGHT[0], i=index) for index in (True, 0.0, "0", None, [0], 10**30, -1)),
        *(line_of(RIGHT[0], value=value) for value in (float("nan"), 1e999, 10**4000, 1.0, True, "1", {"float": "1"})),
        b'{"nonce": "%s", "i": 0, "value": %s}\n' % (NONCE.encode(), b"9" * 5000),
        b'{"nonce": "%s", "i": 0, "value": %s}\n' % (NONCE.encode(), b"[" * 3000 + b"]" * 3000),
        *(line_of(RIGHT[0], value=deep) for deep in ([json.loads("[" * n + "]" * n) for n in (64, 255, 256, 300)])),
        b'{"nonce": "%s", "i": 0, "i": 0, "value": 1}\n' % NONCE.encode(),
        b'{"nonce": "%s", "i": 0, "value": 1, "value": 1}\n' % NONCE.encode(),
        b'{"nonce": "%s", "i": 0, "value": "\\ud800"}\n' % NONCE.encode(),
    ]
)


def flipped(data, place, bits):
    place %= len(data)
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


VALID = b"".join(map(line_of, (*START, *RIGHT)))
STREAMS = (
    st.lists(LINES, max_size=8).map(b"".join)
    | st.lists(LINES, max_size=6).map(lambda lines: b"".join([*map(line_of, START), *lines]))
    | st.lists(st.sampled_from(VALID.splitlines(keepends=True)), max_size=8).map(b"".join)
    | st.builds(flipped, st.just(VALID), st.integers(0, 10**6), st.integers(1, 255))
)
CUTS = st.lists(st.integers(0, 10**6), max_size=6)


def test_the_whole_stream_is_right():
    """The one way to a right verdict, in any cutting, down to single bytes."""
    for pieces in ([VALID], [VALID[i : i + 1] for i in range(len(VALID))]):
        stream = feed(pieces)
        assert stream.complete
        assert observe(stream) == interpret(VALID)
        assert stream.right(EXPECTED) == [True] * len(EXPECTED)


def forged(*rows):
    return b"".join(map(line_of, (*START, *rows)))


# After `compiled` the writer may be the submission: nothing that it writes is a setup error.
@example(forged({"setup_error": "x"}), [])
@example(forged({"compiled": False, "error": "x"}, *({"i": i, "value": 0} for i in range(9)), {"compiled": True}), [])
@example(forged({"ready": True}), [])
@example(forged({"i": -1, "value": 0}), [])
@example(forged({"i": 0, "error": ["x"]}), [])
@example(forged({"error": {"x": 1}}), [])
@MANY
@given(STREAMS, CUTS)
def test_any_lines_in_any_pieces_are_read_as_the_interpreter_reads_them(data, cuts):
    """Also a valid stream whose lines are dropped, repeated or swapped, or in which a bit is flipped."""
    assert observe(feed(cut(data, cuts))) == interpret(data)


@MANY
@given(st.lists(ROWS, max_size=8))
def test_what_is_stored_is_bounded_and_printable(rows):
    """No more answers than inputs; errors are strings of one line; a complete stream changes no more."""
    stream = feed(map(line_of, (*START, *rows)))
    assert len(stream.answers) <= len(EXPECTED)
    for text in (stream.error, stream.setup_error):
        assert text is None or (text.isascii() and text.isprintable() and len(text) <= 200)
    if stream.complete:
        before = repr(stream)
        stream.feed(b"".join(map(line_of, (*START, *RIGHT))) + b"x" * (2 << 20))
        assert repr(stream) == before, "bytes after the last answer still count or are kept"


@pytest.mark.parametrize(("piece", "end"), [(1 << 12, b""), (1 << 22, b"\n")])
def test_a_line_without_end_is_cut_off_at_its_cap(piece, end):
    """However it is cut: forged, and no more is kept than the cap and one piece."""
    data = line_of(START[0]) + line_of(START[1]) + b"x" * (4 << 20) + end
    stream = AnswerStream(nonce=NONCE, num_answers=1)
    for start in range(0, len(data), piece):
        stream.feed(data[start : start + piece])
        assert len(stream._rest) <= wire.MAX_LINE + piece
    assert stream.forged


@pytest.mark.parametrize("piece", [1 << 16, 1 << 30])
def test_a_stream_without_end_is_cut_off_at_its_cap(monkeypatch, piece):
    """Valid duplicates for ever: forged after MAX_STREAM bytes, in one piece as in many; right up to there."""
    monkeypatch.setattr(oracle, "MAX_STREAM", 1 << 17)
    head = b"".join(map(line_of, (*START, RIGHT[0])))
    filler = line_of(RIGHT[0])
    room = ((1 << 17) - len(head) - sum(len(line_of(row)) for row in RIGHT[1:])) // len(filler)
    tail = b"".join(map(line_of, RIGHT[1:]))
    for extra, right in ((0, True), (9, False)):
        data = head + filler * (room + extra) + tail
        stream = feed([data[start : start + piece] for start in range(0, len(data), piece)])
        assert (stream.forged, all(stream.right(EXPECTED))) == (not right, right)


@pytest.mark.parametrize("unit", ["[]", '{"":0}', "[" * 99 + "]" * 99, "1.5e7"])
def test_what_is_parsed_of_any_stream_is_bounded(monkeypatch, unit):
    """Bytes, and lists and objects, that reach the JSON parser: all that the grader's time and memory grow with."""
    parsed = []
    parse = oracle.parse_line
    monkeypatch.setattr(oracle, "parse_line", lambda line: parsed.append(line) or parse(line))
    body = ",".join([unit] * ((wire.MAX_LINE - 200) // (len(unit) + 1)))
    lines = [f'{{"nonce": "{NONCE}", "i": {i}, "value": [{body}]}}' for i in range(9)]
    stream = feed([*map(line_of, START), *(line.encode() + b"\n" for line in lines)], num_answers=9)
    assert stream.forged
    assert sum(map(len, parsed)) <= oracle.MAX_STREAM
    assert sum(line.count(b"[") + line.count(b"{") for line in parsed) <= oracle.MAX_CONTAINERS
