"""Tensor files of this project: safetensors with a header of plain values.

write_tensors(path, tensors, header)     read_tensors(path, "pt")     "np" needs no torch
"""

from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

import orjson
from safetensors import SafetensorError, safe_open

from replay_pools.base.errors import InputError
from replay_pools.base.files import open_file, write_atomic


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
