"""The SVD W = U diag(S) Vh with fixed signs: all triplets or the largest, without a factor that follows from W.

The forward computes W x and the backward W^T g anyway, so that one orthogonal factor and S give the other side too:

    d_out > d_in:   W^T g = Vh^T diag(S) U^T g   =>   U^T g = S^-1 Vh (W^T g)   U is not needed
    d_out < d_in:   W x   = U diag(S) Vh x       =>   Vh x  = S^-1 U^T (W x)    Vh is not needed

Both hold triplet by triplet (v_i . W^T g = S_i u_i . g), so they hold for the R largest too. Division by S amplifies
rounding: on average over the coordinates by at most `condition(S)`, in a single one by at most sqrt(r) times more. A
matrix above MAX_CONDITION keeps both factors, and so does a square one, where nothing is saved.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out), or R where that is smaller.
dtype: float32, or float64 when W is float64.

`factorise_all` caches the factors of each weight in a file named by the digest of its values: models that share a
weight share the entry, and an entry holds all triplets and so serves every rank.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from replay_pools.base.errors import InputError
from replay_pools.base.files import read_tensors, write_tensors
from replay_pools.base.terminal import report

MAX_CONDITION = 10.0  # one decimal digit lost. Measured: 1.2 to 7 where d_out != d_in (SmolLM2, the organism, random)


class Factors(NamedTuple):
    """U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending; None: not needed."""

    U: Tensor | None
    S: Tensor
    Vh: Tensor | None

    @property
    def is_whole(self) -> bool:
        """Whether no factor follows from W."""
        return self.U is not None and self.Vh is not None

    @property
    def turns(self) -> tuple[Tensor, Tensor]:
        """U^T and Vh, (r, d) each, with which outputs and inputs are read; the one that is there stands for both."""
        left = self.Vh if self.U is None else self.U.T
        right = left if self.Vh is None else self.Vh
        assert left is not None
        assert right is not None
        return left, right

    def each(self, change: Callable[[Tensor], Tensor]) -> "Factors":
        """Return the factors after `change`; one that is None stays None."""
        U, S, Vh = self
        return Factors(None if U is None else change(U), change(S), None if Vh is None else change(Vh))


def decompose(weight: Tensor) -> Factors:
    """Return all factors of `weight` (d_out, d_in); the largest entry by magnitude of each row of Vh is positive.

    An SVD is unique only up to the sign of each pair (U column, Vh row); without a convention the directions of two
    machines would differ by signs. The factors are row-major, as the cache returns them: matrix products depend on the
    layout in their last bits.
    """
    U, S, Vh = _svd(as_computed(weight))
    # Signs from Vh, not from U: the right frame, in which tokens are read, then does not depend on the sign of W.
    signs = Vh.gather(-1, Vh.abs().argmax(dim=-1, keepdim=True)).sign()  # (r, 1)
    return Factors((U * signs.mT).contiguous(), S.contiguous(), (Vh * signs).contiguous())


def _svd(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reduced SVD through the square factor of a QR: on 2560 x 9728 three times faster than directly."""
    if W.shape[-2] > W.shape[-1]:
        Q, R = torch.linalg.qr(W)
        U, S, Vh = torch.linalg.svd(R, full_matrices=False)
        return Q @ U, S, Vh
    if W.shape[-2] < W.shape[-1]:
        V, S, Uh = _svd(W.mT)
        return Uh.mT, S, V.mT
    return torch.linalg.svd(W, full_matrices=False)


def needed(factors: Factors) -> Factors:
    """Drop the factor that follows from W by the identities of the module docstring, if there is one."""
    U, S, Vh = factors
    assert U is not None
    assert Vh is not None
    d_out, d_in = U.shape[0], Vh.shape[1]
    # `not <=`, since the condition of a zero matrix is NaN.
    if d_out == d_in or not condition(S) <= MAX_CONDITION:
        return factors
    return Factors(None, S, Vh) if d_out > d_in else Factors(U, S, None)


def condition(S: Tensor) -> Tensor:
    """Return rms(S) rms(1 / S), a scalar: the mean amplification of rounding by S^-1, or a bound of it.

    1 when all values are equal, inf at a zero.
    """
    return (S.square().mean() * S.reciprocal().square().mean()).sqrt()


def largest(factors: Factors, rank: int | None) -> Factors:
    """Return a copy of the triplets with the `rank` largest singular values; None returns `factors`."""
    U, S, Vh = factors
    if rank is None or rank >= len(S):
        return factors
    cut = Factors(None if U is None else U[:, :rank], S[:rank], None if Vh is None else Vh[:rank])
    # Row-major as whole factors are: matrix products depend on the layout in their last bits.
    return cut.each(partial(torch.clone, memory_format=torch.contiguous_format))


def both_factors(factors: Factors, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return U and Vh; a factor that is not stored follows from `weight`: U = W V S^-1 or Vh = S^-1 U^T W."""
    U, S, Vh = factors
    if U is not None and Vh is not None:
        return U, Vh
    assert weight is not None
    W = weight.detach().to(S.dtype)
    if U is None:
        assert Vh is not None
        return W @ (Vh.T / S), Vh
    return U, (U / S).T @ W


def as_computed(weight: Tensor) -> Tensor:
    """Return `weight`, detached, in the dtype of the SVD: at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def factorise_all(
    weights: Mapping[str, Tensor], digests: Mapping[str, str], cache_dir: Path | None, *, rank: int | None = None
) -> dict[str, Factors]:
    """Return the factors of every weight (d_out, d_in) on its device, from the cache where an undamaged entry exists.

    Args:
        weights: floating-point matrices of any precision, by name.
        digests: from `digest_all`.
        cache_dir: created on demand; None computes without reading or writing.
        rank: keep this many of the largest triplets; None keeps all.

    Raises:
        InputError: a rank below 1.
    """
    if rank is not None and rank < 1:
        raise InputError("rank of svd", expected="at least 1", found=str(rank))
    paths = {} if cache_dir is None else {name: cache_dir / f"{digests[name]}.safetensors" for name in weights}

    def placed(name: str, factors: Factors) -> Factors:
        return largest(factors, rank).each(lambda part: part.to(weights[name].device))

    def read(name: str) -> Factors | None:
        factors = read_entry(paths[name]) if paths else None
        return None if factors is None else placed(name, factors)

    def make(name: str) -> Factors:
        factors = needed(decompose(weights[name]))
        if paths:
            parts = {part: tensor.cpu() for part, tensor in factors._asdict().items() if tensor is not None}
            write_tensors(paths[name], parts, {})
        return placed(name, factors)

    with single_threads() as pool:
        known = dict(zip(weights, pool.map(read, weights), strict=True))
        missing = [name for name, factors in known.items() if factors is None]
        # On a CPU, SVDs run in parallel on one thread each: this uses the cores better than threads within an SVD, and
        # the bits do not depend on the number of cores.
        on_cpu = all(weight.device.type == "cpu" for weight in weights.values())
        made = pool.map(make, missing) if on_cpu else map(make, missing)
        for num_done, (name, factors) in enumerate(zip(missing, made, strict=True), len(weights) - len(missing) + 1):
            known[name] = factors
            report("SVDs", num_done, len(weights))
    return {name: factors for name, factors in known.items() if factors is not None}


@contextmanager
def single_threads() -> Iterator[ThreadPoolExecutor]:
    """Open a pool with a worker for each thread that torch may use; each worker computes on one thread."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def read_entry(path: Path) -> Factors | None:
    """Read a cached entry on the CPU; None without one. A damaged entry is removed, with a warning."""
    if not path.is_file():
        return None
    try:
        tensors, _ = read_tensors(path, "pt", fix="")
    # A damaged cache is no error of the user, who did not write it.
    except InputError:
        logging.getLogger(__name__).warning("%s: damaged; made again", path)
        path.unlink(missing_ok=True)  # another process may have removed it
        return None
    return Factors(tensors.get("U"), tensors["S"], tensors.get("Vh"))


def digest_all(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the `digest` of every weight, by name."""
    with single_threads() as pool:
        return dict(zip(weights, pool.map(digest, weights.values()), strict=True))


def digest(weight: Tensor) -> str:
    """Return the sha256 of a weight's shape and its values in the dtype of the SVD.

    A bf16 checkpoint and its copy in float32 hold the same values, and so share the digest and the factors.
    """
    values = as_computed(weight)
    return hashlib.sha256(f"{tuple(values.shape)} {values.dtype} {checksum(values)}".encode()).hexdigest()


def combine(digests: Mapping[str, str]) -> str:
    """Return the sha256 over the names and digests of weights, in order: the `weights_sha256` of a fingerprint."""
    return hashlib.sha256("".join(f"{name} {key}\n" for name, key in digests.items()).encode()).hexdigest()


def checksum(*tensors: Tensor) -> str:
    """Return the sha256 of the bytes of the tensors, row-major, in order."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
