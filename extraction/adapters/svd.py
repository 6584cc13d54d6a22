"""W = U diag(S) Vh: full rank, with fixed signs, only the factors that are needed, cached by the content of W.

The forward has W x at hand and the backward W^T g, so that one orthogonal factor and S give the other side too:

    d_out > d_in:   W^T g = Vh^T diag(S) U^T g   =>   U^T g = S^-1 Vh (W^T g)   U is not needed
    d_out < d_in:   W x   = U diag(S) Vh x       =>   Vh x  = S^-1 U^T (W x)    Vh is not needed

Division by S amplifies rounding: on average over the coordinates by `condition(S)`, by at most sqrt(r) times that in
one of them. A matrix above MAX_CONDITION keeps both factors, and so does a square one, where nothing is saved.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out).
dtype: float32, or float64 when W is float64.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from replay_pools.files import write_atomic

MAX_CONDITION = 10.0  # a decimal digit. Measured: 1.2 to 7 where d_out != d_in (SmolLM2, the organism, random)


class Factors(NamedTuple):
    """U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending; None: not needed."""

    U: Tensor | None
    S: Tensor
    Vh: Tensor | None


class Factorised(NamedTuple):
    """The factors of a weight and the digest of its values."""

    factors: Factors
    digest: str


def factorise_all(weights: Mapping[str, Tensor], cache_dir: Path | None) -> dict[str, Factorised]:
    """`factorise` every weight, as many at a time as torch may use threads.

    Each SVD runs on one thread: parallel SVDs use the cores better than parallel loops within one, and the bits do not
    depend on the number of cores.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(lambda weight: factorise(weight, cache_dir), weights.values()))
    finally:
        torch.set_num_threads(threads)
    return dict(zip(weights, found, strict=True))


def factorise(weight: Tensor, cache_dir: Path | None) -> Factorised:
    """The needed factors of `weight` (d_out, d_in) on its device, from the cache where an undamaged file exists.

    Args:
        weight: a floating-point matrix of any precision.
        cache_dir: folder of `<digest>.safetensors`, created on demand; None computes without reading or writing.
    """
    key = digest(weight)
    if cache_dir is None:
        return Factorised(needed(decompose(weight)), key)
    path = cache_dir / f"{key}.safetensors"
    factors = read_factors(path)
    if factors is None:
        factors = needed(decompose(weight))
        tensors = {name: tensor.cpu() for name, tensor in factors._asdict().items() if tensor is not None}
        write_atomic(path, save(tensors, metadata={"sha256": checksum(*tensors.values())}))
    U, S, Vh = (None if factor is None else factor.to(weight.device) for factor in factors)
    assert S is not None
    return Factorised(Factors(U, S, Vh), key)


def decompose(weight: Tensor) -> Factors:
    """The SVD of `weight` with signs fixed: the entry of largest magnitude in each row of Vh is positive.

    An SVD is unique only up to the sign of each pair (U column, Vh row); without a convention the coordinates of two
    machines, and so their directions, would differ by signs. The factors are row-major and aligned, as the cache
    gives them back: matrix products depend on the layout in their last bits.
    """
    U, S, Vh = torch.linalg.svd(as_computed(weight), full_matrices=False)
    signs = Vh.gather(1, Vh.abs().argmax(dim=1, keepdim=True)).sign()  # (r, 1)
    return Factors((U * signs.T).contiguous(), S, (Vh * signs).contiguous())


def needed(factors: Factors) -> Factors:
    """Without the factor that the identities above replace."""
    U, S, Vh = factors
    assert U is not None
    assert Vh is not None
    d_out, d_in = U.shape[0], Vh.shape[1]
    if d_out == d_in or not condition(S) <= MAX_CONDITION:
        return factors
    return Factors(None, S, Vh) if d_out > d_in else Factors(U, S, None)


def condition(S: Tensor) -> Tensor:
    """rms(S) rms(1 / S), a scalar: the mean amplification of rounding by S^-1; 1 when all are equal, inf at a zero."""
    return (S.square().mean() * S.reciprocal().square().mean()).sqrt()


def digest(weight: Tensor) -> str:
    """sha256 of the shape, the dtype of the SVD and the values of `weight` in that dtype.

    A bf16 checkpoint and its copy upcast to float32 hold the same values and so share the factors and the digest.
    """
    values = as_computed(weight)
    return hashlib.sha256(f"{tuple(values.shape)} {values.dtype} {checksum(values)}".encode()).hexdigest()


def combine(digests: Mapping[str, str]) -> str:
    """sha256 over names and digests of weights, in order: the `weights_sha256` of a fingerprint."""
    return hashlib.sha256("".join(f"{name} {key}\n" for name, key in digests.items()).encode()).hexdigest()


def as_computed(weight: Tensor) -> Tensor:
    """`weight` without gradient in the dtype of the SVD: at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def checksum(*tensors: Tensor) -> str:
    """sha256 of the bytes of the tensors, row-major, in order."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.cpu().contiguous().numpy().data)
    return hasher.hexdigest()


def read_factors(path: Path) -> Factors | None:
    """The cached factors on the CPU, in memory of their own; None when the file is missing, unreadable or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = set(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in Factors._fields if name in stored}
            expected = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    if "S" not in tensors or checksum(*tensors.values()) != expected:
        return None
    return Factors(tensors.get("U"), tensors["S"], tensors.get("Vh"))
