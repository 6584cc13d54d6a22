"""The answer protocol under hostile bytes: what each line does at its place, and that no cutting changes it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.grading import oracle, wire
from replay_pools.grading.oracle import AnswerStream

NONCE = "0123456789abcdef"
EXPECTED = [1, [1, 2], "a", 0.5]
START = ({"ready": True}, {"compiled": True})
RIGHT = tuple({"i": i, "value": wire.encode(value)} for i, value in enumerate(EXPECTED))
MANY = settings(deadline=None, max_examples=120)


def line_of(row, **change):
    return json.dumps({"nonce": NONCE, **row, **change}).encode() + b"\n"


def feed(pieces, num_answers=len(EXPECTED)):
    stream = AnswerStream(nonce=NONCE, num_answers=num_answers)
    for piece in pieces:
        stream.feed(piece)
    return stream


def observe(stream):
    """(ready, compiled, blames the problem, forged, verdicts)."""
    return stream.ready, stream.compiled, stream.setup_error is not None, stream.forged, stream.right(EXPECTED)


VALID = b"".join(map(line_of, (*START, *RIGHT)))
NO, ALL = [False] * 4, [True] * 4
FORGED = (True, True, False, True, NO)  # after `compiled`, whatever was right before


def started(*rows):
    return b"".join(map(line_of, (*START, *rows)))


def raw(value):
    """The right stream, but for the text of its first value."""
    first = b'{"nonce": "%s", "i": 0, "value": %s}\n' % (NONCE.encode(), value)
    return b"".join(map(line_of, START)) + first + b"".join(map(line_of, RIGHT[1:]))


# {what: (bytes, what is observed)}
CASES = {
    "nothing": (b"", (False, False, False, False, NO)),
    "all answers": (VALID, (True, True, False, False, ALL)),
    "bytes after the last answer": (VALID + b"x" * (2 << 20), (True, True, False, False, ALL)),
    "a part of a line": (VALID[:-9], (True, True, False, False, [*ALL[:3], False])),
    "not ready": (line_of({"ready": False}), (False, False, False, False, NO)),
    "ready is 1": (line_of({"ready": 1}), (False, False, False, True, NO)),
    "compiled before ready": (line_of({"compiled": True}), (False, False, False, True, NO)),
    "no source": (started()[:0] + line_of(START[0]) + line_of({"compiled": False, "error": "E"}),
                  (True, False, False, False, NO)),
    "no source, no error": (line_of(START[0]) + line_of({"compiled": False}), (True, False, False, True, NO)),
    "a broken problem": (line_of(START[0]) + line_of({"setup_error": "E"}), (True, False, True, False, NO)),
    "an answer before compiled": (line_of(START[0]) + line_of(RIGHT[0]), (True, False, False, True, NO)),
    "an error before the answers": (started({"error": "E"}, *RIGHT), (True, True, False, False, ALL)),
    "an input that raised": (started(RIGHT[0], {"i": 1, "error": "E"}, *RIGHT[2:]),
                             (True, True, False, False, [True, False, True, True])),
    "the first answer counts": (started({"i": 0, "value": 7}, *RIGHT), (True, True, False, False, [False, *ALL[1:]])),
    "a repeated answer changes nothing": (started(RIGHT[0], {"i": 0, "value": 7}, *RIGHT[1:]),
                                          (True, True, False, False, ALL)),
    # After `compiled` the writer may be the submission: nothing that it writes is a setup error.
    "a setup error after compiled": (started({"setup_error": "x"}, *RIGHT), FORGED),
    "compiled again": (started(*RIGHT[:3], {"compiled": False, "error": "x"}, {"compiled": True}, RIGHT[3]), FORGED),
    "ready again": (started(*RIGHT[:3], {"ready": True}, RIGHT[3]), FORGED),
    "an index before its turn": (started(RIGHT[0], *RIGHT[2:], RIGHT[1]), FORGED),
    **{f"index {index}": (started(*RIGHT[:3], RIGHT[3] | {"i": index}), FORGED)
       for index in (True, 3.0, "3", None, [3], 10**30, -1)},
    **{f"nonce {nonce}": (started(*RIGHT[:3]) + line_of(RIGHT[3], nonce=nonce), FORGED)
       for nonce in (None, "", NONCE.upper(), [NONCE], NONCE + " ")},
    "no nonce": (started(*RIGHT[:3]) + b'{"i": 3, "value": 0.5}\n', FORGED),
    "an error that is no text": (started(*RIGHT[:3], {"i": 3, "error": ["x"]}), FORGED),
    "an object as error": (started(*RIGHT[:3], {"error": {"x": 1}}), FORGED),
    **{f"line {line}": (started(*RIGHT[:3]) + line, FORGED)
       for line in (b"\n", b"[]\n", b"null\n", b"\xff\xfe\n", b'{"nonce": "0123\n', b"\x00\n")},
    "a nested value": (raw(b"[" * 64 + b"]" * 64), (True, True, False, False, [False, *ALL[1:]])),
    "5000 digits": (raw(b"9" * 5000), FORGED),
    "3000 levels": (raw(b"[" * 3000 + b"]" * 3000), FORGED),
    "a surrogate": (raw(b'"\\ud800"'), (True, True, False, False, [False, *ALL[1:]])),
    **{f"value {value}": (raw(json.dumps(value).encode()), (True, True, False, False, [False, *ALL[1:]]))
       for value in (float("nan"), 1e999, "1", {"float": "1"}, None)},
    **{f"value {value}": (raw(json.dumps(value).encode()), (True, True, False, False, ALL)) for value in (1.0, True)},
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_each_line_at_its_place(what):
    """As one piece and byte by byte."""
    data, expected = CASES[what]
    assert observe(feed([data])) == expected
    assert observe(feed(data[i : i + 1] for i in range(min(len(data), 20_000)))) == expected


def flipped(data, place, bits):
    place %= len(data)
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


def cut(data, cuts):
    """`data` in pieces that end at the given places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


ROWS = st.dictionaries(
    st.sampled_from(["nonce", "i", "value", "error", "ready", "compiled", "setup_error"]),
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.text(max_size=3) | st.just([1, 2]),
    max_size=3,
) | st.sampled_from([*START, *RIGHT, {"error": "E"}, {"setup_error": "E"}])
STREAMS = st.lists(ROWS, max_size=9).map(lambda rows: started(*rows)) | st.builds(
    flipped, st.just(VALID), st.integers(0, 10**6), st.integers(1, 255)
)


@MANY
@given(STREAMS, st.lists(st.integers(0, 10**6), max_size=6))
def test_any_stream_is_read_alike_in_any_pieces(data, cuts):
    """No more answers than inputs; errors are strings of one line; all right only without a forged line."""
    stream = feed(cut(data, cuts))
    assert observe(stream) == observe(feed([data]))
    assert len(stream.answers) <= len(EXPECTED)
    for text in (stream.error, stream.setup_error):
        assert text is None or (text.isascii() and text.isprintable() and len(text) <= 200)
    assert not stream.forged or stream.right(EXPECTED) == NO


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
