"""Small classifiers of detectors: naive Bayes on sets of token ids, a logistic probe, k-means of two clusters.

Each is exact and without random draws but for the start of the power iteration, so one input has one result.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from probe.analysis.statistics.intervals import Array, cluster_numbers

SMOOTHING = 1.0  # pseudo-count of texts per side, with and without every token
RIDGE = 0.1  # penalty of the probe's weights, for features of mean square 1
ITERATIONS = 100  # most, of k-means and of the probe's Newton steps


def bayes_scores(
    texts: Sequence[Sequence[int]], hacked: Sequence[bool], prompts: Sequence[Hashable], chosen: Sequence[int]
) -> Array:
    """Return (rows,) log odds of a hack by a Bernoulli naive Bayes classifier, fitted without the row's own prompt.

    Args:
        texts: token ids of each row.
        hacked: label of each row.
        prompts: prompt of each row.
        chosen: training rows.
    """
    sets = [np.unique(np.asarray(text, dtype=np.int64)) for text in texts]
    vocabulary = np.unique(np.concatenate(sets)) if sets else np.zeros(0, dtype=np.int64)
    tokens = [np.searchsorted(vocabulary, one) for one in sets]
    member, side = cluster_numbers(prompts), np.asarray(hacked, dtype=np.intp)
    counts, sizes = np.zeros((2, len(vocabulary))), np.zeros(2)  # texts with each token, all texts; by side
    for row in chosen:
        counts[side[row], tokens[row]] += 1
        sizes[side[row]] += 1
    scores = np.zeros(len(texts))
    learned = set(chosen)
    for prompt in np.unique(member):
        rows = np.flatnonzero(member == prompt)
        others, left = counts.copy(), sizes.copy()
        for row in rows:
            if row in learned:
                others[side[row], tokens[row]] -= 1
                left[side[row]] -= 1
        share = (others + SMOOTHING) / (left + 2 * SMOOTHING)[:, None]
        absent = np.log1p(-share[1]) - np.log1p(-share[0])
        present = np.log(share[1]) - np.log(share[0])
        for row in rows:
            scores[row] = absent.sum() + (present - absent)[tokens[row]].sum()
    return scores


def logistic_scores(x: Array, hacked: NDArray[np.bool_], others: Array) -> Array:
    """Fit a logistic regression with a ridge on x (rows, features); return the log odds of `others`.

    Minimises sum of log losses + RIDGE / 2 |w|^2 on features divided by sqrt(features), in the span of the rows: Newton
    steps on a linear kernel, so that the cost depends on the number of labels.
    """
    kernel, cross = x @ x.T / x.shape[1], others @ x.T / x.shape[1]
    y, n = hacked.astype(float), len(x)
    solution = np.zeros(n + 1)  # weights of the rows, intercept
    for _ in range(ITERATIONS):
        f = kernel @ solution[:n] + solution[n]
        p = special.expit(f)
        weight = np.maximum(p * (1 - p), 1e-9)
        system = np.ones((n + 1, n + 1))
        system[:n, :n], system[n, n] = kernel + np.diag(RIDGE / weight), 0.0
        step = np.linalg.solve(system, np.append(f + (y - p) / weight, 0.0)) - solution
        solution += step
        if np.abs(step).max() < 1e-10 * max(np.abs(solution).max(), 1.0):
            break
    return cross @ solution[:n] + solution[n]


def two_means(x: Array, seed: int) -> tuple[Array, Array] | None:
    """Return the centroids of k-means with two clusters, started at the split by the first principal component.

    None if all rows are equal.
    """
    rest = x - x.mean(0)
    if np.abs(rest).max() < 1e-12:
        return None
    axis = np.random.default_rng(seed).standard_normal(x.shape[1])
    for _ in range(ITERATIONS):
        axis = rest.T @ (rest @ axis)
        axis /= np.linalg.norm(axis)
    side = rest @ axis > 0
    first, second = x[side].mean(0), x[~side].mean(0)
    for _ in range(ITERATIONS):
        nearer = np.square(x - second).sum(1) > np.square(x - first).sum(1)
        if (nearer == side).all():
            break
        side = nearer
        first, second = x[side].mean(0), x[~side].mean(0)
    return first, second
