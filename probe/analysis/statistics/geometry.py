"""Directions and cosines computed from inner products alone, in float64, for many draws of the labels at once.

A direction extracted from pairs is a combination of pair gradients, v = sum_j a_j P_j. With D_p = P[first_p] -
P[second_p] and D D^T = U diag(S^2) U^T, the right singular vectors of D are V_i = sum_p (U_pi / S_i) D_p. So V_i g
needs only the products P_j g, which the run stored, and no gradient.

`extraction.directions` and `probe.step.projection` compute the same quantities from gradients, with torch;
tests/probe/test_geometry.py holds the two together.

Shapes: B draws, M modules, k directions, p pairs of a draw, N pair gradients, S gradients (samples, or totals of
steps), G samples of a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extraction.words import Method
from probe.analysis.statistics.intervals import Array
from replay_pools.base.terminal import report

CHUNK = 1 << 22  # how many numbers the Gram matrices of the draws may hold in memory at once
PART = 1 << 18  # how many numbers the rows of a part of the draws, and components along them, may hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Settings with which directions are extracted from differences of pair gradients; see `extraction.directions`."""

    method: Method  # main directions of the differences, or the one of their mean
    k: int  # directions per module
    tau: float  # a singular value below tau times the module's largest is dropped
    drop_bottom_frac: float  # share of all singular values that is dropped as noise floor
    eps: float  # machine epsilon of the gradients' dtype: what is below it is rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairGram:
    """Inner products of all pair gradients with one another, by module.

    Equal to itself alone: `read_pairs` gives the same object for the same contents, so that what follows from the pairs
    can be remembered.
    """

    modules: tuple[str, ...]
    sizes: NDArray[np.intp]  # (M,) coordinates r of each module
    pairs: Array  # (M, N, N)
    held_out: NDArray[np.bool_]  # (n,) pairs that no direction is extracted from
    extraction: Extraction
    flavours: tuple[str, ...] = ()  # (n,) what kind of hack against what kind of clean completion; empty: not known
    texts: tuple[int, ...] = ()  # (n,) a number for each pair of completions, whatever its prompt; empty: all differ

    @property
    def clusters(self) -> NDArray[np.intp]:
        """(n,) what intervals count as one pair: the same two completions, pasted under several prompts."""
        return np.array(self.texts or range(len(self.held_out)), dtype=np.intp)

    @property
    def most_directions(self) -> int:
        """How many directions a module can have: one of a mean, else as many as pairs and coordinates allow."""
        if self.extraction.method == "mean":
            return 1
        return min(int((~self.held_out).sum()), int(self.sizes.min()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGram:
    """Inner products of the sample gradients g_i of one step with the pair gradients and with one another."""

    inner: Array  # (M, G, N)
    samples: Array  # (M, G, G)
    weights: Mapping[str, Array]  # {condition: (G,)} w_i: the loss multiplies an advantage by it


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionDraws:
    """Directions of every draw and module as combinations of the pair gradients.

    A direction that the extraction drops has kept = False and coefficients 0.
    """

    first: NDArray[np.intp]  # (B, p) rows of the pair gradients that count as hack
    second: NDArray[np.intp]  # (B, p) rows that count as clean
    combinations: Array  # (B, M, k, p) coefficients of the differences P[first] - P[second]
    num_rows: int  # N
    kept: NDArray[np.bool_]  # (B, M, k)

    @property
    def rows(self) -> Array:
        """(B, M, k, N) coefficients of the pair gradients: twice as large as what is stored, or more."""
        return self._spread(self.combinations)

    def axes(self) -> "Axes":
        """The mean axis u = sum_i V_i / sqrt(k) of every draw and module, over the k directions that were kept."""
        count = self.kept.sum(-1)
        return Axes(
            rows=self._spread(self.combinations.sum(2)) / np.sqrt(np.maximum(count, 1))[..., None],
            kept=count > 0,
        )

    def parts(self, num_columns: int) -> Iterator["DirectionDraws"]:
        """The same draws, as many at a time as PART allows of their rows and of so many components along each."""
        _, num_modules, k, _ = self.combinations.shape
        size = max(1, PART // (num_modules * k * (num_columns + self.num_rows)))
        for start in range(0, len(self.first), size):
            chosen = slice(start, start + size)
            yield DirectionDraws(
                first=self.first[chosen],
                second=self.second[chosen],
                combinations=self.combinations[chosen],
                num_rows=self.num_rows,
                kept=self.kept[chosen],
            )

    def _spread(self, combinations: Array) -> Array:
        """(B, ..., N) coefficients of the pair gradients, of (B, ..., p) coefficients of their differences."""
        num_draws, *between, num_pairs = combinations.shape
        by_pair = combinations.reshape(num_draws, -1, num_pairs).swapaxes(1, 2)  # (B, p, ...)
        rows = np.zeros((num_draws, self.num_rows, by_pair.shape[2]))
        draw = np.arange(num_draws)[:, None]
        rows[draw, self.first] = by_pair
        rows[draw, self.second] = -by_pair
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(num_draws, *between, self.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axes:
    """One unit vector u per draw and module, as a combination of the pair gradients; zero where none was kept.

    Hashable, and equal to itself alone.
    """

    rows: Array  # (B, M, N) coefficients of the pair gradients
    kept: NDArray[np.bool_]  # (B, M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """S gradients, known by their inner products with the pair gradients and by their norms."""

    inner: Array  # (M, S, N)
    norms: Array  # (M, S), by module

    @property
    def norm(self) -> Array:
        """(S,) norm over all modules."""
        return np.sqrt(np.square(self.norms).sum(0))


def extract(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> DirectionDraws:
    """v_hack of every draw, as `extraction.directions.extract_directions` makes it from gradients.

    Args:
        pairs: inner products of the pair gradients.
        first: (B, p) row numbers of the pair gradients that count as hack.
        second: (B, p) row numbers of those that count as clean.
    """
    parts = list(_chunks(pairs, first, second))
    return DirectionDraws(
        first=first,
        second=second,
        combinations=np.concatenate([part.combinations for part in parts]),
        num_rows=pairs.pairs.shape[1],
        kept=np.concatenate([part.kept for part in parts]),
    )


def svd_axes(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> Axes:
    """`extract(...).axes()`, without keeping all k directions of all draws in memory."""
    return concatenated([part.axes() for part in _chunks(pairs, first, second)])


def concatenated(parts: Sequence[Axes]) -> Axes:
    """The draws of all parts, one after another."""
    return Axes(rows=np.concatenate([part.rows for part in parts]), kept=np.concatenate([part.kept for part in parts]))


def weighted(step: StepGram, weights: Array) -> Gradients:
    """The sums sum_i weights[s, i] g_i, one for every row of weights (S, G): totals of a step under S weightings."""
    # Matrix products: a search for the best order of a small sum would take longer than the sum.
    squared = np.einsum("msj,sj->ms", np.matmul(weights, step.samples), weights)
    return Gradients(inner=np.matmul(weights, step.inner), norms=np.sqrt(np.maximum(squared, 0.0)))


def samples_of(step: StepGram) -> Gradients:
    """The gradients g_i of the step's samples, without advantages (S = G)."""
    return Gradients(inner=step.inner, norms=np.sqrt(np.diagonal(step.samples, axis1=1, axis2=2)))


def stack(parts: list[Gradients]) -> Gradients:
    """The gradients of several steps one after another."""
    return Gradients(
        inner=np.concatenate([part.inner for part in parts], axis=1),
        norms=np.concatenate([part.norms for part in parts], axis=1),
    )


def held_out_gradients(pairs: PairGram) -> tuple[Gradients, Gradients, Gradients]:
    """The gradients of the H held-out pairs: hack minus clean, hack, clean."""
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


def mean_unit(gradients: Gradients, weights: Array) -> Array:
    """(M, N): the sum of the gradients scaled to norm 1, with weights (S,), as inner products with the pairs."""
    return np.tensordot(gradients.inner, ratio(weights, gradients.norm), axes=(1, 0))


def mean_module_unit(gradients: Gradients, weights: Array) -> Array:
    """(M, N): `mean_unit` with every module's gradient scaled on its own; a module without a gradient counts as 0."""
    return np.einsum("msn,ms->mn", gradients.inner, ratio(weights[None, :], gradients.norms, otherwise=0.0))


def along(axes: Axes, gradient: Array) -> Array:
    """(B,) component of one gradient, known by its inner products (M, N), along the global axis of every draw.

    Means over cosines are such components: mean_s cos_s = <u, mean_s g_s / norm(g_s)>. NaN for a draw without an axis.
    """
    return ratio(np.tensordot(axes.rows, gradient, 2), np.sqrt(axes.kept.sum(1)))


def along_modules(axes: Axes, gradient: Array) -> Array:
    """(B, M) components of one gradient (M, N), module by module; 0 without an axis."""
    return np.einsum("bmn,mn->bm", axes.rows, gradient)


def cosines(axes: Axes, gradients: Gradients) -> Array:
    """(B, S) global signed cosines: sum_m <u_m, g_m> / (sqrt(M) norm(g)), M the modules that keep a direction."""
    dots = np.tensordot(axes.rows, gradients.inner, axes=((1, 2), (0, 2)))
    return ratio(dots, np.sqrt(axes.kept.sum(1))[:, None] * gradients.norm)


def _chunks(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> Iterator[DirectionDraws]:
    """`extract`, as many draws at a time as CHUNK allows: a draw needs M Gram matrices (2p, 2p)."""
    size = max(1, CHUNK // (len(pairs.modules) * 4 * first.shape[1] ** 2))
    for start in range(0, len(first), size):
        yield _extract(pairs, first[start : start + size], second[start : start + size])
        if size < len(first):
            report("draws of the nulls", min(start + size, len(first)), len(first))


def _extract(pairs: PairGram, first: NDArray[np.intp], second: NDArray[np.intp]) -> DirectionDraws:
    """`extract` for one chunk of draws; the steps are those of `extraction.directions`."""
    extraction, num_pairs = pairs.extraction, first.shape[1]
    chosen, p = np.concatenate([first, second], axis=1), num_pairs
    products = pairs.pairs[:, chosen[:, :, None], chosen[:, None, :]].swapaxes(0, 1)  # (B, M, 2p, 2p)
    # (B, M, p, p): D D^T of every draw and module.
    difference = products[..., :p, :p] - products[..., :p, p:] - products[..., p:, :p] + products[..., p:, p:]
    sizes = np.sqrt(np.maximum(np.diagonal(difference, axis1=-2, axis2=-1), 0.0))  # (B, M, p) |D_p|
    if extraction.method == "mean":
        left = np.full((*difference.shape[:-1], 1), num_pairs**-0.5)  # (B, M, p, 1)
        s = np.sqrt(np.maximum(difference.sum((-2, -1)) / num_pairs, 0.0))[..., None]
        top = s
        size = np.where(s > 0, s, 1.0) * num_pairs**0.5  # |sum_p D_p|
        projections = (difference.sum(-1) / size)[..., None]
        rounding = extraction.eps * np.linalg.norm(sizes, axis=-1, keepdims=True)
    else:
        squares, left = np.linalg.eigh(difference)
        s = np.sqrt(np.maximum(squares[..., ::-1], 0.0))  # eigh sorts upwards, an SVD downwards
        left = left[..., ::-1][..., : extraction.k]  # (B, M, p, k)
        top, s = s[..., :1], s[..., : extraction.k]
        projections = left * s[..., None, :]  # D_p . v_i
        rounding = extraction.eps * np.sqrt(np.minimum(num_pairs, pairs.sizes))[:, None] * top
    # The sign of a singular vector is arbitrary: it is turned to where more differences point. What the bounds derived
    # in `_module_directions` and `_mean_direction` call rounding is neither a vote nor a direction.
    votes = np.abs(projections) > extraction.eps * sizes[..., None]
    margins = (np.sign(projections) * votes).sum(-2)  # (B, M, k): pairs for minus pairs against
    kept = (s > rounding) & (s >= extraction.tau * top) & (margins != 0)
    kept &= s >= _noise_floor(s, kept, extraction.drop_bottom_frac)[:, None, None]
    signed = np.where(kept, np.sign(margins) / np.where(kept, s, 1.0), 0.0)
    return DirectionDraws(
        first=first,
        second=second,
        combinations=(left * signed[..., None, :]).swapaxes(-1, -2),  # V_i in the differences
        num_rows=pairs.pairs.shape[1],
        kept=kept,
    )


def _noise_floor(s: Array, kept: NDArray[np.bool_], fraction: float) -> Array:
    """(B,) quantile over all modules of the singular values that were kept so far, draw by draw."""
    if fraction <= 0:
        return np.zeros(len(s))
    values = np.where(kept, s, np.nan).reshape(len(s), -1)
    empty = np.isnan(values).all(1)
    values[empty] = 0.0  # nanquantile warns of a row without a number
    return np.nanquantile(values, fraction, axis=1)


def ratio(numerator: Array, denominator: Array, *, otherwise: float = np.nan) -> Array:
    """numerator / denominator, `otherwise` where the denominator is 0."""
    defined = np.broadcast_to(denominator > 0, np.broadcast_shapes(numerator.shape, denominator.shape))
    return np.where(defined, numerator / np.where(denominator > 0, denominator, 1.0), otherwise)
