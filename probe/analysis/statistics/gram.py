"""Reader of the sufficient statistics that a run stores in `gram/`; no torch (`probe.runs.gram` writes them).

Shapes: G samples of a step, M modules, n pairs, N = 2n pair gradients (hack first, then clean).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from probe.records.run import Run
from replay_pools.errors import InputError
from replay_pools.files import sha256

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """How directions are extracted from differences of pair gradients; see `extraction.directions`."""

    k: int
    tau: float
    drop_bottom_frac: float
    eps: float  # machine epsilon of the gradients' dtype: what is below it is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGram:
    """Inner products of all pair gradients, by module."""

    modules: tuple[str, ...]
    sizes: NDArray[np.intp]  # (M,) coordinates r of each module
    pairs: Array  # (M, N, N)
    held_out: NDArray[np.bool_]  # (n,)
    extraction: Extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """Inner products of one step's unit gradients with the pair gradients and with one another."""

    inner: Array  # (M, G, N)
    samples: Array  # (M, G, G)


def has_gram(run: Run) -> bool:
    """Whether the run stored its sufficient statistics (runs in the LoRA basis alone have none)."""
    return "gram/pairs.safetensors" in run.manifest.get("files", {})


def read_pairs(run: Run) -> PairGram:
    """`gram/pairs.safetensors`; InputError when it is missing, changed, or something else."""
    tensors, header = _read(run, "pairs", ("pairs", "held_out"), ("modules", "sizes", "extraction"))
    held_out = tensors["held_out"].astype(bool)
    return PairGram(
        modules=tuple(header["modules"]),
        sizes=np.array(header["sizes"]),
        pairs=tensors["pairs"].astype(np.float64),
        held_out=held_out[: len(held_out) // 2],
        extraction=Extraction(**header["extraction"]),
    )


def read_step(run: Run, step: int) -> StepGram:
    """`gram/step_NNN.safetensors`; InputError as `read_pairs`."""
    tensors, _ = _read(run, f"step_{step:03d}", ("inner", "samples"), ("modules",))
    return StepGram(inner=tensors["inner"].astype(np.float64), samples=tensors["samples"].astype(np.float64))


def _read(
    run: Run, name: str, tensors: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Tensors and metadata of one file, checked against the manifest."""
    path = run.path / "gram" / f"{name}.safetensors"
    listed = run.manifest["files"].get(f"gram/{path.name}")
    if not path.is_file():
        raise InputError(path, expected="a file of the manifest", found="no such file", fix="repeat the run")
    if sha256(path.read_bytes()) != listed:
        raise InputError(path, expected=f"sha256 {listed} of the manifest", found="another", fix="repeat the run")
    try:
        with safe_open(path, framework="np") as file:
            header = orjson.loads((file.metadata() or {})["header"])
            found = {key: header[key] for key in keys}
            return {key: file.get_tensor(key) for key in tensors}, found
    except (SafetensorError, KeyError, orjson.JSONDecodeError) as error:
        missing = f"{type(error).__name__}: {error}"
        raise InputError(path, expected=", ".join([*tensors, *keys]), found=missing, fix="repeat the run") from error
