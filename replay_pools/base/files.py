"""Atomic writes and strict JSON: documents, JSON lines, gzipped JSON lines.

    write_json(path, value)       read_json(path)        one indented document
    write_gz(path, data)          read_gz(path)          bytes, gzipped; `encode_jsonl`: one document a line
    write_tensors(path, tensors, header)                 safetensors with a header of plain values; `read_tensors`
    write_atomic(path, data)                             any bytes

Files may come from anyone. `open_file` opens each of them and refuses pipes and devices; the limits below bound how
much is read.

Every write except `append_jsonl` goes to a temporary file in the same folder, is synced and renamed over the target.
gzip uses level 1 and mtime 0, so that the same records give the same bytes.
"""

import gzip
import hashlib
import json
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

import orjson
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from replay_pools.base.errors import InputError

JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
# Bytes of a file, decompressed. Our largest file holds one group or step: 64 completions of 32,768 tokens are about
# 45 MB. gzip compresses up to 1000-fold, so 3 MB could unpack to 3 GB.
MAX_PLAIN = 512 << 20
MAX_DOCUMENT = 64 << 20  # bytes of a JSON document or line, which needs about 20 times that in memory
SEAL = "self_sha256"  # key of the hash that a document holds of itself
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # file names that shells and options leave whole


def write_atomic(path: Path, data: bytes, *, is_lasting: bool = True) -> None:
    """Write `data` to `path` and create its folder. A reader sees the old file or the whole new one.

    Args:
        is_lasting: sync, so that the file survives a power cut; False leaves that to the caller.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename is atomic only within one file system, hence the same folder; readers do not list hidden files.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # Sync before the rename: after a power cut the new name must not point at data that never reached the disk.
            if is_lasting:
                os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp lets only the owner read
        Path(temporary).replace(path)
    except BaseException as error:  # Ctrl-C as well
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:  # a full disk: the write does not name the file
            error.filename = str(path)
        raise
    if is_lasting:
        sync(path.parent)


def write_once(path: Path, data: bytes, fix: str) -> None:
    """Write as `write_atomic`; InputError if a different file has that name."""
    if path.exists() and path.read_bytes() != data:
        raise InputError(path, expected="no file, or the same content", found="a different file", fix=fix)
    write_atomic(path, data)


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        InputError: no such file, or a folder, pipe or device.
    """
    try:
        # Opening a pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise InputError(path, expected="a file", found="no such file") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise InputError(path, expected="a file", found="a folder, a pipe or a device", fix="save it as a file")


def read_plain(path: Path) -> bytes:
    """Return the bytes of a file; InputError as in `open_file`, or for more than MAX_PLAIN bytes."""
    with open_file(path) as file:
        return _read(file, path)


def _read(file: BufferedIOBase, path: Path) -> bytes:
    plain = file.read(MAX_PLAIN + 1)
    if len(plain) > MAX_PLAIN:
        raise InputError(path, expected=f"at most {MAX_PLAIN:,} bytes", found="more", fix="is it the right file?")
    return plain


def file_sha256(path: Path) -> str:
    """Return the hexadecimal sha256 of a file of any size; InputError as in `open_file`."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(directory: Path) -> None:
    """Delete temporary files that a process killed inside `write_atomic` left below `directory`."""
    for leftover in directory.rglob(".*.tmp"):
        leftover.unlink()


def sync(path: Path) -> None:
    """Sync a file, or a directory whose renames must survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dump_json(value: Any) -> bytes:
    """Return strict JSON bytes. NaN and infinity become null.

    Raises:
        InputError: a lone surrogate in a text, or a value that JSON cannot hold.
    """
    try:
        return orjson.dumps(value, option=JSON_OPTIONS)
    except TypeError as error:
        raise InputError("JSON", expected="valid UTF-8 text and plain values", found=str(error)) from error


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document atomically."""
    write_atomic(path, orjson.dumps(value, option=JSON_OPTIONS | orjson.OPT_INDENT_2) + b"\n")


def write_sealed(path: Path, table: Mapping[str, Any]) -> None:
    """Write an object as `write_json`, with the sha256 of its `dump_json` bytes under SEAL."""
    write_json(path, {**table, SEAL: sha256(dump_json(table))})


def read_sealed(path: Path, schema: int | None = None, fix: str = "") -> dict[str, Any]:
    """Read a file of `write_sealed`, without its hash.

    Args:
        schema: the required `schema`; `fix` says what to do about another one.

    Raises:
        InputError: as in `read_json`; no hash, any changed value, or another schema.
    """
    table = read_json(path)
    table = table if isinstance(table, dict) else {}  # no object has no hash
    seal, actual = table.pop(SEAL, None), sha256(dump_json(table))
    if seal != actual:
        changed = "it was changed: copy it again or make it again"
        raise InputError(path, expected=f"its {SEAL} {actual[:16]}", found=str(seal)[:16], fix=changed)
    if schema is not None and table.get("schema") != schema:
        raise InputError(path, expected=f"schema {schema}", found=repr(table.get("schema")), fix=fix)
    return table


def read_json(path: Path) -> Any:
    """Read one strict JSON document.

    Raises:
        InputError: the file is missing, too large, or not JSON.
    """
    return parse_json(read_plain(path), path)


def parse_json(text: bytes, where: object, *, is_python: bool = False) -> Any:
    """Parse one strict JSON document.

    Args:
        text: the document.
        where: names it in errors.
        is_python: take what Python's json writes: a bare NaN or infinity, and integers of any size.

    Raises:
        InputError: not JSON, more than MAX_DOCUMENT bytes, or a number out of range.
    """
    try:
        if len(text) > MAX_DOCUMENT:
            raise ValueError(f"more than {MAX_DOCUMENT:,} bytes in one document or line")
        return json.loads(text) if is_python else orjson.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(where, expected="JSON" if is_python else "strict JSON", found=str(error)) from error


def plain_name(name: str, where: object) -> str:
    """Return the name; InputError if it is not a PLAIN_NAME."""
    if not PLAIN_NAME.fullmatch(name):
        raise InputError(where, expected="letters, digits and . _ -", found=repr(name))
    return name


def by_name(path: Path, named: Path) -> Path:
    """Return `named` if it exists and `path` is a bare name, else `path`."""
    is_bare_name = path == Path(path.name)
    return named if is_bare_name and named.exists() else path


def encode_jsonl(rows: Iterable[Any]) -> bytes:
    """Encode rows as JSON lines: plain values, or dataclasses with their fields in order."""
    return b"".join(dump_json(row) + b"\n" for row in rows)


def append_jsonl(path: Path, row: Any) -> None:
    """Append one line. Not atomic: an interrupted write leaves a damaged last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(dump_json(row) + b"\n")


def write_gz(path: Path, plain: bytes, *, is_lasting: bool = True) -> None:
    """Gzip bytes and write them as `write_atomic`."""
    # mtime=0 keeps the time of writing out of the header.
    write_atomic(path, gzip.compress(plain, compresslevel=1, mtime=0), is_lasting=is_lasting)


def read_gz(path: Path) -> bytes:
    """Return the decompressed bytes of a gzip file.

    Raises:
        InputError: the file is missing, truncated, not gzip, or holds more than MAX_PLAIN bytes.
    """
    try:
        with open_file(path) as stored, gzip.GzipFile(fileobj=stored) as file:
            return _read(file, path)
    # In this order: truncated, no gzip, damaged inside the stream.
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found, fix = str(error) or "damaged data", "write or copy it again"
        raise InputError(path, expected="a complete gzip file", found=found, fix=fix) from error


def decode_jsonl(plain: bytes, where: object) -> list[Any]:
    """Parse strict JSON lines from any source.

    Raises:
        InputError: a line is not JSON; it names `where` and the line, counted from 1.
    """
    return [parse_json(line, f"{where} line {number}") for number, line in enumerate(plain.splitlines(), 1)]


def sha256(data: bytes) -> str:
    """Return the hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def check_sha256(path: Path, found: str, listed: str | None, fix: str) -> None:
    """Raise InputError if a file's sha256, or why it has none, is not what its manifest lists; None = nothing."""
    if found != listed:
        expected = "a file that the manifest lists" if listed is None else f"sha256 {listed} of the manifest"
        raise InputError(path, expected=expected, found=found, fix=fix)


def write_tensors(path: Path, tensors: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Write torch tensors and a header as one safetensors file, atomically; the same values give the same bytes."""
    from safetensors.torch import save  # imports torch, which numpy readers do not need

    # One key: safetensors writes several in an order that differs between calls.
    text = orjson.dumps(dict(header), option=orjson.OPT_SORT_KEYS).decode()
    write_atomic(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"header": text}))


def read_tensors(path: Path, framework: Literal["pt", "np"], *, fix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (tensors by name, header) of a file of `write_tensors`.

    Args:
        path: the file.
        framework: `pt` for torch tensors on the CPU, `np` for numpy arrays.
        fix: the error's advice for a damaged or missing file.

    Raises:
        InputError: the file is missing, damaged, or not of `write_tensors`. A flipped bit in a tensor goes unnoticed.
    """
    copy = methodcaller("clone" if framework == "pt" else "copy")
    try:
        with open_file(path), safe_open(path, framework=framework) as file:
            header = orjson.loads(file.metadata()["header"])
            # A mapped tensor may be unaligned; a copy is aligned like a computed tensor, and matrix products of the
            # two agree to the last bit.
            tensors = {name: copy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, KeyError, TypeError, orjson.JSONDecodeError) as error:
        found = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(path, expected="a tensor file of gradient-probe", found=found, fix=fix) from error
    return tensors, header


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder or file that this process writes: a file beside it, locked by the operating system.

    The lock goes with its process. A file that a killed process left is no lock.

    Raises:
        InputError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Outside the folder, so that a refused or missing folder stays untouched.
    lock = FileLock(path.parent / f".{path.name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        fix = "wait for it, or choose another name"
        raise InputError(path, expected="no other process writing to it", found="one", fix=fix) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for it then makes a new one
        lock.release()
