"""Read the inner products of gradients that a run stores of a basis, without torch; `runs.gram_recorder` writes them.

Every direction that pairs can give is a combination of the pair gradients, so these inner products are enough to repeat
the extraction for any labels and any k, and to project every sample, without the gradients themselves.

The gradient of a sample is g_i = grad of sum_t -logp_it: unit weight, no advantage.
Shapes: G samples of a step, M modules, n pairs, N = 2n pair gradients (hack first, then clean).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extraction.words import Basis, Method
from probe.records.run import Run, gram_dir
from replay_pools.errors import InputError
from replay_pools.storage.files import sha256
from replay_pools.storage.tensors import read_tensors

Array = NDArray[np.float64]
REMEMBERED_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Settings with which directions are extracted from differences of pair gradients; see `extraction.directions`."""

    method: Method  # main directions of the differences, or the one of their mean
    k: int  # directions per module
    tau: float  # a singular value below tau times the module's largest is dropped
    drop_bottom_frac: float  # share of all singular values that is dropped as noise floor
    eps: float  # machine epsilon of the gradients' dtype: what is below it is rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairGram:
    """Inner products of all pair gradients with one another, by module.

    Equal where all numbers are, and hashable, so that what follows from the pairs can be remembered.
    """

    modules: tuple[str, ...]
    sizes: NDArray[np.intp]  # (M,) coordinates r of each module
    pairs: Array  # (M, N, N)
    held_out: NDArray[np.bool_]  # (n,) pairs that no direction is extracted from
    extraction: Extraction
    flavours: tuple[str, ...] = ()  # (n,) what kind of hack against what kind of clean completion; empty: not known

    @property
    def most_directions(self) -> int:
        """How many directions a module can have: one of a mean, else as many as pairs and coordinates allow."""
        if self.extraction.method == "mean":
            return 1
        return min(int((~self.held_out).sum()), int(self.sizes.min()))

    def __hash__(self) -> int:
        return hash((self.modules, self.extraction))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairGram) or (self.modules, self.extraction) != (other.modules, other.extraction):
            return False
        return (
            self.flavours == other.flavours
            and np.array_equal(self.sizes, other.sizes)
            and np.array_equal(self.held_out, other.held_out)
            and np.array_equal(self.pairs, other.pairs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """Inner products of the sample gradients g_i of one step with the pair gradients and with one another."""

    inner: Array  # (M, G, N)
    samples: Array  # (M, G, G)
    along: Mapping[str, Array]  # {control arm: (M, G, k)} products with its directions


def has_gram(run: Run, basis: Basis) -> bool:
    """Whether the run stored its sufficient statistics in a basis."""
    return _file("pairs", basis) in run.manifest.get("files", {})


def read_pairs(run: Run, basis: Basis = "svd") -> PairGram:
    """The `pairs.safetensors` of a basis; InputError when it is missing, changed, or something else."""
    name = _file("pairs", basis)
    path, listed = _existing(run.path / name), run.manifest["files"].get(name)
    tensors, header = _read(path, listed, ("pairs", "held_out"), ("modules", "sizes", "extraction", "flavours"))
    held_out = tensors["held_out"].astype(bool)  # (N,): the file marks both rows of a pair
    return PairGram(
        modules=tuple(header["modules"]),
        sizes=np.array(header["sizes"]),
        pairs=tensors["pairs"].astype(np.float64),
        held_out=held_out[: len(held_out) // 2],
        extraction=Extraction(**header["extraction"]),
        flavours=tuple(header["flavours"]),
    )


@dataclass(frozen=True, slots=True)
class StepReader:
    """`reader(step)` reads the `step_NNN.safetensors` of a basis; InputError as `read_pairs`.

    Equal for all conditions of a run, and hashable, so that what follows from the steps can be remembered.
    """

    run: Path
    hashes: Mapping[str, str] = field(hash=False)  # {file: sha256} of the manifest
    basis: Basis = "svd"

    @classmethod
    def of(cls, run: Run, basis: Basis = "svd") -> "StepReader":
        """The reader of a run's steps."""
        return cls(run.path, run.manifest["files"], basis)

    @property
    def controls(self) -> tuple[str, ...]:
        """The control arms whose products with the pair gradients the run stored."""
        control = re.compile(re.escape(gram_dir(self.basis)) + r"/arm_(.+)\.safetensors")
        matches = [control.fullmatch(name) for name in self.hashes]
        return tuple(sorted(match[1] for match in matches if match is not None))

    def __call__(self, step: int) -> StepGram:
        """The statistics of one step."""
        name = _file(f"step_{step:03d}", self.basis)
        path = _existing(self.run / name)
        return _read_step(path, self.hashes.get(name), self.controls, path.stat().st_mtime_ns)

    def control(self, arm: str) -> Array:
        """(M, k, N) products of the directions of a control arm with the pair gradients."""
        name = _file(f"arm_{arm}", self.basis)
        tensors, _ = _read(_existing(self.run / name), self.hashes.get(name), ("pairs",), ("modules",))
        return tensors["pairs"].astype(np.float64)


# Every condition of a run goes over its steps several times. Longer runs are read anew, so that memory stays small.
@lru_cache(maxsize=REMEMBERED_STEPS)
def _read_step(path: Path, listed: str | None, controls: tuple[str, ...], _changed: int) -> StepGram:
    """The statistics of a step; `_changed` is the time of the file, so that another file is read again."""
    names = ("inner", "samples", *(f"along/{arm}" for arm in controls))
    tensors, _ = _read(path, listed, names, ("modules",))
    numbers = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    along = {arm: numbers[f"along/{arm}"] for arm in controls}
    return StepGram(inner=numbers["inner"], samples=numbers["samples"], along=along)


def _file(name: str, basis: Basis) -> str:
    """A file of a basis as the manifest lists it."""
    return f"{gram_dir(basis)}/{name}.safetensors"


def _existing(path: Path) -> Path:
    """A file of inner products, which must exist."""
    if not path.is_file():
        raise InputError(path, expected="a file of the manifest", found="no such file", fix="repeat the run")
    return path


def _read(
    path: Path, listed: str | None, tensors: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The named tensors and header entries of one file, after a check of its hash against the one listed."""
    if sha256(path.read_bytes()) != listed:
        raise InputError(path, expected=f"sha256 {listed} of the manifest", found="another", fix="repeat the run")
    stored, header = read_tensors(path, "np", fix="repeat the run")
    try:
        return {key: stored[key] for key in tensors}, {key: header[key] for key in keys}
    except KeyError as error:
        expected = ", ".join([*tensors, *keys])
        raise InputError(path, expected=expected, found=f"no {error}", fix="repeat the run") from error
