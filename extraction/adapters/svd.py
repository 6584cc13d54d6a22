"""The SVD W = U diag(S) Vh with fixed signs: all triplets or the largest, and of those the factors that are needed.

The forward computes W x and the backward W^T g anyway, so that one orthogonal factor and S give the other side too:

    d_out > d_in:   W^T g = Vh^T diag(S) U^T g   =>   U^T g = S^-1 Vh (W^T g)   U is not needed
    d_out < d_in:   W x   = U diag(S) Vh x       =>   Vh x  = S^-1 U^T (W x)    Vh is not needed

Both hold triplet by triplet (v_i . W^T g = S_i u_i . g), so they serve the R largest triplets as they serve all.
Division by S amplifies rounding: on average over the coordinates by at most `condition(S)`, by at most sqrt(r) times
that in one of them. A matrix above MAX_CONDITION keeps both factors, and so does a square one, where nothing is saved.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out), or R where that is smaller.
dtype: float32, or float64 when W is float64.

`factorise_all` makes the factors of many weights, cached on disk; on a CPU in parallel, on a GPU batched by shape. The
cache has a file per weight, named by the digest of its values, so that models which share a weight share its entry.
An entry holds all triplets and so serves every rank.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from replay_pools.errors import InputError
from replay_pools.storage.tensors import read_tensors, write_tensors
from replay_pools.terminal import report

MAX_CONDITION = 10.0  # one decimal digit lost. Measured: 1.2 to 7 where d_out != d_in (SmolLM2, the organism, random)


class Factors(NamedTuple):
    """U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending; None: not needed."""

    U: Tensor | None
    S: Tensor
    Vh: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Factors":
        """The factors after `change`; one that is None stays None."""
        U, S, Vh = self
        return Factors(None if U is None else change(U), change(S), None if Vh is None else change(Vh))


def decompose(weight: Tensor) -> Factors:
    """The SVD of `weight` (..., d_out, d_in), signs fixed: the largest entry by magnitude of a row of Vh is positive.

    An SVD is unique only up to the sign of each pair (U column, Vh row); without a convention the coordinates of two
    machines, and so their directions, would differ by signs. The factors are row-major and aligned, as the cache
    gives them back: matrix products depend on the layout in their last bits.
    """
    U, S, Vh = _svd(as_computed(weight))
    # Signs from Vh, not from U: the right frame, in which tokens are read, then does not depend on the sign of W.
    signs = Vh.gather(-1, Vh.abs().argmax(dim=-1, keepdim=True)).sign()  # (..., r, 1)
    return Factors((U * signs.mT).contiguous(), S.contiguous(), (Vh * signs).contiguous())


def _svd(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The reduced SVD, of the square factor of a QR: measured three times as fast on 2560 x 9728 as of W itself."""
    if W.shape[-2] > W.shape[-1]:
        Q, R = torch.linalg.qr(W)
        U, S, Vh = torch.linalg.svd(R, full_matrices=False)
        return Q @ U, S, Vh
    if W.shape[-2] < W.shape[-1]:
        V, S, Uh = _svd(W.mT)
        return Uh.mT, S, V.mT
    return torch.linalg.svd(W, full_matrices=False)


def needed_factors(weights: Sequence[Tensor]) -> list[Factors]:
    """`needed(decompose(weight))` of each weight, all of one shape, decomposed in one call."""
    stack = decompose(torch.stack([as_computed(weight) for weight in weights]))
    # clone: a view of one weight's factors would keep the whole stack in memory.
    return [needed(stack.each(itemgetter(i))).each(torch.clone) for i in range(len(weights))]


def needed(factors: Factors) -> Factors:
    """The factors without the one that follows from W by the identities of the module docstring, if there is one."""
    U, S, Vh = factors
    assert U is not None
    assert Vh is not None
    d_out, d_in = U.shape[0], Vh.shape[1]
    # `not <=`, since the condition of a zero matrix is NaN.
    if d_out == d_in or not condition(S) <= MAX_CONDITION:
        return factors
    return Factors(None, S, Vh) if d_out > d_in else Factors(U, S, None)


def condition(S: Tensor) -> Tensor:
    """rms(S) rms(1 / S), a scalar: the mean amplification of rounding by S^-1; 1 when all are equal, inf at a zero.

    Of the largest triplets alone it is an upper bound, since what is rounded is as large as rms of ALL of S.
    """
    return (S.square().mean() * S.reciprocal().square().mean()).sqrt()


def largest(factors: Factors, rank: int | None) -> Factors:
    """The triplets with the `rank` largest singular values (None: all), in memory of their own."""
    U, S, Vh = factors
    if rank is None or rank >= len(S):
        return factors
    cut = Factors(None if U is None else U[:, :rank], S[:rank], None if Vh is None else Vh[:rank])
    # Row-major as whole factors are: matrix products depend on the layout in their last bits.
    return cut.each(partial(torch.clone, memory_format=torch.contiguous_format))


def both_factors(factors: Factors, weight: Tensor) -> tuple[Tensor, Tensor]:
    """U and Vh; a factor that is not stored follows from `weight`: U = W V S^-1 or Vh = S^-1 U^T W."""
    U, S, Vh = factors
    W = weight.detach().to(S.dtype)
    if U is None:
        assert Vh is not None
        return W @ (Vh.T / S), Vh
    if Vh is None:
        return U, (U / S).T @ W
    return U, Vh


def left_out(factors: Factors, weight: Tensor) -> float:
    """Return |W - U diag(S) Vh|_F / |W|_F of `weight` (d_out, d_in) and its exact triplets, all or some; in 0..1."""
    squares = weight.double().square().sum()
    kept = factors.S.double().square().sum() / squares
    return float((1 - kept).clamp(min=0).sqrt()) if squares and len(factors.S) < min(weight.shape) else 0.0


def as_computed(weight: Tensor) -> Tensor:
    """`weight`, detached, in the dtype of the SVD: at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


BATCH = 8  # weights of one shape that a GPU decomposes in one call


def factorise_all(
    weights: Mapping[str, Tensor], digests: Mapping[str, str], cache_dir: Path | None, *, rank: int | None = None
) -> dict[str, Factors]:
    """The factors of every weight (d_out, d_in) on its device, from the cache where an undamaged entry exists.

    Args:
        weights: floating-point matrices of any precision, by name.
        digests: theirs (`digest_all`).
        cache_dir: created on demand; None computes without reading or writing.
        rank: how many of the largest triplets; None is all of them.

    Returns:
        The factors by name, in the order of `weights`.
    """

    def path(name: str) -> Path | None:
        return None if cache_dir is None else cache_dir / f"{digests[name]}.safetensors"

    def placed(name: str, factors: Factors) -> Factors:
        return largest(factors, rank).each(lambda part: part.to(weights[name].device))

    def read(name: str) -> Factors | None:
        factors = read_entry(path(name))
        return None if factors is None else placed(name, factors)

    def make(names: Sequence[str]) -> list[Factors]:
        made = needed_factors([weights[name] for name in names])
        for name, factors in zip(names, made, strict=True):
            write_entry(path(name), factors)
        return [placed(name, factors) for name, factors in zip(names, made, strict=True)]

    on_cpu = all(weight.device.type == "cpu" for weight in weights.values())
    # On a CPU as many SVDs run at a time as torch may use threads, each on one thread: parallel SVDs use the cores
    # better than parallel loops within one, and the bits do not depend on the number of cores.
    with single_threads() as pool:
        entries = dict(zip(weights, pool.map(read, weights), strict=True))
        missing = {name: weights[name] for name, factors in entries.items() if factors is None}
        groups = batches(missing, 1 if on_cpu else BATCH)
        made = pool.map(make, groups) if on_cpu else map(make, groups)
        num_done = len(weights) - len(missing)
        for names, group_factors in zip(groups, made, strict=True):
            entries.update(zip(names, group_factors, strict=True))
            num_done += len(names)
            report("SVDs", num_done, len(weights))
    return {name: factors for name, factors in entries.items() if factors is not None}


def batches(weights: Mapping[str, Tensor], size: int) -> list[list[str]]:
    """The names of weights in groups that can be stacked (one shape, dtype and device), at most `size` in each."""
    stackable: dict[object, list[str]] = {}
    for name, weight in weights.items():
        stackable.setdefault((weight.shape, weight.dtype, weight.device), []).append(name)
    groups = []
    for names in stackable.values():
        groups += [names[start : start + size] for start in range(0, len(names), size)]
    return groups


@contextmanager
def single_threads() -> Iterator[ThreadPoolExecutor]:
    """A pool of as many workers as torch may use threads, each of which computes on one thread."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def write_entry(path: Path | None, factors: Factors) -> None:
    """Write an entry, replacing the file atomically; None: no cache."""
    if path is not None:
        write_tensors(path, {name: part.cpu() for name, part in factors._asdict().items() if part is not None}, {})


def read_entry(path: Path | None) -> Factors | None:
    """The cached entry on the CPU; None when there is none. A damaged one is removed, with a line."""
    if path is None or not path.is_file():
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
    """The `digest` of every weight, by name, in threads."""
    with single_threads() as pool:
        return dict(zip(weights, pool.map(digest, weights.values()), strict=True))


def digest(weight: Tensor) -> str:
    """sha256 of the shape, the dtype of the SVD and the values of `weight` in that dtype.

    A bf16 checkpoint and its copy upcast to float32 hold the same values and so share the factors and the digest.
    """
    values = as_computed(weight)
    return hashlib.sha256(f"{tuple(values.shape)} {values.dtype} {checksum(values)}".encode()).hexdigest()


def combine(digests: Mapping[str, str]) -> str:
    """sha256 over the names and digests of weights, in order: the `weights_sha256` of a fingerprint."""
    return hashlib.sha256("".join(f"{name} {key}\n" for name, key in digests.items()).encode()).hexdigest()


def checksum(*tensors: Tensor) -> str:
    """sha256 of the bytes of the tensors, row-major, in order."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
