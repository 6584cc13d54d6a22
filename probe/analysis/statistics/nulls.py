"""Null distributions of a statistic, and tests against them.

    N1                  uniformly random (Haar) directions: a known law, no draws      haar_test, haar_mean
    N2, N3, pair swaps  directions extracted from relabelled pairs, drawn many times   label_permutations,
                        and compared with `null_test`                                  placebo_couples, pair_swaps
    half-samples        of the pairs as they are: no null, a source of variation       half_samples

N1 is a floor and not the whole null: directions of no-signal pairs share the decaying spectrum of real gradients and
reach larger cosines. The drawn nulls have that spectrum; `probe.analysis.statistics.permutation` evaluates them.

The drawing functions say which pair gradients count as hack and which as clean. Rows 0 .. n-1 of the pair gradients P
are the hack completions, rows n .. 2n-1 the clean ones of the same pairs. Each function takes held_out (n,), the pairs
that take part in no draw, and returns (first, second), each (B, p): the differences of draw b are
P[first[b]] - P[second[b]].

To add a null of this kind: write such a function here, and draw it in `permutation.permutation_nulls`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

NORMAL_95 = float(stats.norm.ppf(0.95))
NORMAL_975 = float(stats.norm.ppf(0.975))  # both tails together: 5%
ROUNDING = 1e-5  # of a share, by the single precision of the gradients
Rows = NDArray[np.intp]  # (B, p) row numbers of pair gradients


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
    """A cosine against the law of cosines with Haar directions (mean 0)."""

    z: float
    p: float

    def null(self, cosine: float) -> NullTest:
        """The same result as a `NullTest` of `cosine`, with the normal law in the place of draws."""
        sd = abs(cosine / self.z) if self.z else 0.0
        return NullTest(num_draws=0, mean=0.0, sd=sd, q95=NORMAL_95 * sd, z=self.z, p=self.p, d=cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class HaarMean:
    """The mean cosine of several gradients against Haar directions.

    The same random directions measure every gradient. So under this null the cosines of gradients that point alike
    move together, even where the gradients themselves are independent. With unit gradients e_s,

        Var mean_s cos_s = Var <U, mean_s e_s> = sum_s sd_s^2 / n^2    e_s orthogonal in every module
                                               = (mean_s sd_s)^2       e_s all equal

    `shared` takes (mean_s sd_s)^2, an upper bound whatever the gradients are (Cauchy-Schwarz); `independent` takes
    sum_s sd_s^2 / n^2, which is right when every gradient has directions of its own, and optimistic otherwise.
    """

    mean: float
    sd_shared: float
    shared: HaarTest
    independent: HaarTest

    def null(self) -> NullTest:
        """The conservative reading (`shared`) as a `NullTest` of the mean."""
        return self.shared.null(self.mean)


def null_test(statistic: float, draws: ArrayLike, *, centre: float = 0.0) -> NullTest:
    """Two-sided Monte-Carlo test, p = (1 + #) / (B + 1) (Phipson and Smyth 2010).

    p is never 0, and it is uniform when the statistic is one more draw from the null.

    Args:
        statistic: the observed value.
        draws: (B,) the same statistic under the null.
        centre: where the null is symmetric, which both tails are measured from: 0 for a signed cosine, .5 for an AUROC.

    Raises:
        ValueError: a draw or the statistic is not a number.
    """
    x = np.asarray(draws, dtype=np.float64)
    if not np.isfinite(x).all() or not math.isfinite(statistic):
        raise ValueError(f"expected numbers, found {int((~np.isfinite(x)).sum())} of {len(x)} draws without one")
    distance = abs(statistic - centre)
    # The same sum in another order differs by rounding: such a draw must count as a tie.
    ties = 1e-12 * max(distance, 1e-300)
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


def upper_p(statistic: float, draws: ArrayLike) -> float:
    """(1 + draws that are as large or larger) / (B + 1), for draws (B,) of directions of permuted pairs.

    Few pairs have few permutations, and many draws are the true directions again, up to their signs: they are ties,
    which rounding in single precision would otherwise break.
    """
    draws = np.asarray(draws, dtype=np.float64)
    return (1 + int(np.sum(draws >= statistic - ROUNDING * abs(statistic)))) / (len(draws) + 1)


def haar_test(cosine: float, haar_sd: float) -> HaarTest:
    """z and normal p of a cosine that sums over many modules (the central limit stands in for the exact law).

    Args:
        cosine: the observed value; its null mean is 0.
        haar_sd: its standard deviation under Haar directions.

    Raises:
        ValueError: `haar_sd` is not positive.
    """
    if not haar_sd > 0:
        raise ValueError(f"haar_sd: expected a positive standard deviation, found {haar_sd}")
    z = cosine / haar_sd
    return HaarTest(z=z, p=2.0 * float(stats.norm.sf(abs(z))))


def haar_mean(cosines: Sequence[float], haar_sds: Sequence[float]) -> HaarMean | None:
    """Test the mean of the cosines, given their standard deviations under Haar directions; None without cosines."""
    n = len(cosines)
    if n == 0:
        return None
    mean = math.fsum(cosines) / n
    shared = math.fsum(haar_sds) / n
    independent = math.sqrt(math.fsum(sd * sd for sd in haar_sds)) / n
    return HaarMean(
        mean=mean,
        sd_shared=shared,
        shared=haar_test(mean, shared),
        independent=haar_test(mean, independent),
    )


def true_labels(held_out: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The labels as they are, in the form of a single draw (B = 1)."""
    hack = np.flatnonzero(~held_out)[None, :]
    return hack, hack + len(held_out)


def label_permutations(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N2: labels permuted across all 2n gradients, regardless of label and pair.

    Exact where the gradients are exchangeable. Where the completions of a pair share their prompt, a difference between
    gradients of different pairs also holds the difference of their prompts, a noise that the true differences do not
    have: `pair_swaps` is exact there.
    """
    hack, clean = true_labels(held_out)
    all_rows = np.concatenate([hack[0], clean[0]])
    shuffled = rng.permuted(np.tile(all_rows, (num_draws, 1)), axis=1)
    return shuffled[:, : hack.shape[1]], shuffled[:, hack.shape[1] :]


def pair_swaps(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Hack and clean swapped within random pairs: exact for the direction of the MEAN difference.

    Of no use for SVD directions: the singular vectors of D do not change when rows of D change sign.
    """
    hack, clean = true_labels(held_out)
    swap = rng.random((num_draws, hack.shape[1])) < 0.5
    return np.where(swap, clean, hack), np.where(swap, hack, clean)


def placebo_couples(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N3: clean against clean of different pairs, in random couples; every gradient is used at most once."""
    _, clean = true_labels(held_out)
    num_couples = clean.shape[1] // 2
    shuffled = rng.permuted(np.tile(clean[0], (num_draws, 1)), axis=1)
    return shuffled[:, :num_couples], shuffled[:, num_couples : 2 * num_couples]


def can_be_halved(held_out: NDArray[np.bool_]) -> bool:
    """Whether there are two pairs to extract from: of one alone no half can be left out."""
    return int((~held_out).sum()) > 1


def half_samples(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Half of the n extraction pairs, drawn without replacement: no null, but how much hangs on which pairs they were.

    For a statistic that is linear in the pairs, its variance over half-samples equals its sampling variance with all n:
    the variance of a mean of n / 2 of n given values is s^2 / (n / 2) * (1 - 1/2) = s^2 / n (Politis, Romano and Wolf
    1999, chapter 2; McCarthy 1969). Drawing with replacement, as a bootstrap does, would extract from duplicates, whose
    singular vectors are others.
    """
    pairs = np.flatnonzero(~held_out)
    shuffled = rng.permuted(np.tile(pairs, (num_draws, 1)), axis=1)
    hack = shuffled[:, : len(pairs) // 2]
    return hack, hack + len(held_out)
