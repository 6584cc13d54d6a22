"""W = U diag(S) Vh with fixed signs: its largest triplets, only the factors that are needed, exact or rounded.

The forward has W x at hand and the backward W^T g, so that one orthogonal factor and S give the other side too:

    d_out > d_in:   W^T g = Vh^T diag(S) U^T g   =>   U^T g = S^-1 Vh (W^T g)   U is not needed
    d_out < d_in:   W x   = U diag(S) Vh x       =>   Vh x  = S^-1 U^T (W x)    Vh is not needed

Both hold triplet by triplet (v_i . W^T g = S_i u_i . g), so they serve the R largest triplets as they serve all.
Division by S amplifies rounding: on average over the coordinates by at most `condition(S)`, by at most sqrt(r) times
that in one of them. A matrix above MAX_CONDITION keeps both factors, and so does a square one, where nothing is saved.

Shapes: W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in) with r = min(d_in, d_out), or R where that is smaller.
dtype: float32, or float64 when W is float64; U and Vh may be held in bfloat16.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_CONDITION = 10.0  # a decimal digit. Measured: 1.2 to 7 where d_out != d_in (SmolLM2, the organism, random)
TRIAL_TOKENS = 64


class Factors(NamedTuple):
    """U has orthonormal columns, Vh orthonormal rows, S is non-negative and descending; None: not needed."""

    U: Tensor | None
    S: Tensor
    Vh: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Factors":
        """`change` applied to whatever is there."""
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
    signs = Vh.gather(-1, Vh.abs().argmax(dim=-1, keepdim=True)).sign()  # (..., r, 1)
    return Factors((U * signs.mT).contiguous(), S, (Vh * signs).contiguous())


def needed_factors(weights: Sequence[Tensor]) -> list[Factors]:
    """What is needed of each weight; several must be of one shape, and are decomposed in one call."""
    if len(weights) <= 1:
        return [needed(decompose(weight)) for weight in weights]
    stack = decompose(torch.stack([as_computed(weight) for weight in weights]))
    return [needed(stack.each(itemgetter(i))).each(torch.clone) for i in range(len(weights))]


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
    """rms(S) rms(1 / S), a scalar: the mean amplification of rounding by S^-1; 1 when all are equal, inf at a zero.

    Of the largest triplets alone it is an upper bound, since what is rounded is as large as rms of ALL of S.
    """
    return (S.square().mean() * S.reciprocal().square().mean()).sqrt()


def largest(factors: Factors, rank: int | None) -> Factors:
    """The triplets with the `rank` largest singular values, in memory of their own; None is all of them."""
    U, S, Vh = factors
    if rank is None or rank >= len(S):
        return factors
    cut = Factors(None if U is None else U[:, :rank], S[:rank], None if Vh is None else Vh[:rank])
    return cut.each(partial(torch.clone, memory_format=torch.contiguous_format))


def frames(factors: Factors, weight: Tensor) -> tuple[Tensor, Tensor]:
    """U and Vh; the one that is not there follows from `weight`: U = W V S^-1 or Vh = S^-1 U^T W."""
    U, S, Vh = factors
    wide = weight.detach().to(S.dtype)
    if U is None:
        assert Vh is not None
        return wide @ (Vh.to(S.dtype).T / S), Vh
    return U, (U.to(S.dtype) / S).T @ wide if Vh is None else Vh


def rounded(factors: Factors) -> Factors:
    """U and Vh in bfloat16; S as it is."""
    return factors.each(Tensor.bfloat16)._replace(S=factors.S)


def measure_rounding(weight: Tensor, exact: Factors, stored: Factors) -> Rounding:
    """How far `stored` is from orthonormal, and what it makes of a gradient."""
    U, S, Vh = stored
    rows = [factor.to(S.dtype) for factor in (None if U is None else U.T, Vh) if factor is not None]
    defects = [(frame @ frame.T - torch.eye(len(frame)).to(frame)).abs().max() for frame in rows]
    generator = torch.Generator().manual_seed(0)
    d_out, d_in = weight.shape
    x, g = (torch.randn(TRIAL_TOKENS, d, generator=generator).to(S) for d in (d_in, d_out))
    found, expected = (trial_gradient(frames(own, weight), x, g).double() for own in (stored, exact))
    return Rounding(float(max(defects)), 1.0 - float(F.cosine_similarity(found, expected, dim=0)))


def trial_gradient(UV: tuple[Tensor, Tensor], x: Tensor, g: Tensor) -> Tensor:
    """sum_t (U^T g_t) * (Vh x_t), (T, d_in) and (T, d_out) -> (r,)."""
    U, Vh = (frame.to(x.dtype) for frame in UV)
    return ((g @ U) * (x @ Vh.T)).sum(0)


def as_computed(weight: Tensor) -> Tensor:
    """`weight` without gradient in the dtype of the SVD: at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
