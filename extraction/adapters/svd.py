"""The SVD W = U diag(S) Vh with fixed signs: all or the largest triplets, factors that are needed, exact or rounded.

The forward computes W x and the backward W^T g anyway, so that one orthogonal factor and S give the other side too:

    d_out > d_in:   W^T g = Vh^T diag(S) U^T g   =>   U^T g = S^-1 Vh (W^T g)   U is not needed
    d_out < d_in:   W x   = U diag(S) Vh x       =>   Vh x  = S^-1 U^T (W x)    Vh is not needed

Both hold triplet by triplet (v_i . W^T g = S_i u_i . g), so they serve the R largest triplets as they serve all.
Division by S amplifies rounding: on average over the coordinates by at most `condition(S)`, by at most sqrt(r) times
that in one of them. A matrix above MAX_CONDITION keeps both factors, and so does a square one, where nothing is saved.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out), or R where that is smaller.
dtype: float32, or float64 when W is float64; U and Vh may be held in bfloat16.

`factorise_all` makes the factors of many weights, cached on disk; on a CPU in parallel, on a GPU batched by shape. The
cache has a file per weight, named by the digest of its values, so that models which share a weight share its entry. An
entry holds all triplets, and serves a request for the R largest too; a rounded one is made from the exact one.

    <digest>.safetensors            U, S, Vh as computed
    <digest>.bfloat16.safetensors   U and Vh rounded, S as computed; what the rounding does
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
import torch.nn.functional as F
from torch import Tensor

from extraction.words import Storage
from replay_pools.errors import InputError
from replay_pools.screen import report
from replay_pools.storage.tensors import read_tensors, write_tensors

MAX_CONDITION = 10.0  # one decimal digit lost. Measured: 1.2 to 7 where d_out != d_in (SmolLM2, the organism, random)
TRIAL_TOKENS = 64  # random tokens on which `measure_rounding` compares gradients


class Factors(NamedTuple):
    """U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending; None: not needed."""

    U: Tensor | None
    S: Tensor
    Vh: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Factors":
        """The factors after `change`; one that is None stays None."""
        U, S, Vh = self
        return Factors(None if U is None else change(U), change(S), None if Vh is None else change(Vh))


class Rounding(NamedTuple):
    """What holding U and Vh in bfloat16 does to one weight."""

    orthonormality: float  # the largest entry of |U^T U - I| and |Vh Vh^T - I|
    cosine_error: float  # 1 - cos of the gradient of delta_S at random tokens, rounded against exact


def decompose(weight: Tensor) -> Factors:
    """The SVD of `weight` (..., d_out, d_in), signs fixed: the largest entry by magnitude of a row of Vh is positive.

    An SVD is unique only up to the sign of each pair (U column, Vh row); without a convention the coordinates of two
    machines, and so their directions, would differ by signs. The factors are row-major and aligned, as the cache
    gives them back: matrix products depend on the layout in their last bits.
    """
    U, S, Vh = torch.linalg.svd(as_computed(weight), full_matrices=False)
    # Signs from Vh, not from U: the right frame, in which tokens are read, then does not depend on the sign of W.
    signs = Vh.gather(-1, Vh.abs().argmax(dim=-1, keepdim=True)).sign()  # (..., r, 1)
    return Factors((U * signs.mT).contiguous(), S, (Vh * signs).contiguous())


def needed_factors(weights: Sequence[Tensor]) -> list[Factors]:
    """`needed(decompose(weight))` of each weight; several must have one shape, and are decomposed in one call."""
    if len(weights) <= 1:
        return [needed(decompose(weight)) for weight in weights]
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


def frames(factors: Factors, weight: Tensor) -> tuple[Tensor, Tensor]:
    """U and Vh; a factor that is not stored follows from `weight`: U = W V S^-1 or Vh = S^-1 U^T W."""
    U, S, Vh = factors
    W = weight.detach().to(S.dtype)
    if U is None:
        assert Vh is not None
        return W @ (Vh.to(S.dtype).T / S), Vh
    if Vh is None:
        return U, (U.to(S.dtype) / S).T @ W
    return U, Vh


def rounded(factors: Factors) -> Factors:
    """U and Vh in bfloat16, S unchanged."""
    return factors.each(Tensor.bfloat16)._replace(S=factors.S)


def measure_rounding(weight: Tensor, exact: Factors, stored: Factors) -> Rounding:
    """How far `stored` is from orthonormal, and how far its gradient at random tokens is from that of `exact`."""
    U, S, Vh = stored
    defects = []
    for frame in (None if U is None else U.T, Vh):
        if frame is not None:
            rows = frame.to(S.dtype)
            defects.append((rows @ rows.T - torch.eye(len(rows)).to(rows)).abs().max())
    # Drawn on the CPU from a fixed seed, so that every machine measures with the same tokens.
    generator = torch.Generator().manual_seed(0)
    d_out, d_in = weight.shape
    x = torch.randn(TRIAL_TOKENS, d_in, generator=generator).to(S)
    g = torch.randn(TRIAL_TOKENS, d_out, generator=generator).to(S)
    stored_gradient = trial_gradient(frames(stored, weight), x, g).double()
    exact_gradient = trial_gradient(frames(exact, weight), x, g).double()
    cosine = F.cosine_similarity(stored_gradient, exact_gradient, dim=0)
    return Rounding(float(max(defects)), 1.0 - float(cosine))


def trial_gradient(UV: tuple[Tensor, Tensor], x: Tensor, g: Tensor) -> Tensor:
    """The gradient of delta_S, sum_t (U^T g_t) * (Vh x_t), from x (T, d_in) and g = dL/dy (T, d_out): (r,)."""
    U, Vh = UV
    return ((g @ U.to(x.dtype)) * (x @ Vh.to(x.dtype).T)).sum(0)


def as_computed(weight: Tensor) -> Tensor:
    """`weight`, detached, in the dtype of the SVD: at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


BATCH = 8  # weights of one shape that a GPU decomposes in one call


class Factorised(NamedTuple):
    """The SVD of one weight: a cache entry."""

    factors: Factors
    digest: str  # of the weight's values
    rounding: Rounding | None  # what rounding did to the factors; None: not rounded
    computed: bool = True  # False: read from the cache


def factorise_all(
    weights: Mapping[str, Tensor],
    cache_dir: Path | None,
    *,
    rank: int | None = None,
    storage: Storage = "float32",
) -> dict[str, Factorised]:
    """The factors of every weight (d_out, d_in) on its device, from the cache where an undamaged entry exists.

    Args:
        weights: floating-point matrices of any precision, by name.
        cache_dir: created on demand; None computes without reading or writing.
        rank: how many of the largest triplets; None is all of them.
        storage: dtype of U and Vh; `float32` is as computed.

    Returns:
        The factors by name, in the order of `weights`.
    """

    def read(name: str) -> Factorised | None:
        entry = read_entry(weights[name], cache_dir, storage)
        return None if entry is None else placed(entry, rank, weights[name].device)

    def make(names: Sequence[str]) -> list[Factorised]:
        entries = make_entries([weights[name] for name in names], cache_dir, storage)
        return [placed(entry, rank, weights[name].device) for name, entry in zip(names, entries, strict=True)]

    on_cpu = all(weight.device.type == "cpu" for weight in weights.values())
    # On a CPU as many SVDs run at a time as torch may use threads, each on one thread: parallel SVDs use the cores
    # better than parallel loops within one, and the bits do not depend on the number of cores.
    with single_threads() as pool:
        entries = dict(zip(weights, pool.map(read, weights), strict=True))
        missing = {name: weights[name] for name, entry in entries.items() if entry is None}
        groups = batches(missing, 1 if on_cpu else BATCH)
        made = pool.map(make, groups) if on_cpu else map(make, groups)
        num_done = len(weights) - len(missing)
        for names, group_entries in zip(groups, made, strict=True):
            entries.update(zip(names, group_entries, strict=True))
            num_done += len(names)
            report("SVDs", num_done, len(weights))
    return {name: entry for name, entry in entries.items() if entry is not None}


def placed(entry: Factorised, rank: int | None, device: torch.device) -> Factorised:
    """The `rank` largest triplets of an entry on `device`."""
    return entry._replace(factors=largest(entry.factors, rank).each(lambda part: part.to(device)))


def make_entries(weights: Sequence[Tensor], cache_dir: Path | None, storage: Storage) -> list[Factorised]:
    """New entries for weights of one shape, written to the cache."""
    # Where the exact entry is cached, a rounded one is made from it, without another SVD.
    exact_entries = [read_entry(weight, cache_dir, "float32") for weight in weights]
    missing = [weight for weight, entry in zip(weights, exact_entries, strict=True) if entry is None]
    computed = iter(needed_factors(missing))
    entries = []
    for weight, exact_entry in zip(weights, exact_entries, strict=True):
        exact = next(computed) if exact_entry is None else placed(exact_entry, None, weight.device).factors
        if storage == "float32":
            entry = Factorised(exact, digest(weight), None)
        else:
            stored = rounded(exact)
            entry = Factorised(stored, digest(weight), measure_rounding(weight, exact, stored))
        if cache_dir is not None:
            write_entry(entry_path(cache_dir, entry.digest, storage), entry)
        entries.append(entry)
    return entries


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


def entry_path(cache_dir: Path, key: str, storage: Storage) -> Path:
    """The file of the entry with digest `key`."""
    suffix = "" if storage == "float32" else f".{storage}"
    return cache_dir / f"{key}{suffix}.safetensors"


def write_entry(path: Path, entry: Factorised) -> None:
    """Write an entry, replacing the file atomically."""
    tensors = {name: tensor.cpu() for name, tensor in entry.factors._asdict().items() if tensor is not None}
    if entry.rounding is not None:
        tensors["rounding"] = torch.tensor(entry.rounding, dtype=torch.float64)
    write_tensors(path, tensors, {})


def read_entry(weight: Tensor, cache_dir: Path | None, storage: Storage) -> Factorised | None:
    """The cached entry of `weight` on the CPU; None when there is none. A damaged one is removed, with a line."""
    if cache_dir is None:
        return None
    key = digest(weight)
    path = entry_path(cache_dir, key, storage)
    if not path.is_file():
        return None
    try:
        tensors, _ = read_tensors(path, "pt", fix="")
    # A damaged cache is no error of the user, who did not write it.
    except InputError:
        logging.getLogger(__name__).warning("%s: damaged; made again", path)
        path.unlink(missing_ok=True)  # another process may have removed it
        return None
    rounding = Rounding(*tensors["rounding"].tolist()) if "rounding" in tensors else None
    return Factorised(Factors(tensors.get("U"), tensors["S"], tensors.get("Vh")), key, rounding, computed=False)


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
