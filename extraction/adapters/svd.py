"""The SVD W = U diag(S) Vh with fixed signs: all or the largest triplets, factors that are needed, exact or rounded.

The forward computes W x and the backward W^T g anyway, so that one orthogonal factor and S give the other side too:

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
