"""Directions and cosines from inner products alone, in float64, for many draws of the labels at once.

A direction extracted from pairs is a combination of pair gradients, v = sum_j a_j P_j. With D_p = P[first_p] -
P[second_p] and D D^T = U diag(S^2) U^T, the right singular vectors of D are V_i = sum_p (U_pi / S_i) D_p. So V_i g
needs only the products P_j g, which the run stored, and no gradient.

`extraction.directions` and `probe.step.projection` compute the same quantities from gradients, with torch;
tests/probe/analysis/test_geometry.py checks that they agree.

Shapes: B draws, M modules, k directions, p pairs of a draw, N pair gradients, S gradients (samples, or totals of
steps), G samples of a step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extraction.settings import Method
from probe.analysis.statistics.intervals import Array
from replay_pools.base.terminal import report

CHUNK = 1 << 22  # maximum count of numbers in the draws' Gram matrices in memory
PART = 1 << 18  # maximum count of numbers in the rows of a part of the draws, and in the components along them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairGram:
    """Inner products of all pair gradients with one another, by module, and how directions are extracted from them.

    Compared and hashed by identity, so that results can be cached: `read_pairs` returns one object for one file.
    """

    modules: tuple[str, ...]
    sizes: NDArray[np.intp]  # (M,) coordinates r of each module
    pairs: Array  # (M, N, N)
    held_out: NDArray[np.bool_]  # (n,) pairs excluded from extraction
    method: Method  # main directions of the differences, or the direction of their mean
    k: int  # directions per module
    tau: float  # drop singular values below tau times the module's largest
    drop_bottom_frac: float  # share of all singular values dropped as noise floor
    eps: float  # machine epsilon of the gradients' dtype: anything smaller is rounding
    flavours: tuple[str, ...] = ()  # (n,) kinds of hack and clean completion; empty: unknown
    texts: tuple[int, ...] = ()  # (n,) id of each pair of completions, whatever its prompt; empty: all differ

    @property
    def clusters(self) -> NDArray[np.intp]:
        """The (n,) pair clusters for intervals: pairs with the same two completions, pasted under several prompts."""
        return np.array(self.texts or range(len(self.held_out)), dtype=np.intp)

    @property
    def most_directions(self) -> int:
        """The maximum number of directions of a module: 1 for a mean, else limited by pairs and coordinates."""
        return 1 if self.method == "mean" else min(int((~self.held_out).sum()), int(self.sizes.min()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """Inner products of one step's sample gradients g_i with the pair gradients and with one another."""

    inner: Array  # (M, G, N)
    samples: Array  # (M, G, G)
    weights: Mapping[str, Array]  # {condition: (G,)} w_i: the loss multiplies an advantage by it


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionDraws:
    """Directions of every draw and module as combinations of the pair gradients.

    A dropped direction has kept = False and coefficients 0.
    """

    first: NDArray[np.intp]  # (B, p) rows of the pair gradients labelled hack
    second: NDArray[np.intp]  # (B, p) rows labelled clean
    combinations: Array  # (B, M, k, p) coefficients of the differences P[first] - P[second]
    num_rows: int  # N
    kept: NDArray[np.bool_]  # (B, M, k)

    @property
    def rows(self) -> Array:
        """The (B, M, k, N) coefficients of the pair gradients: at least twice the size of the stored ones."""
        return self._spread(self.combinations)

    def axes(self) -> "Axes":
        """Return the mean axis u = sum_i V_i / sqrt(k) of every draw and module, over the k kept directions."""
        count = self.kept.sum(-1)
        return Axes(
            rows=self._spread(self.combinations.sum(2)) / np.sqrt(np.maximum(count, 1))[..., None],
            kept=count > 0,
        )

    def parts(self, num_columns: int) -> Iterator[Array]:
        """Yield `rows` in parts that, with `num_columns` components along each, stay within PART numbers."""
        num_draws, num_modules, k, _ = self.combinations.shape
        size = max(1, PART // (num_modules * k * (num_columns + self.num_rows)))
        for start in range(0, num_draws, size):
            yield self._spread(self.combinations, slice(start, start + size))

    def _spread(self, combinations: Array, draws: slice = slice(None)) -> Array:
        """Convert (B, ..., p) coefficients of the differences to (B, ..., N) coefficients of the pair gradients."""
        num_draws, *between, num_pairs = combinations[draws].shape
        by_pair = combinations[draws].reshape(num_draws, -1, num_pairs).swapaxes(1, 2)  # (B, p, ...)
        rows = np.zeros((num_draws, self.num_rows, by_pair.shape[2]))
        draw = np.arange(num_draws)[:, None]
        rows[draw, self.first[draws]] = by_pair
        rows[draw, self.second[draws]] = -by_pair
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(num_draws, *between, self.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axes:
    """One unit vector u per draw and module, as a combination of the pair gradients; zero if no direction was kept.

    Compared and hashed by identity.
    """

    rows: Array  # (B, M, N) coefficients of the pair gradients
    kept: NDArray[np.bool_]  # (B, M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """S gradients, represented by their norms and their inner products with the pair gradients."""

    inner: Array  # (M, S, N)
    norms: Array  # (M, S), by module

    @property
    def norm(self) -> Array:
        """The (S,) norms over all modules."""
        return np.sqrt(np.square(self.norms).sum(0))


def extract(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> DirectionDraws:
    """Return v_hack of every draw, as `extraction.directions.extract_directions` computes it from gradients.

    Args:
        pairs: inner products of the pair gradients.
        first: (B, p) row numbers of the pair gradients labelled hack.
        second: (B, p) row numbers of the pair gradients labelled clean.
    """
    # Each draw needs M Gram matrices (2p, 2p).
    size, parts = max(1, CHUNK // (len(pairs.modules) * 4 * first.shape[1] ** 2)), []
    for start in range(0, len(first), size):
        parts.append(_extract(pairs, first[start : start + size], second[start : start + size]))
        if size < len(first):
            report("draws of the nulls", min(start + size, len(first)), len(first))
    combinations, kept = (np.concatenate(part) for part in zip(*parts, strict=True))
    return DirectionDraws(
        first=first, second=second, combinations=combinations, num_rows=pairs.pairs.shape[1], kept=kept
    )


def weighted(step: StepGram, weights: Array) -> Gradients:
    """Return the sums sum_i weights[s, i] g_i, one per row of weights (S, G): totals of a step under S weightings."""
    # Matrix products: a search for the best contraction order takes longer than so small a sum.
    squared = np.einsum("msj,sj->ms", np.matmul(weights, step.samples), weights)
    return Gradients(inner=np.matmul(weights, step.inner), norms=np.sqrt(np.maximum(squared, 0.0)))


def samples_of(step: StepGram) -> Gradients:
    """Return the gradients g_i of the step's samples, without advantages (S = G)."""
    return Gradients(inner=step.inner, norms=np.sqrt(np.diagonal(step.samples, axis1=1, axis2=2)))


def stack(parts: list[Gradients]) -> Gradients:
    """Concatenate the gradients of several steps."""
    return Gradients(
        inner=np.concatenate([part.inner for part in parts], axis=1),
        norms=np.concatenate([part.norms for part in parts], axis=1),
    )


def held_out_gradients(pairs: PairGram) -> tuple[Gradients, Gradients, Gradients]:
    """Return the gradients of the H held-out pairs: hack minus clean, hack, clean."""
    hack = np.flatnonzero(pairs.held_out)
    clean = hack + len(pairs.held_out)
    difference = pairs.pairs[:, hack] - pairs.pairs[:, clean]  # (M, H, N)
    numbers = np.arange(len(hack))
    squared = difference[:, numbers, hack] - difference[:, numbers, clean]
    sizes = np.sqrt(np.diagonal(pairs.pairs, axis1=1, axis2=2))  # (M, N)
    return (
        Gradients(inner=difference, norms=np.sqrt(np.maximum(squared, 0.0))),
        Gradients(inner=pairs.pairs[:, hack], norms=sizes[:, hack]),
        Gradients(inner=pairs.pairs[:, clean], norms=sizes[:, clean]),
    )


def mean_module_unit(gradients: Gradients, weights: Array) -> Array:
    """Return the (M, N) weighted sum of gradients at norm 1 in each module, by their inner products with the pairs.

    A zero gradient counts as 0. weights: (S,).
    """
    return np.einsum("msn,ms->mn", gradients.inner, ratio(weights[None, :], gradients.norms, otherwise=0.0))


def along_modules(axes: Axes, gradient: Array) -> Array:
    """Return the (B, M) components of one gradient (M, N), module by module; 0 without an axis."""
    return np.einsum("bmn,mn->bm", axes.rows, gradient)


def cosines(axes: Axes, gradients: Gradients) -> Array:
    """Return (B, S) global signed cosines: sum_m <u_m, g_m> / (sqrt(M) norm(g)), over M modules with a direction."""
    dots = np.tensordot(axes.rows, gradients.inner, axes=((1, 2), (0, 2)))
    return ratio(dots, np.sqrt(axes.kept.sum(1))[:, None] * gradients.norm)


def _extract(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> tuple[Array, NDArray[np.bool_]]:
    """Return (combinations, kept) of some draws, by the same steps as `extraction.directions`."""
    num_pairs = first.shape[1]
    chosen, p = np.concatenate([first, second], axis=1), num_pairs
    products = pairs.pairs[:, chosen[:, :, None], chosen[:, None, :]].swapaxes(0, 1)  # (B, M, 2p, 2p)
    # (B, M, p, p): D D^T of every draw and module.
    difference = products[..., :p, :p] - products[..., :p, p:] - products[..., p:, :p] + products[..., p:, p:]
    sizes = np.sqrt(np.maximum(np.diagonal(difference, axis1=-2, axis2=-1), 0.0))  # (B, M, p) |D_p|
    if pairs.method == "mean":
        left = np.full((*difference.shape[:-1], 1), num_pairs**-0.5)  # (B, M, p, 1)
        s = np.sqrt(np.maximum(difference.sum((-2, -1)) / num_pairs, 0.0))[..., None]
        top = s
        size = np.where(s > 0, s, 1.0) * num_pairs**0.5  # |sum_p D_p|
        projections = (difference.sum(-1) / size)[..., None]
        rounding = pairs.eps * np.linalg.norm(sizes, axis=-1, keepdims=True)
    else:
        squares, left = np.linalg.eigh(difference)
        s = np.sqrt(np.maximum(squares[..., ::-1], 0.0))  # eigh sorts in ascending order, an SVD in descending order
        left = left[..., ::-1][..., : pairs.k]  # (B, M, p, k)
        top, s = s[..., :1], s[..., : pairs.k]
        projections = left * s[..., None, :]  # D_p . v_i
        rounding = pairs.eps * np.sqrt(np.minimum(num_pairs, pairs.sizes))[:, None] * top
    # The sign of a singular vector is arbitrary: turn it to the side with more differences. Values within the rounding
    # bounds derived in `_module_directions` and `_mean_direction` give neither a vote nor a direction.
    votes = np.abs(projections) > pairs.eps * sizes[..., None]
    margins = (np.sign(projections) * votes).sum(-2)  # (B, M, k): pairs for minus pairs against
    kept = (s > rounding) & (s >= pairs.tau * top) & (margins != 0)
    kept &= s >= _noise_floor(s, kept, pairs.drop_bottom_frac)[:, None, None]
    signed = np.where(kept, np.sign(margins) / np.where(kept, s, 1.0), 0.0)
    return (left * signed[..., None, :]).swapaxes(-1, -2), kept  # V_i in the differences


def _noise_floor(s: Array, kept: NDArray[np.bool_], fraction: float) -> Array:
    """Return the (B,) quantile, over all modules, of the singular values still kept in each draw."""
    if fraction <= 0:
        return np.zeros(len(s))
    # As numpy's nanquantile, which takes each row by itself.
    values = np.sort(np.where(kept, s, np.inf).reshape(len(s), -1), axis=1)
    place = (np.maximum(kept.reshape(len(s), -1).sum(1), 1) - 1) * fraction
    values[np.isinf(values)] = 0.0  # of a draw that kept none
    below, above = (values[np.arange(len(s)), end(place).astype(np.intp)] for end in (np.floor, np.ceil))
    return below + (above - below) * (place % 1)


def ratio(numerator: Array, denominator: Array, *, otherwise: float = np.nan) -> Array:
    """Return numerator / denominator, or `otherwise` if the denominator is 0."""
    defined = np.broadcast_to(denominator > 0, np.broadcast_shapes(numerator.shape, denominator.shape))
    return np.where(defined, numerator / np.where(denominator > 0, denominator, 1.0), otherwise)
