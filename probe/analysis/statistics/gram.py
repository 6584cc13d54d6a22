"""Read the inner products of gradients that a run stores of a basis, without torch; `runs.gram_recorder` writes them.

Every direction that pairs can give is a combination of the pair gradients, so these inner products are enough to repeat
the extraction for any labels and any k, and to project every sample, without the gradients themselves.

The gradient of a sample is g_i = grad of sum_t -logp_it: unit weight, no advantage.
Shapes: G samples of a step, M modules, n pairs, N = 2n pair gradients (hack first, then clean).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extraction.words import Basis, Method
from probe.records.run import Run, gram_dir
from replay_pools.errors import InputError
from replay_pools.storage.files import sha256
from replay_pools.storage.tensors import read_tensors

Array = NDArray[np.float64]
REMEMBERED_STEPS = 64  # every condition of a run goes over its steps several times


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

    Equal to itself alone: `read_pairs` gives the same object for the same contents, so that what follows from the pairs
    can be remembered.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """Inner products of the sample gradients g_i of one step with the pair gradients and with one another."""

    inner: Array  # (M, G, N)
    samples: Array  # (M, G, G)
    along: Mapping[str, Array]  # {control arm: (M, G, k)} products with its directions
    weights: Mapping[str, Array]  # {condition: (G,)} w_i: the loss multiplies an advantage by it


@dataclass(frozen=True, slots=True)
class _File:
    """A file whose contents are those that the manifest lists; equal to every file of the same contents."""

    path: Path = field(compare=False)
    sha256: str

    @classmethod
    def of(cls, run: Path, hashes: Mapping[str, str], name: str) -> "_File":
        path, listed = run / name, hashes.get(name)
        actual = sha256(path.read_bytes()) if path.is_file() else "no such file"
        if actual != listed:
            raise InputError(path, expected=f"sha256 {listed} of the manifest", found=actual, fix="repeat the run")
        return cls(path, actual)


def has_gram(run: Run, basis: Basis) -> bool:
    """Whether the run stored its sufficient statistics in a basis."""
    return _name("pairs", basis) in run.manifest.get("files", {})


def read_pairs(run: Run, basis: Basis = "svd") -> PairGram:
    """The `pairs.safetensors` of a basis; InputError when it is missing or changed."""
    return _pairs(_File.of(run.path, run.manifest["files"], _name("pairs", basis)))


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
        paths = sorted(Path(name) for name in self.hashes if name.startswith(f"{gram_dir(self.basis)}/arm_"))
        return tuple(path.stem.removeprefix("arm_") for path in paths)

    def __call__(self, step: int) -> StepGram:
        """The statistics of one step."""
        return _step(_File.of(self.run, self.hashes, _name(f"step_{step:03d}", self.basis)))

    def control(self, arm: str) -> Array:
        """(M, k, N) products of the directions of a control arm with the pair gradients."""
        file = _File.of(self.run, self.hashes, _name(f"arm_{arm}", self.basis))
        return read_tensors(file.path, "np", fix="repeat the run")[0]["pairs"].astype(np.float64)


@lru_cache(maxsize=1)
def _pairs(file: _File) -> PairGram:
    tensors, header = read_tensors(file.path, "np", fix="repeat the run")
    held_out = tensors["held_out"].astype(bool)  # (N,): the file marks both rows of a pair
    return PairGram(
        modules=tuple(header["modules"]),
        sizes=np.array(header["sizes"]),
        pairs=tensors["pairs"].astype(np.float64),
        held_out=held_out[: len(held_out) // 2],
        extraction=Extraction(**header["extraction"]),
        flavours=tuple(header["flavours"]),
    )


@lru_cache(maxsize=REMEMBERED_STEPS)
def _step(file: _File) -> StepGram:
    tensors, _ = read_tensors(file.path, "np", fix="repeat the run")
    numbers = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def named(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): values for name, values in numbers.items() if name.startswith(prefix)}

    return StepGram(
        inner=numbers["inner"], samples=numbers["samples"], along=named("along/"), weights=named("weights/")
    )


def _name(name: str, basis: Basis) -> str:
    """A file of a basis as the manifest lists it."""
    return f"{gram_dir(basis)}/{name}.safetensors"
