"""What a statistic is worth against its null: drawn (`null_test`), or the law of Haar directions (N1).

Haar directions are a floor and not the whole null: directions of no-signal pairs share the decaying spectrum of real
gradients and reach larger cosines. The permutation nulls are there for that (`probe.analysis.statistics.permutation`).
They draw which pair gradients count as hack and which as clean. Rows 0 .. n-1 of the pair gradients are the hack
completions, n .. 2n-1 the clean ones of the same pairs. `true_labels`, `label_permutations` (N2), `pair_swaps` and
`placebo_couples` (N3) return (first, second), each (B, p): the differences of draw b are P[first[b]] - P[second[b]].
Held-out pairs take part in none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

NORMAL_95 = float(stats.norm.ppf(0.95))
NORMAL_975 = float(stats.norm.ppf(0.975))  # both tails together: 5%
Rows = NDArray[np.intp]
Alternative = Literal["two-sided", "greater"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """A statistic against draws of the same statistic under a null."""

    num_draws: int  # 0: the law itself, no draws
    mean: float
    sd: float
    q95: float  # 95th percentile of the draws
    z: float | None  # d / sd; None when all draws are equal
    p: float  # (1 + draws at least as far from the centre) / (num_draws + 1)
    d: float  # statistic - mean


@dataclass(frozen=True, slots=True, kw_only=True)
class HaarTest:
    """A cosine against its Haar law."""

    z: float
    p: float

    def null(self, cosine: float) -> NullTest:
        """The same as a test against a null, with the normal law in the place of draws."""
        sd = abs(cosine / self.z) if self.z else 0.0
        return NullTest(num_draws=0, mean=0.0, sd=sd, q95=NORMAL_95 * sd, z=self.z, p=self.p, d=cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class HaarMean:
    """The mean cosine of several gradients against Haar directions.

    One draw of the directions serves every gradient, so that the cosines of gradients that point alike move together
    under this null, even where the gradients themselves are independent. With unit gradients e_s,

        Var mean_s cos_s = Var <U, mean_s e_s> = sum_s sd_s^2 / n^2    e_s orthogonal in every module
                                               = (mean_s sd_s)^2       e_s all equal

    `shared` takes (mean_s sd_s)^2, an upper bound whatever the gradients are (Cauchy-Schwarz); `independent` takes
    sum_s sd_s^2 / n^2, which is right for directions drawn anew for every gradient, and optimistic for one draw.
    """

    n: int
    mean: float
    sd_shared: float
    shared: HaarTest
    sd_independent: float
    independent: HaarTest

    def null(self) -> NullTest:
        """The conservative reading, one draw shared by all gradients, as a test against a null."""
        return self.shared.null(self.mean)


def null_test(statistic: float, draws: ArrayLike, *, centre: float = 0.0) -> NullTest:
    """Two-sided Monte-Carlo test (Phipson and Smyth 2010): never 0, and uniform when the statistic is one more draw.

    Args:
        draws: (B,) the statistic under the null.
        centre: what both tails are measured from, by the symmetry of the null: 0 of a signed cosine, .5 of an AUROC.

    Raises:
        ValueError: a draw or the statistic is not a number.
    """
    x = np.asarray(draws, dtype=np.float64)
    if not np.isfinite(x).all() or not math.isfinite(statistic):
        raise ValueError(f"expected numbers, found {int((~np.isfinite(x)).sum())} of {len(x)} draws without one")
    distance = abs(statistic - centre)
    ties = 1e-12 * max(distance, 1e-300)  # sums in another order are not more extreme
    mean, sd = float(x.mean()), float(x.std(ddof=1))
    return NullTest(
        num_draws=len(x),
        mean=mean,
        sd=sd,
        q95=float(np.quantile(x, 0.95)),
        z=(statistic - mean) / sd if sd > 0 else None,
        p=(1 + int(np.sum(np.abs(x - centre) >= distance - ties))) / (len(x) + 1),
        d=statistic - mean,
    )


def haar_law(r: int) -> Any:
    """The law of the cosine between a fixed vector and a Haar direction of R^r: (1 + c) / 2 ~ Beta((r-1)/2, (r-1)/2).

    Raises:
        ValueError: r < 2 (in one dimension the cosine is +-1).
    """
    if r < 2:
        raise ValueError(f"r: the Haar law of a cosine needs r >= 2 coordinates, found {r}")
    return stats.beta((r - 1) / 2, (r - 1) / 2, loc=-1, scale=2)


def haar_p(cosine: float, r: int, *, alternative: Alternative = "two-sided") -> float:
    """Exact p of one signed cosine in one module with r coordinates."""
    if alternative == "greater":
        return float(haar_law(r).sf(cosine))
    return min(1.0, 2.0 * float(haar_law(r).sf(abs(cosine))))


def haar_test(cosine: float, haar_sd: float, *, alternative: Alternative = "two-sided") -> HaarTest:
    """z and normal p of a cosine with mean 0 and standard deviation `haar_sd`, for a sum over many modules.

    Raises:
        ValueError: `haar_sd` is not positive.
    """
    if not haar_sd > 0:
        raise ValueError(f"haar_sd: expected a positive standard deviation, found {haar_sd}")
    z = cosine / haar_sd
    tail = float(stats.norm.sf(z if alternative == "greater" else abs(z)))
    return HaarTest(z=z, p=tail if alternative == "greater" else 2.0 * tail)


def haar_mean(cosines: Sequence[float], haar_sds: Sequence[float]) -> HaarMean | None:
    """The mean of the cosines against both readings of the Haar null; None without cosines."""
    n = len(cosines)
    if n == 0:
        return None
    mean = math.fsum(cosines) / n
    shared = math.fsum(haar_sds) / n
    independent = math.sqrt(math.fsum(sd * sd for sd in haar_sds)) / n
    return HaarMean(
        n=n,
        mean=mean,
        sd_shared=shared,
        shared=haar_test(mean, shared),
        sd_independent=independent,
        independent=haar_test(mean, independent),
    )


def true_labels(held_out: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The labels as they are: one draw."""
    hack = np.flatnonzero(~held_out)[None, :]
    return hack, hack + len(held_out)


def label_permutations(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N2: labels permuted across the 2n gradients, hack and clean and pairs alike.

    Exact where the gradients are exchangeable. Where the completions of a pair share their prompt, the differences of
    a permuted draw contain prompts as well, a noise that the true differences have not: `pair_swaps` is exact there.
    """
    hack, clean = true_labels(held_out)
    both = np.concatenate([hack[0], clean[0]])
    shuffled = rng.permuted(np.tile(both, (num_draws, 1)), axis=1)
    return shuffled[:, : hack.shape[1]], shuffled[:, hack.shape[1] :]


def pair_swaps(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Hack and clean swapped within random pairs: exact for the direction of the MEAN difference.

    (The singular vectors of D do not change when rows of D change sign, so that this null is void for them.)
    """
    hack, clean = true_labels(held_out)
    swap = rng.random((num_draws, hack.shape[1])) < 0.5
    return np.where(swap, clean, hack), np.where(swap, hack, clean)


def placebo_couples(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N3: clean against clean of different pairs, in random couples; every gradient is used at most once."""
    _, clean = true_labels(held_out)
    couples = clean.shape[1] // 2
    shuffled = rng.permuted(np.tile(clean[0], (num_draws, 1)), axis=1)
    return shuffled[:, :couples], shuffled[:, couples : 2 * couples]
