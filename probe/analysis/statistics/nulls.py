"""Null distributions of a statistic, and tests against them.

    N1              uniformly random (Haar) directions: a known distribution, no draws    haar_test
    N2              directions from pairs with permuted labels, many draws                label_permutations, null_test
    half-samples    half of the unchanged pairs: a source of variation, not a null        half_samples

N1 is a floor and not the whole null: directions of no-signal pairs share the decaying spectrum of real gradients and
reach larger cosines. N2 has that spectrum; `probe.analysis.statistics.permutation` evaluates it.

The drawing functions label pair gradients as hack or clean. Rows 0 .. n-1 of the pair gradients P are the hack
completions, rows n .. 2n-1 the clean completions of the same pairs. No draw uses held-out pairs. Each function returns
(first, second), each (B, p): the differences of draw b are P[first[b]] - P[second[b]].

Draws depend only on the pairs and the seed, so conditions and arms of a run share them (`redrawn`).
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.geometry import Axes, DirectionDraws, PairGram, cosines, extract, held_out_gradients
from probe.analysis.statistics.intervals import Interval, clopper_pearson, prompt_means

NUM_REDRAWN = 199  # a p of .05 is then known to .015

NORMAL_95 = float(special.ndtri(0.95))
NORMAL_975 = float(special.ndtri(0.975))  # 5% in both tails together
ROUNDING = 1e-5  # relative, from the single precision of the gradients
Rows = NDArray[np.intp]  # (B, p) row numbers of pair gradients


def null_test(
    name: str, statistic: float, draws: ArrayLike, *, centre: float = 0.0, arm: str | None = None
) -> Estimate:
    """Return a statistic with its two-sided Monte-Carlo p = (1 + #) / (B + 1) (Phipson and Smyth 2010).

    p is never 0, and it is uniform when the statistic is one more draw from the null. `null` is the mean of the draws.
    The interval has the centres to which the null can be moved without being rejected: it inverts the test. It ends at
    the bounds of the statistic: -1 and 1 for a cosine, 0 and 1 for an AUROC.
    parts: `sd` and 95th percentile `q95` of the null, and `z` (None if all draws are equal).

    Args:
        name: name of the estimate.
        statistic: the observed value.
        draws: (B,) the same statistic under the null.
        centre: the null's point of symmetry, for both tails: 0 for a signed cosine, .5 for an AUROC.
        arm: arm of the estimate.
    """
    x = np.asarray(draws, dtype=np.float64)
    if not np.isfinite([*x, statistic]).all():
        raise ValueError(f"expected numbers, found {statistic} and {int((~np.isfinite(x)).sum())} of {len(x)} draws")
    mean, sd = float(x.mean()), float(x.std(ddof=1))
    distance = abs(statistic - centre)
    # A draw with the same terms in another order differs by rounding and must count as a tie.
    ties = 1e-12 * max(distance, 1e-300)
    below, above, q95 = (float(end) for end in np.quantile(x, (0.025, 0.975, 0.95)))
    row = Estimate(name=name, value=statistic, n=len(x), unit="draw", arm=arm, null=mean)
    return replace(
        row,
        interval=Interval(
            low=max(2 * centre - 1, statistic - (above - mean)), high=min(1.0, statistic - (below - mean))
        ),
        p=(1 + int(np.sum(np.abs(x - centre) >= distance - ties))) / (len(x) + 1),
        parts={"sd": sd, "q95": q95, "z": (statistic - mean) / sd if sd > 0 else None},
    )


def haar_test(name: str, cosine: float, haar_sd: float, *, arm: str | None = None) -> Estimate:
    """Test a cosine that sums over many modules against Haar directions, with a normal approximation (central limit).

    For a mean cosine of several gradients, `haar_sd` is the mean of theirs. The same random directions measure every
    gradient. Under this null the cosines of gradients that point alike therefore move together, even if the gradients
    themselves are independent: Var mean_s cos_s is (mean_s sd_s)^2 if all are equal, and that is an upper bound for any
    gradients (Cauchy-Schwarz).

    Args:
        name: name of the estimate.
        cosine: the observed value; its null mean is 0.
        haar_sd: its standard deviation under Haar directions, above 0.
        arm: arm of the estimate.
    """
    z, half = cosine / haar_sd, NORMAL_975 * haar_sd
    parts = {"sd": haar_sd, "q95": NORMAL_95 * haar_sd, "z": z}
    interval = Interval(low=max(-1.0, cosine - half), high=min(1.0, cosine + half))
    p = 2.0 * float(special.ndtr(-abs(z)))
    return Estimate(name=name, value=cosine, interval=interval, arm=arm, null=0.0, p=p, parts=parts)


def upper_p(statistic: float, draws: ArrayLike) -> float:
    """Return (1 + draws at least this large) / (B + 1), for draws (B,) of directions of shuffled pairs.

    Few pairs have few permutations, so many draws repeat the true directions up to their signs: they are ties, which
    single-precision rounding would otherwise break.
    """
    draws = np.asarray(draws, dtype=np.float64)
    return (1 + int(np.sum(draws >= statistic - ROUNDING * abs(statistic)))) / (len(draws) + 1)


def true_labels(pairs: PairGram) -> tuple[Rows, Rows]:
    """Return the true labels in the form of a single draw (B = 1)."""
    hack = np.flatnonzero(~pairs.held_out)[None, :]
    return hack, hack + len(pairs.held_out)


def label_permutations(pairs: PairGram, num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Permute labels across all 2n gradients, regardless of label and pair (N2).

    Exact if the gradients are exchangeable. If the completions of a pair share their prompt, a difference between
    gradients of different pairs also contains the difference of their prompts, a noise that the true differences lack.
    """
    hack, clean = true_labels(pairs)
    all_rows = np.concatenate([hack[0], clean[0]])
    shuffled = rng.permuted(np.tile(all_rows, (num_draws, 1)), axis=1)
    return shuffled[:, : hack.shape[1]], shuffled[:, hack.shape[1] :]


def can_be_halved(pairs: PairGram) -> bool:
    """Return True if there are two different extraction pairs; a single pair has no half."""
    return len({*pairs.clusters[~pairs.held_out].tolist()}) > 1


def half_samples(pairs: PairGram, num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Draw half of the n extraction pairs without replacement: not a null, but the dependence on the choice of pairs.

    Pairs of one cluster are drawn together.

    For a statistic that is linear in the pairs, its variance over half-samples equals its sampling variance with all n:
    the variance of a mean of n / 2 of n given values is s^2 / (n / 2) * (1 - 1/2) = s^2 / n (Politis, Romano and Wolf
    1999, chapter 2; McCarthy 1969). A bootstrap draws with replacement and would extract from duplicates, which changes
    the singular vectors.
    """
    rows, num_pairs = np.flatnonzero(~pairs.held_out), len(pairs.held_out)
    names, members = np.unique(pairs.clusters[rows], return_inverse=True)
    if len(names) < len(rows):
        # Draws need equal sizes: a pair that was not drawn is set against itself, a difference of 0.
        places = rng.permuted(np.tile(np.arange(len(names)), (num_draws, 1)), axis=1)
        hack = np.tile(rows, (num_draws, 1))
        return hack, np.where(places[:, members] < len(names) // 2, hack + num_pairs, hack)
    shuffled = rng.permuted(np.tile(rows, (num_draws, 1)), axis=1)
    hack = shuffled[:, : len(rows) // 2]
    return hack, hack + num_pairs


@lru_cache(maxsize=1)
def true_axes(pairs: PairGram) -> Axes:
    """Return the axes of v_hack as a single draw."""
    return extract(pairs, *true_labels(pairs)).axes()


@lru_cache(maxsize=1)
def redrawn(pairs: PairGram, num_draws: int, seed: int) -> tuple[DirectionDraws, DirectionDraws]:
    """Return num_draws directions of half-samples (the choice of pairs) and of permuted labels (the null).

    At least two pairs must not be held out.
    """
    # One generator, in this fixed order.
    rng = np.random.default_rng(seed)
    halves = half_samples(pairs, num_draws, rng)
    permuted = label_permutations(pairs, num_draws, rng)
    return extract(pairs, *halves), extract(pairs, *permuted)


def sign_transfer(pairs: PairGram) -> Estimate | None:
    """Return the share of held-out pairs that point toward the hack, exact binomial; None if no pair has a cosine.

    parts: `num_right` of the n pairs, `mean_cos` of their differences with v_hack.
    """
    differences, _, _ = held_out_gradients(pairs)
    by_pair = cosines(true_axes(pairs), differences)[0]
    known = ~np.isnan(by_pair)
    scores = np.array([*prompt_means(by_pair[known], pairs.clusters[pairs.held_out][known].tolist()).values()])
    n, num_right = len(scores), int((scores > 0).sum())
    if n == 0:
        return None
    parts, interval = {"num_right": num_right, "mean_cos": float(scores.mean())}, clopper_pearson(num_right, n)
    return Estimate(name="pair_sign", value=num_right / n, interval=interval, n=n, unit="pair", null=0.5, parts=parts)
