"""W = U diag(S) Vh: reduced, full rank, with fixed signs, cached by the content of W.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out).
dtype: float32, or float64 when W is float64.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from replay_pools.files import write_atomic


class Factors(NamedTuple):
    """The three factors; U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def factorise(weight: Tensor, cache_dir: Path | None) -> Factors:
    """The factors of `weight` (d_out, d_in), from the cache where an undamaged file exists, on the weight's device.

    Args:
        weight: a floating-point matrix of any precision.
        cache_dir: folder of `<digest>.safetensors`, created on demand; None computes without reading or writing.
    """
    if cache_dir is None:
        return decompose(weight)
    path = cache_dir / f"{digest(weight)}.safetensors"
    factors = read_factors(path)
    if factors is None:
        factors = decompose(weight)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in factors._asdict().items()}
        write_atomic(path, save(tensors, metadata={"sha256": checksum(*tensors.values())}))
    return Factors(*(factor.to(weight.device) for factor in factors))


def decompose(weight: Tensor) -> Factors:
    """The SVD of `weight` with signs fixed: the entry of largest magnitude in each row of Vh is positive.

    An SVD is unique only up to the sign of each pair (U column, Vh row); without a convention the coordinates of two
    machines, and so their directions, would differ by signs. The factors are row-major and aligned, as the cache
    gives them back: matrix products depend on the layout in their last bits.
    """
    U, S, Vh = torch.linalg.svd(as_computed(weight), full_matrices=False)
    signs = Vh.gather(1, Vh.abs().argmax(dim=1, keepdim=True)).sign()  # (r, 1)
    return Factors((U * signs.T).contiguous(), S, (Vh * signs).contiguous())


def digest(weight: Tensor) -> str:
    """sha256 of the shape, the dtype of the SVD and the values of `weight` in that dtype.

    A bf16 checkpoint and its copy upcast to float32 hold the same values and so share the factors and the digest.
    """
    values = as_computed(weight)
    return hashlib.sha256(f"{tuple(values.shape)} {values.dtype} {checksum(values)}".encode()).hexdigest()


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
            factors = Factors(*(file.get_tensor(name).clone() for name in Factors._fields))
            expected = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    return factors if checksum(*factors) == expected else None
