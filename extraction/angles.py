"""Principal angles between two sets of directions in the same basis, per module: how alike are two extractions?

    cos theta_i   = i-th singular value of V W^T                    i = 1 .. min(k, l), the smallest angle first
    overlap       = sum_i cos^2 theta_i / min(k, l)                 1: one subspace holds the other; 0: orthogonal
    chance        = max(k, l) / r                                   its mean for Haar directions: E |V W^T|^2 = k l / r
    axis_cos      = <u, w>,  u = sum_i V_i / sqrt(k)                the axes along which cosines are measured, signed

Shapes: V (k, r) and W (l, r) with orthonormal rows; r coordinates of a module.
Bjoerck and Golub 1973.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAngles:
    """Two sets of directions compared in one module; symbols as in the module docstring."""

    angles: tuple[float, ...]  # theta_i in degrees, smallest first
    overlap: float  # 0..1
    chance: float  # what `overlap` is on average for random directions
    axis_cos: float  # -1..1


def principal_angles(V: Tensor, W: Tensor) -> ModuleAngles:
    """Angles, overlap and axis cosine of V (k, r) and W (l, r), computed in float64.

    Direction files hold float32, so angles below about 0.02 degrees cannot be told from 0.

    Raises:
        ValueError: shapes that do not fit, or a set without directions.
    """
    if V.ndim != 2 or W.ndim != 2 or V.shape[1] != W.shape[1] or not len(V) or not len(W):
        raise ValueError(f"expected (k, r) and (l, r) with k, l > 0, found {tuple(V.shape)} and {tuple(W.shape)}")
    products = V.double() @ W.double().T
    # Rounding can push a singular value above 1, where acos is NaN.
    cosines = torch.linalg.svdvals(products).clamp(max=1.0)
    return ModuleAngles(
        angles=tuple(torch.rad2deg(torch.acos(cosines)).tolist()),
        overlap=float(cosines.square().mean()),
        chance=max(len(V), len(W)) / V.shape[1],
        axis_cos=float(products.sum()) / math.sqrt(len(V) * len(W)),
    )


def compare_modules(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, ModuleAngles]:
    """`principal_angles` per module of {module: (k, r)}; modules where either set kept no direction are left out."""
    angles = {}
    for module, V in first.items():
        W = second[module]
        if len(V) and len(W):
            angles[module] = principal_angles(V, W)
    return angles
