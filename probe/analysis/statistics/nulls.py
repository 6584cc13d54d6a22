"""Null distributions of a statistic, and tests against them.

    N1                  uniformly random (Haar) directions: a known law, no draws      haar_test
    N2, N3              directions extracted from relabelled pairs, drawn many times   label_permutations,
                        and compared with `null_test`                                  placebo_couples
    half-samples        of the pairs as they are: no null, a source of variation       half_samples

N1 is a floor and not the whole null: directions of no-signal pairs share the decaying spectrum of real gradients and
reach larger cosines. The drawn nulls have that spectrum; `probe.analysis.statistics.permutation` evaluates them.

The drawing functions say which pair gradients count as hack and which as clean. Rows 0 .. n-1 of the pair gradients P
are the hack completions, rows n .. 2n-1 the clean ones of the same pairs. Held-out pairs take part in no draw. Each
function returns (first, second), each (B, p): the differences of draw b are P[first[b]] - P[second[b]].

What is drawn follows from the pairs and the seed alone, so conditions and arms of a run share it: `null_axes` has
single axes in many draws (v_hack, N2, N3), `redrawn` all k directions (v_hack, half-samples, N2). `sign_transfer` is
the share of held-out pairs, which v_hack was not extracted from, whose difference points hack-ward.

To add a null of this kind: write such a function here, and draw it in `null_axes`, after the draws that are there.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from probe.analysis.statistics.geometry import (
    Axes,
    DirectionDraws,
    PairGram,
    concatenated,
    cosines,
    extract,
    held_out_gradients,
    svd_axes,
)
from probe.analysis.statistics.intervals import Interval, clopper_pearson, prompt_means

NUM_REDRAWN = 199

NORMAL_95 = float(stats.norm.ppf(0.95))
NORMAL_975 = float(stats.norm.ppf(0.975))  # both tails together: 5%
ROUNDING = 1e-5  # of a share, by the single precision of the gradients
Rows = NDArray[np.intp]  # (B, p) row numbers of pair gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """A statistic against draws of the same statistic under a null."""

    num_draws: int  # 0: the normal law itself, no draws
    mean: float
    sd: float
    q95: float  # 95th percentile of the draws
    z: float | None  # d / sd; None when all draws are equal
    p: float  # (1 + draws at least as far from the centre) / (num_draws + 1)
    d: float  # statistic - mean


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


def haar_test(cosine: float, haar_sd: float) -> NullTest:
    """A cosine that sums over many modules against Haar directions: the central limit stands in for the exact law.

    Of a mean cosine of several gradients, `haar_sd` is the mean of theirs. The same random directions measure every
    gradient. So under this null the cosines of gradients that point alike move together, even where the gradients
    themselves are independent: Var mean_s cos_s is (mean_s sd_s)^2 where all are equal, an upper bound whatever the
    gradients are (Cauchy-Schwarz).

    Args:
        cosine: the observed value; its null mean is 0.
        haar_sd: its standard deviation under Haar directions, above 0.
    """
    z = cosine / haar_sd
    p = 2.0 * float(stats.norm.sf(abs(z)))
    return NullTest(num_draws=0, mean=0.0, sd=haar_sd, q95=NORMAL_95 * haar_sd, z=z, p=p, d=cosine)


def true_labels(pairs: PairGram) -> tuple[Rows, Rows]:
    """The labels as they are, in the form of a single draw (B = 1)."""
    hack = np.flatnonzero(~pairs.held_out)[None, :]
    return hack, hack + len(pairs.held_out)


def label_permutations(pairs: PairGram, num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N2: labels permuted across all 2n gradients, regardless of label and pair.

    Exact where the gradients are exchangeable. Where the completions of a pair share their prompt, a difference between
    gradients of different pairs also holds the difference of their prompts, a noise that the true differences do not
    have.
    """
    hack, clean = true_labels(pairs)
    all_rows = np.concatenate([hack[0], clean[0]])
    shuffled = rng.permuted(np.tile(all_rows, (num_draws, 1)), axis=1)
    return shuffled[:, : hack.shape[1]], shuffled[:, hack.shape[1] :]


def placebo_couples(pairs: PairGram, num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N3: clean against clean of different pairs, in random couples; every gradient is used at most once."""
    _, clean = true_labels(pairs)
    num_couples = clean.shape[1] // 2
    shuffled = rng.permuted(np.tile(clean[0], (num_draws, 1)), axis=1)
    return shuffled[:, :num_couples], shuffled[:, num_couples : 2 * num_couples]


def can_be_halved(pairs: PairGram) -> bool:
    """Whether there are two different pairs to extract from: of one alone no half can be left out."""
    return len({*pairs.clusters[~pairs.held_out].tolist()}) > 1


def half_samples(pairs: PairGram, num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Half of the n extraction pairs, drawn without replacement: no null, but how much hangs on which pairs they were.

    Pairs of one cluster are drawn together.

    For a statistic that is linear in the pairs, its variance over half-samples equals its sampling variance with all n:
    the variance of a mean of n / 2 of n given values is s^2 / (n / 2) * (1 - 1/2) = s^2 / n (Politis, Romano and Wolf
    1999, chapter 2; McCarthy 1969). Drawing with replacement, as a bootstrap does, would extract from duplicates, whose
    singular vectors are others.
    """
    rows, num_pairs = np.flatnonzero(~pairs.held_out), len(pairs.held_out)
    names, members = np.unique(pairs.clusters[rows], return_inverse=True)
    if len(names) < len(rows):
        # As many pairs in every draw: one that was not drawn stands against itself, which is no difference.
        places = rng.permuted(np.tile(np.arange(len(names)), (num_draws, 1)), axis=1)
        hack = np.tile(rows, (num_draws, 1))
        return hack, np.where(places[:, members] < len(names) // 2, hack + num_pairs, hack)
    shuffled = rng.permuted(np.tile(rows, (num_draws, 1)), axis=1)
    hack = shuffled[:, : len(rows) // 2]
    return hack, hack + num_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class NullAxes:
    """Axes of the directions of relabelled pairs."""

    permuted: Axes  # N2: labels permuted across all pairs
    couples: Axes | None  # N3: clean against clean; None where there are fewer couples than k
    drawn: np.random.Generator  # as the draws above left it: who goes on with it takes a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """Directions of the run's pairs as they are (one draw), and of B draws of each kind."""

    truth: DirectionDraws
    halves: DirectionDraws  # of half-samples: how much a statistic hangs on the pairs
    permuted: DirectionDraws  # of permuted labels: what it reads without a signal
    axes: Axes  # (1 + B) of v_hack itself, then of its half-samples


@lru_cache(maxsize=1)
def true_axes(pairs: PairGram) -> Axes:
    """The axes of v_hack as a single draw."""
    return svd_axes(pairs, *true_labels(pairs))


def null_axes(pairs: PairGram, num_draws: int, seed: int) -> NullAxes:
    """Draw the nulls of directions, B = num_draws of each."""
    # All nulls share one generator: another order of the draws would change every p-value of a stored analysis. A new
    # null is drawn after those that are here.
    rng = np.random.default_rng(seed)
    permuted = label_permutations(pairs, num_draws, rng)
    couples = placebo_couples(pairs, num_draws, rng)
    enough = couples[0].shape[1] >= pairs.extraction.k  # fewer couples than k cannot give k directions
    return NullAxes(
        permuted=svd_axes(pairs, *permuted),
        couples=svd_axes(pairs, *couples) if enough else None,
        drawn=rng,
    )


@lru_cache(maxsize=1)
def redrawn(pairs: PairGram, num_draws: int, seed: int) -> Redrawn:
    """Draw B = num_draws of each kind. The pairs must be at least two beside those that are held out."""
    # One generator in this order, as above.
    rng = np.random.default_rng(seed)
    halves = half_samples(pairs, num_draws, rng)
    permuted = label_permutations(pairs, num_draws, rng)
    truth, halved = extract(pairs, *true_labels(pairs)), extract(pairs, *halves)
    return Redrawn(
        truth=truth,
        halves=halved,
        permuted=extract(pairs, *permuted),
        axes=concatenated([truth.axes(), halved.axes()]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTransfer:
    """How many held-out pairs have a difference that points hack-ward."""

    num_pairs: int
    num_right: int
    accuracy: float  # num_right / num_pairs
    interval: Interval  # 95% of the accuracy, exact binomial (Clopper-Pearson)
    mean_cos: float  # of the differences with v_hack


def sign_transfer(pairs: PairGram) -> SignTransfer | None:
    """How many differences of held-out pairs have a positive cosine with v_hack; None if none has a cosine at all."""
    differences, _, _ = held_out_gradients(pairs)
    scores = cosines(true_axes(pairs), differences)[0]
    known = ~np.isnan(scores)
    scores = np.array([*prompt_means(scores[known], pairs.clusters[pairs.held_out][known].tolist()).values()])
    if len(scores) == 0:
        return None
    num_right = int((scores > 0).sum())
    return SignTransfer(
        num_pairs=len(scores),
        num_right=num_right,
        accuracy=num_right / len(scores),
        interval=clopper_pearson(num_right, len(scores)),
        mean_cos=float(scores.mean()),
    )


def transfer_nulls(pairs: PairGram, *, num_draws: int) -> dict[str, dict[str, NullTest]]:
    """Test `sign_transfer` against N2 (labels permuted across pairs) and N3 (clean-versus-clean couples).

    Returns:
        {"N2": {"accuracy": ..., "mean_cos": ...}, "N3": ...}. Empty without a held-out pair that has a cosine; N3 is
        left out where there are fewer couples than k.
    """
    observed = sign_transfer(pairs)
    if observed is None:
        return {}
    differences, _, _ = held_out_gradients(pairs)
    drawn, nulls = null_axes(pairs, num_draws, 0), {}
    for name, axes in (("N2", drawn.permuted), ("N3", drawn.couples)):
        if axes is None:
            continue
        scores = cosines(axes, differences)
        scores = scores[~np.isnan(scores).all(1)]  # a draw that keeps no direction has none
        if len(scores) > 1:
            accuracy = (scores > 0).sum(1) / (~np.isnan(scores)).sum(1)
            nulls[name] = {
                "accuracy": null_test(observed.accuracy, accuracy, centre=0.5),
                "mean_cos": null_test(observed.mean_cos, np.nanmean(scores, axis=1)),
            }
    return nulls
