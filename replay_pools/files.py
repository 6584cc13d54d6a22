"""Atomic writes and strict JSON: documents, JSON lines, gzipped JSON lines.

    write_json(path, value)       read_json(path)        one indented document
    write_jsonl_gz(path, rows)    read_jsonl_gz(path)    one document a line, gzipped
    write_atomic(path, data)                             any bytes

Every write but `append_jsonl` goes to a temporary name in the same folder, is synced, and is renamed over the target.
gzip is level 1 with mtime 0, so that the same records give the same bytes.
"""

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from replay_pools.errors import InputError

JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`; its folder is made. A reader sees the old file or the whole new one, nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic only within one file system; hidden, so that no reader lists it.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # Before the rename: after a power cut the new name must not point at data that never reached the disk.
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp makes a file that only its owner can read
        Path(temporary).replace(path)
    except BaseException:  # Ctrl-C as well
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files below `directory` that a process killed inside `write_atomic` has left."""
    for leftover in directory.rglob(".*.tmp"):
        leftover.unlink()


def sync_directory(path: Path) -> None:
    """Sync a directory, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dump_json(value: Any) -> bytes:
    """Strict JSON bytes. NaN and infinity become null.

    Raises:
        InputError: a lone surrogate in a text, or a value that JSON has no form for.
    """
    try:
        return orjson.dumps(value, option=JSON_OPTIONS)
    except TypeError as error:
        raise InputError("JSON", expected="valid UTF-8 text and plain values", found=str(error)) from error


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document atomically."""
    write_atomic(path, orjson.dumps(value, option=JSON_OPTIONS | orjson.OPT_INDENT_2) + b"\n")


def read_json(path: Path) -> Any:
    """Read one strict JSON document.

    Raises:
        InputError: the file is missing or not JSON.
    """
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(path, expected="a JSON file", found="no such file") from error
    except orjson.JSONDecodeError as error:
        raise InputError(path, expected="strict JSON", found=str(error)) from error


def by_name(path: Path, named: Path) -> Path:
    """`named` where `path` is a bare name that is no path here and `named` exists; else `path`.

    >>> by_name(Path("demo"), Path("out/runs/demo"))  # doctest: +SKIP
    PosixPath('out/runs/demo')
    """
    is_bare_name = path == Path(path.name)
    return named if is_bare_name and not path.exists() and named.exists() else path


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: leaf} of nested objects and lists; an empty object or list has no leaf.

    >>> flatten({"a": {"b": 1}, "c": [2, 3]})
    {'a.b': 1, 'c.0': 2, 'c.1': 3}
    """
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return {name: value}
    leaves: dict[str, Any] = {}
    for key, part in parts:
        leaves |= flatten(part, f"{name}.{key}".strip("."))
    return leaves


def first_difference(stored: Any, wanted: Any) -> tuple[str, Any, Any] | None:
    """(dotted name, stored leaf, wanted leaf) of the first leaf, by name, that differs; None where none does.

    A leaf that one side lacks counts as None there.
    """
    stored_leaves = flatten(stored)
    wanted_leaves = flatten(orjson.loads(dump_json(wanted)))  # as it would be stored: tuples as lists, NaN as null
    for name in sorted(stored_leaves.keys() | wanted_leaves.keys()):
        if stored_leaves.get(name) != wanted_leaves.get(name):
            return name, stored_leaves.get(name), wanted_leaves.get(name)
    return None


def encode_jsonl(rows: Iterable[Any]) -> bytes:
    """The bytes of JSON lines: one document a line, of plain values or of dataclasses, whose fields stay in order."""
    return b"".join(dump_json(row) + b"\n" for row in rows)


def append_jsonl(path: Path, row: Any) -> None:
    """Add one line to a log. Not atomic: a write that is cut short leaves a damaged last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(dump_json(row) + b"\n")


def write_jsonl_gz(path: Path, rows: Iterable[Any]) -> str:
    """Write gzipped JSON lines atomically; returns the sha256 of the DEcompressed bytes.

    That hash stays the same when another tool compresses the file again.
    """
    plain = encode_jsonl(rows)
    # Without mtime=0 the header would carry the time of writing.
    write_atomic(path, gzip.compress(plain, compresslevel=1, mtime=0))
    return sha256(plain)


def read_gz(path: Path) -> bytes:
    """The decompressed bytes of a gzip file.

    Raises:
        InputError: the file is missing, truncated or not gzip.
    """
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(path, expected="a gzip file", found="no such file") from error
    # In this order: a truncated file, one that is not gzip (a kind of OSError), damage inside the stream.
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            path, expected="a complete gzip file", found=str(error) or "damaged data", fix="write or copy it again"
        ) from error


def read_jsonl_gz(path: Path) -> list[Any]:
    """All JSON documents of a gzipped file, one a line; errors as of `read_gz` and `decode_jsonl`."""
    return decode_jsonl(read_gz(path), path)


def decode_jsonl(plain: bytes, where: object) -> list[Any]:
    """The documents of strict JSON lines.

    Raises:
        InputError: a line is not JSON; it names `where` and the line, counted from 1.
    """
    rows = []
    for number, line in enumerate(plain.splitlines(), 1):
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InputError(f"{where} line {number}", expected="strict JSON", found=str(error)) from error
    return rows


def sha256(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()
