"""Overlap: the presence of clean answers to a hack's prompt with similar scores, for scores without a direction.

A contrast "at the same length" needs hacks and clean answers of the same length. If all hacks are longer, a regression
on length extrapolates to lengths that one side lacks, and its residual carries no information there. Every score
therefore counts the hacks with clean answers to the SAME prompt on both sides of them, or one within a caliper of .2
standard deviations within prompts (Austin 2011, Pharmaceutical Statistics 10: matches within it leave 1% of the bias).

The count grows with the number of clean answers of a prompt. It is therefore divided by the count expected from labels
shuffled within prompts, in closed form: a row lacks overlap if all m clean rows among the N - 1 others lie beyond the
caliper on one side,

    by chance = mean of 1 - (C(a, m) + C(b, m)) / C(N - 1, m),    a below and b above the caliper

For normal scores d standard deviations apart the ratio is 1, .8, .4 and .1 at d = 0, 1, 2 and 3, for groups of any
size. Scores that overlap one by one may still separate hacks together, so their best linear combination is a score too.
Its weights for a prompt are fitted on the other prompts, since weights fitted on the same rows separate noise.

The ratio is a ratio of means over prompts, with Fieller's interval. The variance of the count is at least binomial at
the bound, since a few prompts may all have a count of 0. For the error rates of the rule, see spec/guide/numbers.md.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import (
    Array,
    centred,
    cluster_numbers,
    deciding_count,
    fieller_interval,
    mean_covariance,
    rows_by_cluster,
)
from probe.analysis.statistics.thresholds import MIN_OVERLAP

CALIPER = 0.2
TOGETHER = "together"


def is_lacking(overlap: Estimate) -> bool:
    """Return True if the overlap is shown to be too small: less than MIN_OVERLAP of chance."""
    return overlap.high < MIN_OVERLAP


def may_lack(overlap: Estimate) -> bool:
    """Return True if the overlap is too small, while its interval includes enough."""
    parts = overlap.parts
    return parts["share"] <= MIN_OVERLAP * parts["by_chance"] and not is_lacking(overlap)


def may_not_suffice(overlap: Estimate) -> bool:
    """Return True if the overlap is large enough, while its interval includes too little."""
    return overlap.is_bounded and overlap.low < MIN_OVERLAP and not (may_lack(overlap) or is_lacking(overlap))


def overlaps(
    scores: Mapping[str, Sequence[float]], label: Sequence[bool], prompts: Sequence[Hashable]
) -> list[Estimate]:
    """Return one estimate per score, then TOGETHER; empty if no prompt holds both sides.

    The value is the share of hacks with clean answers on both sides or within the caliper, over the share by chance.
    parts: `num_hacks` in prompts that hold both sides, `share`, `by_chance`, and `prompts_needed` to show a ratio like
    this below MIN_OVERLAP (None: more than MAX_PROMPTS).

    Args:
        scores: {name: (rows,)}.
        label: (rows,) True for hacks.
        prompts: (rows,) the prompt of each row.
    """
    member, hacked = cluster_numbers(prompts), np.asarray(label, dtype=bool)
    rows = np.isin(member, np.intersect1d(member[hacked], member[~hacked]))
    if not rows.any():
        return []
    member, hacked = cluster_numbers(member[rows].tolist()), hacked[rows]
    columns = {name: np.asarray(values, dtype=np.float64)[rows] for name, values in scores.items()}
    columns[TOGETHER] = _combined([*columns.values()], hacked, member)
    return [_overlap(name, column, hacked, member) for name, column in columns.items()]


def _combined(columns: Sequence[Array], hacked: NDArray[np.bool_], member: NDArray[np.intp]) -> Array:
    """Return the (rows,) combination of scores that best predicts the label, least squares fitted on the other prompts.

    Each prompt's combination has standard deviation 1 over the other prompts, so that one caliper fits all.
    """
    matrix = np.stack([centred(column, member) for column in columns], axis=1)
    sizes = np.linalg.norm(matrix, axis=0)
    matrix /= np.where(sizes > 0, sizes, 1.0)
    target = centred(hacked.astype(np.float64), member)
    groups = rows_by_cluster(member)
    products = np.stack([matrix[rows].T @ matrix[rows] for rows in groups])  # (prompts, scores, scores)
    followed = np.stack([matrix[rows].T @ target[rows] for rows in groups])  # (prompts, scores)
    others = products.sum(0) - products
    weights = np.einsum("pij,pj->pi", np.linalg.pinv(others, hermitian=True), followed.sum(0) - followed)
    variance = np.einsum("pi,pij,pj->p", weights, others, weights)
    weights /= np.sqrt(np.where(variance > 0, variance, 1.0))[:, None]
    return np.einsum("ri,ri->r", matrix, weights[member])


def _overlap(name: str, column: Array, hacked: NDArray[np.bool_], member: NDArray[np.intp]) -> Estimate:
    groups = rows_by_cluster(member)
    spread = np.sqrt(np.square(centred(column, member)).sum() / max(len(column) - len(groups), 1))
    # Equal scores are within any caliper, despite rounding.
    caliper = CALIPER * spread + 1e-9 * np.abs(column).max()
    counts = np.array([_counts(column[rows], hacked[rows], caliper) for rows in groups])  # (prompts, 3)
    num_hacks, alike, by_chance = counts.sum(0).tolist()
    expected = MIN_OVERLAP * counts[:, 2]  # hacks with overlap, at the bound
    binomial = (expected * (1 - expected / counts[:, 0])).sum() / len(groups) ** 2
    covariance = mean_covariance(counts[:, 1:]) if len(groups) > 1 else np.zeros((2, 2))
    covariance[0, 0] = max(covariance[0, 0], binomial)
    numerator, denominator = alike / len(groups), by_chance / len(groups)
    interval = fieller_interval(numerator, denominator, [covariance], df=len(groups) - 1)
    if interval is not None:  # a ratio of counts is not negative
        interval = replace(interval, low=max(interval.low, 0.0))
    # At the bound the difference numerator - MIN_OVERLAP denominator is 0.
    at_bound = np.array([1.0, -MIN_OVERLAP])
    variance = float(at_bound @ covariance @ at_bound) * len(groups)
    parts = {"num_hacks": int(num_hacks), "share": alike / num_hacks, "by_chance": by_chance / num_hacks}
    parts["prompts_needed"] = deciding_count(numerator - MIN_OVERLAP * denominator, variance)
    value = numerator / denominator if denominator else None
    row = Estimate(name=name, value=value, interval=interval, n=len(groups), unit="prompt", null=1.0, parts=parts)
    return row if interval else replace(row, why="too few prompts for an interval")


def _counts(values: Array, hacks: NDArray[np.bool_], caliper: float) -> tuple[int, int, float]:
    """Return one prompt's number of hacks, of hacks with overlap, and the number with overlap by chance."""
    above = values[None, :] > values[:, None] + caliper  # (row, other)
    below = values[None, :] < values[:, None] - caliper
    cut_off = above[:, ~hacks].all(1) | below[:, ~hacks].all(1)
    num_clean = int((~hacks).sum())
    missed = _all_among(above.sum(1), num_clean, len(values)) + _all_among(below.sum(1), num_clean, len(values))
    return int(hacks.sum()), int((hacks & ~cut_off).sum()), float(hacks.sum() * (1 - missed).mean())


def _all_among(counts: NDArray[np.intp], num_clean: int, size: int) -> Array:
    """Return C(count, m) / C(N - 1, m): the probability that all m clean rows, of N - 1 others, are among `count`."""
    possible = np.maximum(counts, num_clean)
    log = gammaln(possible + 1) - gammaln(possible - num_clean + 1) - gammaln(size) + gammaln(size - num_clean)
    return np.where(counts >= num_clean, np.exp(log), 0.0)
