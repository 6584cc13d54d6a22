"""Files that are never half-written, and JSON that is always strict.

Every write goes to a temporary name in the same folder, is synced, and is renamed over the target. gzip is level 1
with mtime 0, so that the same records give the same bytes.
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
    """Write `data` to `path` so that a reader sees the old file, or the whole new one, and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_leftovers(directory: Path) -> None:
    """Delete what a writer that was killed inside `write_atomic` left anywhere below `directory`."""
    for leftover in directory.rglob(".*.tmp"):
        leftover.unlink()


def sync_directory(path: Path) -> None:
    """Make a rename in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dump_json(value: Any) -> bytes:
    """Strict JSON bytes (NaN and infinity become null; a lone surrogate is refused)."""
    try:
        return orjson.dumps(value, option=JSON_OPTIONS)
    except TypeError as error:
        raise InputError("JSON", expected="valid UTF-8 text and plain values", found=str(error)) from error


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document atomically."""
    write_atomic(path, orjson.dumps(value, option=JSON_OPTIONS | orjson.OPT_INDENT_2) + b"\n")


def read_json(path: Path) -> Any:
    """Read one strict JSON document; InputError when it is missing or not JSON."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(path, expected="a JSON file", found="no such file") from error
    except orjson.JSONDecodeError as error:
        raise InputError(path, expected="strict JSON", found=str(error)) from error


def by_name(path: Path, named: Path) -> Path:
    """`named`, where `path` is no path that is there but the bare name of `named`, which is; else `path`."""
    return named if path == Path(path.name) and not path.exists() and named.exists() else path


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: leaf} of nested objects and lists."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        return {name: value}
    return {k: leaf for key, part in parts for k, leaf in flatten(part, f"{name}.{key}".strip(".")).items()}


def first_difference(stored: Any, wanted: Any) -> tuple[str, Any, Any] | None:
    """(dotted name, stored leaf, wanted leaf) of the first leaf, by name, that differs; None where none does."""
    there, here = flatten(stored), flatten(orjson.loads(dump_json(wanted)))  # as it would be stored
    different = sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
    return (different[0], there.get(different[0]), here.get(different[0])) if different else None


def encode_jsonl(rows: Iterable[Any]) -> bytes:
    """One JSON document a line."""
    return b"".join(dump_json(row) + b"\n" for row in rows)


def append_jsonl(path: Path, row: Any) -> None:
    """Add one line to a log that grows while something runs; a write that is cut short damages its last line only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(dump_json(row) + b"\n")


def write_jsonl_gz(path: Path, rows: Iterable[Any]) -> str:
    """Write gzipped JSON lines atomically; returns the sha256 of the DEcompressed bytes."""
    plain = encode_jsonl(rows)
    write_atomic(path, gzip.compress(plain, compresslevel=1, mtime=0))
    return sha256(plain)


def read_gz(path: Path) -> bytes:
    """The decompressed bytes; InputError when the file is missing, truncated or not gzip."""
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(path, expected="a gzip file", found="no such file") from error
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            path, expected="a complete gzip file", found=str(error) or "damaged data", fix="write or copy it again"
        ) from error


def read_jsonl_gz(path: Path) -> list[Any]:
    """All JSON documents of a gzipped file, strict; the line number is in the error."""
    return decode_jsonl(read_gz(path), path)


def decode_jsonl(plain: bytes, where: object) -> list[Any]:
    """Strict JSON lines; InputError names `where` and the line."""
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
