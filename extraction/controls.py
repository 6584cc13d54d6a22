"""Controls of v_hack (Haar, permuted), and principal angles between two sets of directions.

A cosine with v_hack means something only when compared with the same cosine along controls:

- Haar: uniformly random orthonormal directions, the same number in each module.
- permuted: the same extraction after permuting the labels ACROSS the 2n pair gradients.
- flipped: the same extraction after swapping hack and clean WITHIN random pairs: the subspace stays and the sign of
  each direction is left to chance.
- placebo: the ordinary extraction from clean-versus-clean pairs (`extraction.pairs`).

To add a control: a function here that returns `Directions`, and a branch in `extraction.library.DirectionLibrary.get`.

Similarity of two extractions V (k, r) and W (l, r) in a module (Bjoerck and Golub 1973):

    cos theta_i   = i-th singular value of V W^T                    i = 1 .. min(k, l), the smallest angle first
    overlap       = sum_i cos^2 theta_i / min(k, l)                 1: one subspace holds the other; 0: orthogonal
    chance        = max(k, l) / r                                   its mean for Haar directions: E |V W^T|^2 = k l / r
    axis_cos      = <u, w>,  u = sum_i V_i / sqrt(k)                the axes along which cosines are measured, signed

Shapes: r coordinates of a module, k and l directions, n pairs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.directions import Directions, PairGradients


def haar_directions(like: Directions, *, seed: int) -> Directions:
    """Return Haar-random directions with the shapes (k, r) of `like` in every module.

    They are Q of the QR decomposition of a Gaussian matrix, with the signs that make R's diagonal positive (Mezzadri
    2007). They have no spectrum and no votes: singular values are 1 and votes 0.
    """
    # One generator for all modules: the draws depend on their order, which direction files keep.
    generator = torch.Generator().manual_seed(seed)
    vectors, ones, votes = {}, {}, {}
    for module, V in like.vectors.items():
        k, r = V.shape
        Q, R = torch.linalg.qr(torch.randn(r, k, generator=generator, dtype=torch.float64))
        # LAPACK's own signs are a convention, under which Q would not be uniform.
        vectors[module] = (Q * torch.sign(R.diagonal())).T.float().contiguous()
        ones[module] = torch.ones(k)
        votes[module] = torch.zeros(k, dtype=torch.long)
    metadata = {"fingerprint": like.metadata.get("fingerprint"), "control": "haar", "seed": seed}
    return Directions(vectors=vectors, singular_values=ones, votes=votes, metadata=metadata)


def permuted_differences(pairs: PairGradients, *, seed: int) -> dict[str, Tensor]:
    """Return {module: (n, r)}, differences of n random couples of the 2n gradients; the same couples in all modules."""
    used = ~pairs.held_out
    n = int(used.sum())
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(seed))
    differences = {}
    for module in pairs.hack:
        pooled = torch.cat([pairs.hack[module][used], pairs.clean[module][used]])
        differences[module] = pooled[order[:n]] - pooled[order[n:]]
    return differences


def flipped_differences(pairs: PairGradients, *, seed: int) -> dict[str, Tensor]:
    """Return {module: (n, r)}: D with the sign of each row drawn at random, the same signs in every module."""
    differences = pairs.differences()
    n = int((~pairs.held_out).sum())
    signs = 1.0 - 2.0 * torch.randint(2, (n, 1), generator=torch.Generator().manual_seed(seed))
    return {module: signs.to(D) * D for module, D in differences.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAngles:
    """Similarity of two sets of directions in one module, as in the module docstring."""

    angles: tuple[float, ...]  # theta_i in degrees, smallest first
    overlap: float  # 0..1
    chance: float  # mean of `overlap` for random directions
    axis_cos: float  # -1..1


def principal_angles(V: Tensor, W: Tensor) -> ModuleAngles:
    """Return angles, overlap and axis cosine of V (k, r) and W (l, r), computed in float64.

    Direction files hold float32, so an angle below about 0.02 degrees is rounding.
    """
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
    """Return the `principal_angles` of every module, for {module: (k, r)}; modules without directions are left out."""
    shared = [module for module in first if module in second and len(first[module]) and len(second[module])]
    return {module: principal_angles(first[module], second[module]) for module in shared}
