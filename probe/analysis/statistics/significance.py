"""Significance tests over clusters, the effect of a label given covariates, and detectable effects.

The prompt is the unit of every test: its samples are correlated, so a test takes one number per prompt. Student's
interval and the sign-flip test assume values symmetric about their mean; for lognormal values a 5% test of mean zero
rejects 15% at n = 8 and at 17, and 11% at 40.

`effects_by_prompt` is the effect of a label with the other labels held constant: regression with fixed prompt effects,

    value = effect * label + covariates + prompt

Centring every column within its prompt removes the prompt effects. Fixed effects need no assumption about their
distribution, unlike the random effects of a mixed model. A step has one prompt, so they absorb the step effects too.
Shapes: B responses at once, rows of samples, C prompts.

`mde` uses the power of t-tests with equal variances.
"""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from probe.analysis.statistics.intervals import Array, centred, cluster_numbers
from probe.analysis.statistics.thresholds import ALPHA, POWER

COLLINEAR = 1e-8  # minimum share of an independent column that the other columns leave unexplained

EXACT_SIGN_FLIPS = 16  # enumerate up to 2^16 sign patterns; sample them for more differences
NUM_DRAWS = 9999
CHUNK = 1 << 20  # signs in memory at once


def sign_flip_test(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> float | None:
    """Test whether the differences are symmetric about zero, two-sided: |mean| against |mean| under random signs.

    For symmetric differences this tests mean zero. None without differences.

    n <= 16: p = share of the 2^n sign patterns whose |mean| is at least the observed one, so never below 2 / 2^n.
    Otherwise p = (1 + #) / (num_draws + 1) over seeded draws (Phipson and Smyth 2010).

    Args:
        differences: (n,) one independent difference per cluster.
        num_draws: sampled sign patterns if enumeration is too large.
        seed: seed of the sampled patterns.
    """
    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    if n == 0:
        return None
    # A sum with the same terms in another order differs by rounding and must count as a tie.
    observed = abs(d.sum()) - 1e-12 * np.abs(d).sum()
    if n <= EXACT_SIGN_FLIPS:
        sums = np.zeros(1)
        for x in d:
            sums = np.concatenate([sums + x, sums - x])
        return float(np.mean(np.abs(sums) >= observed))
    rng, count, size = np.random.default_rng(seed), 0, max(1, CHUNK // n)
    for start in range(0, num_draws, size):
        positive = rng.integers(0, 2, (min(size, num_draws - start), n))
        count += int(np.sum(np.abs(2 * (positive @ d) - d.sum()) >= observed))
    return (1 + count) / (num_draws + 1)


def effects_by_prompt(
    responses: Array, label: Sequence[bool], covariates: Mapping[str, Sequence[float]], prompts: Sequence[Hashable]
) -> Array | None:
    """Fit the model to B responses by least squares, and split the adjusted effect of the label over the prompts.

    With w the weights that give the effect as a sum over rows, and e the residuals of the fit, prompt c holds
    effect + C sum_{i in c} w_i e_i. The variance of this mean is the sandwich estimator, robust to correlation within
    prompts (Liang and Zeger 1986), times C / (C - 1).

    Args:
        responses: (B, rows).
        label: (rows,) the label with the effect of interest.
        covariates: {name: (rows,)}, added in this order. Columns that are constant within prompts, or combinations of
            earlier columns, are left out.
        prompts: (rows,) the prompt of each row; prompts with one side only still inform the covariates.

    Returns:
        (B, C): a response's mean over prompts is its effect, and the spread its cluster-robust variance. None if no
        prompt holds both labels, or if the covariates determine the label within prompts.
    """
    member = cluster_numbers(prompts)
    num_prompts = len(set(prompts))
    target = centred(np.asarray(label, dtype=np.float64), member)
    kept: list[Array] = []  # unit norm, centred, linearly independent
    for column in covariates.values():
        within = centred(np.asarray(column, dtype=np.float64), member)
        if _is_new(within, kept):
            kept.append(within / np.linalg.norm(within))
    if not np.any(target) or not _is_new(target, kept):
        return None
    y = responses - _prompt_sums(responses, member)[:, member] / np.bincount(member)[member]
    X = np.column_stack([target, *kept])  # (rows, p)
    coefficients = np.linalg.lstsq(X, y.T, rcond=None)[0]  # (p, B)
    others = X[:, 1:]
    unexplained = target - others @ np.linalg.lstsq(others, target, rcond=None)[0] if kept else target
    size = float(unexplained @ unexplained)
    residuals = y - (X @ coefficients).T
    return coefficients[0][:, None] + num_prompts * _prompt_sums(residuals * (unexplained / size), member)


def _prompt_sums(values: Array, member: NDArray[np.intp]) -> Array:
    """Return (B, C) sums of values (B, rows) over each prompt's rows, without a rows-by-prompts matrix."""
    order = np.argsort(member, kind="stable")
    starts = np.searchsorted(member[order], np.arange(int(member.max()) + 1))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _is_new(column: Array, kept: Sequence[Array]) -> bool:
    """Return True if a centred column is neither zero nor a combination of the kept columns."""
    size = np.linalg.norm(column)
    if size <= COLLINEAR or not kept:
        return bool(size > COLLINEAR)
    basis = np.column_stack(kept)
    residual = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0]
    return bool(np.linalg.norm(residual) > COLLINEAR * size)


def mde(sd: float, n: int) -> float:
    """Return the minimum detectable effect: the difference of means that a two-sided t-test at ALPHA finds with POWER.

    n independent units in each of two groups:  ncp = effect / (sd sqrt(2 / n)), df = 2 n - 2
    power = P(T > t_crit), T noncentral t (Cohen 1988, chapter 2; Julious 2010, chapters 3 and 4).

    `mde(0.15, 3)` is .46: with three runs per arm, a hack rate with standard deviation .15 between seeds has to move by
    .46 to be found. Infinite for n = 1, since one unit shows no variance.

    Args:
        sd: standard deviation of one group between units.
        n: units (seeds, prompts) in each group.
    """
    if n == 1:
        return math.inf
    df = 2 * n - 2
    return sd * math.sqrt(2 / n) * float(special.nctdtrinc(df, 1 - POWER, special.stdtrit(df, 1 - ALPHA / 2)))
