"""Directions and cosines from inner products alone, in float64, for many draws of the directions at once.

A direction extracted from pairs is a combination of pair gradients, v = sum_j a_j P_j. With D_p = P[first_p] -
P[second_p] and D D^T = U diag(S^2) U^T, the right singular vectors of D are V_i = sum_p (U_pi / S_i) D_p, so that
V_i g needs the products P_j g alone. `probe.step.projection` and `extraction.directions` define the same quantities
from gradients; a test holds the two together.

Shapes: B draws, M modules, k directions, N pair gradients, S gradients (samples, or totals of steps).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.gram import Array, Extraction, PairGram, StepGram

CHUNK = 1 << 22  # numbers of the Gram matrices of the draws that are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """Directions of every draw and module as combinations of the pair gradients; dropped ones have zero rows."""

    rows: Array  # (B, M, k, N)
    singular_values: Array  # (B, M, k)
    kept: NDArray[np.bool_]  # (B, M, k)

    def axes(self) -> "Axes":
        """The mean axis u = sum_i V_i / sqrt(k) of every module."""
        count = self.kept.sum(-1)
        return Axes(
            rows=self.rows.sum(2) / np.sqrt(np.maximum(count, 1))[..., None],
            kept=count > 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """One unit vector u a draw and module, as a combination of the pair gradients; zero where a module keeps none."""

    rows: Array  # (B, M, N)
    kept: NDArray[np.bool_]  # (B, M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """S gradients: products with the pair gradients, and norms."""

    inner: Array  # (M, S, N)
    norms: Array  # (M, S)

    @property
    def norm(self) -> Array:
        """(S,) norm over all modules."""
        return np.sqrt(np.square(self.norms).sum(0))


def extract(gram: PairGram, first: NDArray[np.intp], second: NDArray[np.intp], how: Extraction) -> Directions:
    """v_hack of every draw, as `extraction.directions.extract_directions` makes it from gradients.

    Args:
        first: (B, p) rows of the pair gradients that count as hack.
        second: (B, p) rows that count as clean.
        how: k, tau, noise floor and rounding.
    """
    parts = list(_chunks(gram, first, second, how))
    return Directions(
        rows=np.concatenate([part.rows for part in parts]),
        singular_values=np.concatenate([part.singular_values for part in parts]),
        kept=np.concatenate([part.kept for part in parts]),
    )


def svd_axes(gram: PairGram, first: NDArray[np.intp], second: NDArray[np.intp], how: Extraction) -> Axes:
    """The mean axes of `extract`, without keeping all k directions of all draws in memory."""
    parts = [part.axes() for part in _chunks(gram, first, second, how)]
    return Axes(rows=np.concatenate([a.rows for a in parts]), kept=np.concatenate([a.kept for a in parts]))


def mean_axes(gram: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> Axes:
    """The direction of the mean difference, u = mean_p D_p / |mean_p D_p|, of every draw and module."""
    num_draws, num_pairs = first.shape
    mean = np.zeros((num_draws, gram.pairs.shape[1]))
    draw = np.arange(num_draws)[:, None]
    mean[draw, first] = 1.0 / num_pairs
    mean[draw, second] = -1.0 / num_pairs
    squared = np.einsum("bi,mij,bj->bm", mean, gram.pairs, mean, optimize=True)
    size = np.einsum("bi,mii->bm", np.abs(mean), gram.pairs)
    kept = squared > gram.extraction.eps**2 * size  # below it, the difference of the gradients is rounding
    scale = np.where(kept, 1.0 / np.sqrt(np.where(kept, squared, 1.0)), 0.0)
    return Axes(rows=mean[:, None, :] * scale[..., None], kept=kept)


def weighted(step: StepGram, weights: Array) -> Gradients:
    """sum_i weights[s, i] g_i for every row of weights (S, G): totals of a step under any advantages."""
    squared = np.einsum("si,mij,sj->ms", weights, step.samples, weights, optimize=True)
    return Gradients(inner=np.einsum("si,min->msn", weights, step.inner), norms=np.sqrt(np.maximum(squared, 0.0)))


def samples_of(step: StepGram) -> Gradients:
    """The step's unit gradients themselves."""
    return Gradients(inner=step.inner, norms=np.sqrt(np.diagonal(step.samples, axis1=1, axis2=2)))


def stack(parts: list[Gradients]) -> Gradients:
    """All gradients of several steps in one."""
    return Gradients(
        inner=np.concatenate([part.inner for part in parts], axis=1),
        norms=np.concatenate([part.norms for part in parts], axis=1),
    )


def cosines(axes: Axes, gradients: Gradients) -> Array:
    """(B, S) global signed cosines: sum_m <u_m, g_m> / (sqrt(M) norm(g)), M the modules that keep a direction."""
    dots = np.einsum("bmn,msn->bs", axes.rows, gradients.inner, optimize=True)
    return ratio(dots, np.sqrt(axes.kept.sum(1))[:, None] * gradients.norm)


def module_cosines(axes: Axes, gradients: Gradients) -> Array:
    """(B, S, M) signed cosines by module, <u_m, g_m> / norm(g_m); NaN without a direction or a gradient."""
    dots = np.matmul(axes.rows.transpose(1, 0, 2), gradients.inner.transpose(0, 2, 1))  # (M, B, S)
    found = ratio(dots, np.where(axes.kept.T[:, :, None], gradients.norms[:, None, :], 0.0))
    return found.transpose(1, 2, 0)


def _chunks(gram: PairGram, first: NDArray[np.intp], second: NDArray[np.intp], how: Extraction) -> Iterator[Directions]:
    """`extract`, as many draws at a time as fit."""
    size = max(1, CHUNK // (len(gram.modules) * 4 * first.shape[1] ** 2))
    for start in range(0, len(first), size):
        yield _extract(gram, first[start : start + size], second[start : start + size], how)


def _extract(gram: PairGram, first: NDArray[np.intp], second: NDArray[np.intp], how: Extraction) -> Directions:
    """`extract` for one chunk of draws; the steps are those of `extraction.directions._module_directions`."""
    num_draws, num_pairs = first.shape
    difference = _difference_gram(gram.pairs, first, second)  # (B, M, p, p)
    squares, left = np.linalg.eigh(difference)
    k = how.k
    s = np.sqrt(np.maximum(squares[..., ::-1], 0.0))
    left = left[..., ::-1][..., :k]  # (B, M, p, k)
    top, s = s[..., :1], s[..., :k]
    sizes = np.sqrt(np.maximum(np.diagonal(difference, axis1=-2, axis2=-1), 0.0))  # (B, M, p) |D_p|
    projections = left * s[..., None, :]  # D_p . v_i
    telling = np.abs(projections) > how.eps * sizes[..., None]
    margins = (np.sign(projections) * telling).sum(-2)  # (B, M, k): pairs for minus pairs against
    dead = how.eps * np.sqrt(np.minimum(num_pairs, gram.sizes))[:, None] * top
    kept = (s > dead) & (s >= how.tau * top) & (margins != 0)
    kept &= s >= _noise_floor(s, kept, how.drop_bottom_frac)[:, None, None]
    signed = np.where(kept, np.sign(margins) / np.where(kept, s, 1.0), 0.0)
    combination = (left * signed[..., None, :]).swapaxes(-1, -2)  # (B, M, k, p): V_i in the differences
    rows = np.zeros((*combination.shape[:-1], gram.pairs.shape[1]))
    draw = np.arange(num_draws)[:, None]
    rows[draw, :, :, first] = combination.transpose(0, 3, 1, 2)
    rows[draw, :, :, second] = -combination.transpose(0, 3, 1, 2)
    return Directions(rows=rows, singular_values=np.where(kept, s, 0.0), kept=kept)


def _difference_gram(pairs: Array, first: NDArray[np.intp], second: NDArray[np.intp]) -> Array:
    """(B, M, p, p): D D^T of every draw and module."""
    both = np.concatenate([first, second], axis=1)
    products = pairs[:, both[:, :, None], both[:, None, :]].swapaxes(0, 1)  # (B, M, 2p, 2p)
    p = first.shape[1]
    return products[..., :p, :p] - products[..., :p, p:] - products[..., p:, :p] + products[..., p:, p:]


def _noise_floor(s: Array, alive: NDArray[np.bool_], fraction: float) -> Array:
    """(B,) quantile of the living singular values of all modules, draw by draw."""
    if fraction <= 0:
        return np.zeros(len(s))
    values = np.where(alive, s, np.nan).reshape(len(s), -1)
    empty = np.isnan(values).all(1)
    values[empty] = 0.0
    return np.nanquantile(values, fraction, axis=1)


def ratio(numerator: Array, denominator: Array, *, otherwise: float = np.nan) -> Array:
    """numerator / denominator, `otherwise` where the denominator is 0."""
    some = np.broadcast_to(denominator > 0, np.broadcast_shapes(numerator.shape, denominator.shape))
    return np.where(some, numerator / np.where(denominator > 0, denominator, 1.0), otherwise)
