"""Files that are never half-written, and JSON that is always strict."""

import gzip
import json
import math
import os
from pathlib import Path

import pytest

from replay_pools.base import files
from replay_pools.base.errors import InputError


def test_jsonl_gz_round_trip(tmp_path: Path) -> None:
    """read(write(rows)) == rows, one document a line for any other reader of gzip."""
    path, rows = tmp_path / "rows.jsonl.gz", [{"a\n": [1, None, True, 2.5, -(2**53), "\u2028\x00"]}, [], "", {}]
    files.write_gz(path, files.encode_jsonl(rows))
    plain = gzip.decompress(path.read_bytes())
    assert files.decode_jsonl(files.read_gz(path), path) == rows
    assert [json.loads(line) for line in plain.decode().split("\n")[:-1]] == rows, "one document a line"


def test_nan_is_written_as_null_and_a_lone_surrogate_is_refused() -> None:
    assert files.dump_json([math.nan, math.inf, 1.0]) == b"[null,null,1.0]"
    with pytest.raises(InputError, match="UTF-8"):
        files.dump_json({"text": "\ud800"})


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails before the rename changes nothing."""
    path = tmp_path / "a.json"
    files.write_atomic(path, b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"], "the temporary file was left behind"


def test_damaged_files_are_input_errors(tmp_path: Path) -> None:
    """Missing, truncated, not gzip, not JSON: one InputError each, with the place."""
    for name, data in {"cut.gz": gzip.compress(b"x" * 100)[:-9], "plain.gz": b"{}\n"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            files.read_gz(tmp_path / name)
    for read in (files.read_gz, files.read_json):
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "absent.gz")
    with pytest.raises(InputError, match="here line 2"):
        files.decode_jsonl(b"{}\nNaN\n", "here")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a": 1,\n "b": {"a": 2},\n "a": 3}', "the key 'a' twice"),
        (b'{"x": 1e999}', "infinity"),
        (b"9" * 400, "infinity"),
        (b"[" * 100_000, "strict JSON"),
        (b"NaN", "strict JSON"),
        (b"", "strict JSON"),
    ],
)
def test_json_of_anybody_is_strict(text: bytes, expected: str, tmp_path: Path) -> None:
    """In a document and in a line, which is named; what Python's json has written is taken, but for its limits."""
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=expected):
        files.read_json(path)
    if b"\n" not in text and text:
        with pytest.raises(InputError, match=rf"log line 2: .*{expected}"):
            files.decode_jsonl(b'{"x": 1}\n' + text, "log")
    if text not in (b"NaN", b"9" * 400) and b"e999" not in text:
        with pytest.raises(InputError, match="log: expected"):
            files.parse_json(text, "log", is_python=True)


def test_the_json_of_python_has_constants() -> None:
    first, *others = files.parse_json(b'[NaN, -1, 1.5e3, {"a": 1}]', "log", is_python=True)
    assert math.isnan(first)
    assert others == [-1, 1.5e3, {"a": 1}]
    assert files.parse_json(b'{"a": [1, 2.5, {"a": null}]}', "log") == {"a": [1, 2.5, {"a": None}]}


def test_only_files_are_opened(tmp_path: Path) -> None:
    """No device, which has no end, no pipe that nobody writes to, no folder, no name with a null byte."""
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path, Path()):
        for read in (files.read_plain, files.read_json, files.read_gz, files.read_sealed, files.file_sha256):
            with pytest.raises(InputError, match="expected a file, found a folder, a pipe or a device"):
                read(path)
    with pytest.raises(InputError, match=r"'a\\x00b': expected a file, found .*null"):
        files.read_plain(Path("a\0b"))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit a file is read, one byte above it is refused; no more than that is ever decompressed."""
    monkeypatch.setattr(files, "MAX_PLAIN", 1000)
    path = tmp_path / "bomb.gz"
    for plain in (b"x" * 1000, b"x" * 600 + b"y" * 400):
        path.write_bytes(gzip.compress(plain[:600]) + gzip.compress(plain[600:]) + b"\0\0")
        assert files.read_gz(path) == plain
    for data in (gzip.compress(b"x" * 1001), gzip.compress(b"\0" * 10**7), gzip.compress(b"x" * 600) * 2):
        path.write_bytes(data)
        with pytest.raises(InputError, match="at most 1,000 bytes, found more"):
            files.read_gz(path)
