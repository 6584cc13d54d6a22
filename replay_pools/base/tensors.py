"""Checked tensor files: safetensors with a sha256 of their content in the metadata.

    write_tensors(path, tensors, header)     read_tensors(path, "pt")     files of this project; "np" needs no torch
    seal(path)                               check_tensors(path)          files of other libraries

safetensors itself notices a truncated file, but no flipped bit. The sha256 (`SEAL`) covers the header, with names,
dtypes and shapes, and the bytes of the tensors.
"""

import hashlib
import io
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
from safetensors import SafetensorError, safe_open

from replay_pools.base.errors import InputError
from replay_pools.base.files import open_file, write_atomic

SEAL = "sha256"  # key in the metadata
MAX_HEADER = 100_000_000  # bytes, the format's limit
CHUNK = 1 << 20
METADATA = "__metadata__"  # key of the metadata in a safetensors header


def write_tensors(path: Path, tensors: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Write torch tensors and a header of plain values as one sealed safetensors file, atomically."""
    from safetensors.torch import save  # imports torch, which numpy readers do not need

    text = orjson.dumps(dict(header), option=orjson.OPT_SORT_KEYS).decode()
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"header": text})
    write_atomic(path, _sealed(data, path))


def read_tensors(path: Path, framework: Literal["pt", "np"], *, fix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (tensors by name, header) of a file of `write_tensors`.

    Args:
        path: the file.
        framework: `pt` for torch tensors on the CPU, `np` for numpy arrays.
        fix: the error's advice for a damaged or missing file.

    Raises:
        InputError: the file is missing, damaged, or not of `write_tensors`.
    """
    if not check_tensors(path, fix=fix):
        raise InputError(path, expected=f"a tensor file with its {SEAL}", found="none", fix=fix)
    try:
        with safe_open(path, framework=framework) as file:
            header = orjson.loads(file.metadata()["header"])
            copy = methodcaller("clone" if framework == "pt" else "copy")
            # A mapped tensor may be unaligned; a copy is aligned like a computed tensor, and matrix products of the
            # two agree to the last bit.
            tensors = {name: copy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, KeyError, orjson.JSONDecodeError) as error:
        raise InputError(path, expected="a tensor file of gradient-probe", found=_first_line(error), fix=fix) from error
    return tensors, header


def check_tensors(path: Path, *, fix: str = "copy it again from its source") -> bool:
    """Check that a safetensors file is complete and matches its seal, if it has one.

    Returns:
        True if it has a seal. Without one, a flipped bit goes unnoticed.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        with open_file(path) as file:
            header, expected = _read_header(file, path.stat().st_size)
            actual = None if expected is None else _digest(header, file)
        with safe_open(path, framework="np"):  # checks the header's offsets
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(path, expected="a safetensors file", found=_first_line(error), fix=fix) from error
    if actual != expected:
        raise InputError(path, expected=f"its {SEAL} {expected}", found=f"{actual}: damaged", fix=fix)
    return expected is not None


def seal(path: Path) -> None:
    """Seal a safetensors file atomically; InputError if it is damaged."""
    write_atomic(path, _sealed(path.read_bytes(), path))


def _sealed(data: bytes, path: Path) -> bytes:
    """Return the bytes of a safetensors file with a seal in the metadata."""
    file = io.BytesIO(data)
    try:
        header, _ = _read_header(file, len(data))
    except ValueError as error:
        raise InputError(path, expected="a safetensors file", found=str(error)) from error
    start = file.tell()
    header[METADATA] = {**header.get(METADATA, {}), SEAL: _digest(header, file)}
    # Sorted keys, so that the same tensors give the same bytes.
    plain = orjson.dumps(header, option=orjson.OPT_SORT_KEYS)
    plain += b" " * (-len(plain) % 8)  # the tensors start at a multiple of 8 bytes
    return b"".join((len(plain).to_bytes(8, "little"), plain, memoryview(data)[start:]))  # a view, no second copy


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], str | None]:
    """Read (header without the seal, the seal), up to the first tensor; ValueError for no such header."""
    length = int.from_bytes(file.read(8), "little")
    # Checked before reading: a stated length of 2^60 would allocate that much memory.
    if length > min(MAX_HEADER, size - 8):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = orjson.loads(file.read(length))
    # A file without metadata gets an empty table, so that its seal is the same before and after sealing.
    metadata = header.setdefault(METADATA, {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("a header that does not list tensors")
    return header, metadata.pop(SEAL, None)


def _digest(header: Mapping[str, Any], file: BinaryIO) -> str:
    """Compute the seal: sha256 over the header without a seal and the rest of the file."""
    hasher = hashlib.sha256(orjson.dumps(header, option=orjson.OPT_SORT_KEYS))
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
