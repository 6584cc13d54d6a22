"""Label a few rollouts by strata of a score: precision of its first ones, rate of hacks, recall, with their intervals.

    strata = ranked_strata(scores)                  places by falling score: the first 10%, the next 30%, the rest
    drawn = draw(strata, 20, seed=0)                without replacement: a quarter, a quarter and half of them
    estimates = audit(strata, {place: True, ...}, prompts)

A share is sum_h W_h p_h over strata of weights W_h = N_h / N. Its interval combines the exact intervals of the strata
(melding, Fay and others 2015): its low end is the 2.5% quantile of sum_h W_h B_h with B_h ~ Beta(x_h, n_h - x_h + 1),
its high end the 97.5% quantile with Beta(x_h + 1, n_h - x_h). The unit is the prompt: n_h counts the prompts of the
drawn rollouts, and x_h sums the prompts' shares of hacks. No end contradicts the labels of the drawn rollouts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Array, Interval, prompt_means

SHARES = (0.1, 0.4)  # of the rollouts, where the second and the third stratum begin
TURNS = (0, 1, 2, 2)  # strata in the order in which they are drawn from: half of the labels bound the rate in the rest
NUM_DRAWS = 20_000  # of the sums of Beta variables

Strata = Sequence[NDArray[np.intp]]


def by_falling_score(scores: Array) -> NDArray[np.intp]:
    """Return the rows of scores (n,), highest first; rows with NaN come last, ties in their order."""
    return np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")


def ranked_strata(scores: Array) -> Strata:
    """Return the rows of each stratum by falling score (n,)."""
    order = by_falling_score(scores)
    cuts = [max(1, round(share * len(order))) for share in SHARES]
    return [part for part in np.split(order, cuts) if len(part)]


def draw(strata: Strata, num: int, seed: int) -> list[tuple[int, int]]:
    """Draw `num` rows without replacement by TURNS, as far as the strata go: [(row, stratum)], shuffled.

    A larger `num` of the same seed keeps the rows of a smaller one.
    """
    rng = np.random.default_rng(seed)
    queues = [rng.permutation(rows).tolist() for rows in strata]
    chosen: list[tuple[int, int]] = []
    while len(chosen) < num and any(queues):
        for number in (turn for turn in TURNS if turn < len(queues)):
            if queues[number] and len(chosen) < num:
                chosen.append((queues[number].pop(0), number))
    # The order tells nothing about the score to whoever labels.
    return [chosen[i] for i in rng.permutation(len(chosen))]


def audit(strata: Strata, answers: Mapping[int, bool], prompts: Sequence[str], seed: int = 0) -> list[Estimate]:
    """Return precision in the first rows, the rate of hacks in all, and the recall of the first rows.

    parts: `k`, the number of rows, and `n_labelled`.

    Args:
        strata: from `ranked_strata`.
        answers: {row: True = a hack} of the drawn rows.
        prompts: prompt of each row of the log.
        seed: of the intervals' draws.
    """
    rng, known = np.random.default_rng(seed), [[row for row in rows.tolist() if row in answers] for rows in strata]
    sizes, counts = (np.array([len(rows) for rows in of]) for of in (strata, known))
    hacks = np.array([sum(answers[row] for row in rows) for rows in known])
    means = sizes * hacks / np.where(counts > 0, counts, np.nan)
    low, high = np.empty((2, len(strata), NUM_DRAWS))  # hacks in each stratum
    for number, rows in enumerate(known):
        shares = prompt_means([float(answers[row]) for row in rows], [prompts[row] for row in rows])
        x, n = sum(shares.values()), len(shares)
        low[number], high[number] = _beta(rng, x, n - x + 1), _beta(rng, x + 1, n - x)
    # No end contradicts the labels.
    ends = (sizes[:, None] * one for one in (low, high))
    low, high = (np.clip(one, hacks[:, None], (hacks + sizes - counts)[:, None]) for one in ends)
    rates = []
    for last, k in enumerate(np.cumsum(sizes).tolist(), 1):
        name = "rate of hacks" if last == len(strata) else f"precision in the first {k}"
        ends = low[:last].sum(0) / k, high[:last].sum(0) / k
        rates.append(_estimate(name, float(means[:last].sum()) / k, *ends, known[:last], prompts, k))
    for last, k in enumerate(np.cumsum(sizes).tolist()[:-1], 1):
        least, most = _share(low[:last].sum(0), high[last:].sum(0)), _share(high[:last].sum(0), low[last:].sum(0))
        value = float(means[:last].sum() / means.sum()) if means.sum() else math.nan
        rates.append(_estimate(f"share of all hacks in the first {k}", value, least, most, known, prompts, k))
    return rates


def _beta(rng: np.random.Generator, a: float, b: float) -> Array:
    """Return draws of a Beta variable; 0 for a = 0 and 1 for b = 0."""
    if a <= 0 or b <= 0:
        return np.full(NUM_DRAWS, float(b <= 0 < a))
    return rng.beta(a, b, NUM_DRAWS)


def _share(part: Array, rest: Array) -> Array:
    """Return part / (part + rest), 0 where both are 0."""
    total = part + rest
    return np.divide(part, total, out=np.zeros_like(total), where=total > 0)


def _estimate(
    name: str, value: float, low: Array, high: Array, known: Sequence[Sequence[int]], prompts: Sequence[str], k: int
) -> Estimate:
    """Return an estimate from its value and the draws of its ends."""
    rows = [row for of_stratum in known for row in of_stratum]
    row = Estimate(
        name=name, n=len({prompts[row] for row in rows}), unit="prompt", parts={"k": k, "n_labelled": len(rows)}
    )
    if np.isnan(value):
        return replace(row, why="no hack was found, or a stratum has no label")
    interval = Interval(low=float(np.quantile(low, 0.025)), high=float(np.quantile(high, 0.975)))
    return replace(row, value=value, interval=interval)
