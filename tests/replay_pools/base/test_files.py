"""Files that are never half-written, JSON that is always strict, and tensors in the same bytes each time."""

import gzip
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"x": 1e999}', "infinity"),
        (b"9" * 400, "infinity"),
        (b"[" * 100_000, "strict JSON"),
        (b"NaN", "strict JSON"),
        (b"", "strict JSON"),
    ],
)
def test_json_of_anybody_is_strict(text: bytes, expected: str, tmp_path: Path) -> None:
    """In a document and in a line, which is named."""
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=expected):
        files.read_json(path)
    if text:
        with pytest.raises(InputError, match=rf"log line 2: .*{expected}"):
            files.decode_jsonl(b'{"x": 1}\n' + text, "log")


def test_the_json_of_python_has_constants() -> None:
    first, *others = files.parse_json(b'[NaN, -1, 1.5e3, {"a": 1}]', "log", is_python=True)
    assert math.isnan(first)
    assert others == [-1, 1.5e3, {"a": 1}]
    for text in (b"", b"[" * 100_000):
        with pytest.raises(InputError, match="log: expected"):
            files.parse_json(text, "log", is_python=True)


def test_only_whole_files_are_opened(tmp_path: Path) -> None:
    """No device, which has no end, no pipe that nobody writes to, no folder; nothing absent, cut, or not gzip."""
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path, Path()):
        for read in (files.read_plain, files.read_json, files.read_gz, files.read_sealed, files.file_sha256):
            with pytest.raises(InputError, match="expected a file, found a folder, a pipe or a device"):
                read(path)
    for name, data in {"cut.gz": gzip.compress(b"x" * 100)[:-9], "plain.gz": b"{}\n"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            files.read_gz(tmp_path / name)
    for read in (files.read_gz, files.read_json):
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "absent.gz")


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit a file is read, one byte above it is refused; no more than that is ever decompressed."""
    monkeypatch.setattr(files, "MAX_PLAIN", 1000)
    path, plain = tmp_path / "bomb.gz", b"x" * 600 + b"y" * 400
    path.write_bytes(gzip.compress(plain[:600]) + gzip.compress(plain[600:]) + b"\0\0")
    assert files.read_gz(path) == plain
    for data in (gzip.compress(b"x" * 1001), gzip.compress(b"\0" * 10**7), gzip.compress(b"x" * 600) * 2):
        path.write_bytes(data)
        with pytest.raises(InputError, match="at most 1,000 bytes, found more"):
            files.read_gz(path)


TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1.5], dtype=torch.bfloat16), "c": torch.empty(0, 4)}
HEADER = {"k": 4, "modules": ["q", "p"]}


def test_tensors_are_read_as_written_in_the_same_bytes_as_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    files.write_tensors(path, TENSORS, HEADER)
    tensors, header = files.read_tensors(path, "pt", fix="")
    assert header == HEADER
    for found in (tensors, load_file(path)):
        assert found.keys() == TENSORS.keys()
        assert all(
            torch.equal(found[name], TENSORS[name]) and found[name].dtype == TENSORS[name].dtype for name in found
        )
    for _ in range(8):
        assert (path.read_bytes(), files.write_tensors(path, TENSORS, HEADER))[0] == path.read_bytes()


def test_damaged_and_foreign_tensors_are_one_error(tmp_path: Path) -> None:
    """Empty, half a header, cut, a huge header, a list as header; a file of another library."""
    path = tmp_path / "t.safetensors"
    files.write_tensors(path, TENSORS, HEADER)
    data = path.read_bytes()
    huge, listed = (2**60).to_bytes(8, "little") + data[8:], (4).to_bytes(8, "little") + b"[{}]" + data
    save_file(TENSORS, path, {"format": "pt"})
    for damaged in (path.read_bytes(), b"", data[:40], data[:-1], huge, listed):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"t\.safetensors: expected a tensor file of gradient-probe.*; do this"):
            files.read_tensors(path, "np", fix="do this")
