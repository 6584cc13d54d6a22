"""Bradley-Terry ratings of players against fixed references, on the Elo scale; numpy and scipy only.

    P(i wins | i and j do not draw) = sigmoid(theta_i - theta_j)            rating = theta * ELO_PER_NAT

A match is one problem and one attempt of each player; the player whose attempt succeeds wins, and two that succeed or
two that fail draw. With shares s of attempts that succeed, i wins s_i (1 - s_j) of the matches, j wins s_j (1 - s_i).

Draws are left out. In Davidson's model of ties (JASA 65, 1970) the odds of the matches that are no draw are those
above, whatever his tie parameter is, for every pair another one if need be: what is left out says nothing of the
ratings. If each attempt succeeds with probability sigmoid(theta - difficulty of the problem), the same odds hold
whatever the difficulties are (Rasch 1960; Zwinderman, Applied Psychological Measurement 19, 1995). Half a win for a
draw, as in chess, would make a gap the smaller the more problems are too easy or too hard for both.

The first reference is the zero. A player's rating depends on its matches with references alone, so that no other player
can move it. Who wins all or loses all matches that are no draw is infinitely far away: each player has, beside its
matches, half a win and half a loss against the zero. Against the zero alone the rating is then the log odds with 1/2
added to both counts (Haldane 1956, Anscombe 1956; Firth's 1993 penalty), which is finite and nearly unbiased.
A reference that only won or only lost against the zero is rated but rates nobody, since its own place is a bound.

An interval is of a bootstrap over problems: all matches on a problem are drawn together. Among the problems that are
drawn there are two more, one that every player won against the zero and one that it lost, as Laplace's rule has them:
without them, a player that never lost would never lose in a draw either. A draw without any win is no evidence against
any lower rating, so it counts as minus infinity at the low end; one without a loss as infinity at the high end. An
interval may thus have one end, or none. Coverage: `tests/probe/test_bradley_terry.py`.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from probe.analysis.statistics.intervals import Array, Interval, cluster_numbers, student_quantile

ELO_PER_NAT = 400 / math.log(10)
HALF = 0.5  # of a win and of a loss against the zero, which every player has beside its matches
FARTHEST = 50.0  # nats: beyond any rating that a count of matches can lead to
CONVERGED = 1e-8  # nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Players on one scale; arrays (players,) are in the order of the players, the zero first."""

    ratings: Array  # Elo
    intervals: Sequence[Interval]  # an end that nothing bounds is infinite
    wins: Array  # matches against the references that rate
    losses: Array
    rates: tuple[bool, ...]  # of each reference: whether it rates others


def elo_gap(shares: ArrayLike, others: ArrayLike) -> float:
    """The Elo of one player above another from their matches alone: 400 log10 of (wins + 1/2) / (losses + 1/2).

    Args:
        shares: (tasks,) of the player's attempts at each task that succeed; nan = none.
        others: (tasks,) the same of the other player.

    >>> round(elo_gap([1, 1, 1, 0, 0], [0, 0, 1, 1, 0]), 6) == round(400 * math.log10(2.5 / 1.5), 6)
    True
    """
    return float(ELO_PER_NAT * _log_odds(np.nansum(_won(shares, others)), np.nansum(_won(others, shares))))


def rate(
    shares: ArrayLike,
    problems: Sequence[Hashable],
    *,
    num_references: int = 1,
    num_draws: int = 999,
    seed: int = 0,
) -> Scale:
    """Rate players against the first `num_references` of them, the first of which is the zero.

    Args:
        shares: (players, tasks) of the attempts at each task that succeed; nan = no attempt.
        problems: (tasks,) the problem of each task, such as one prompt under several settings.
        num_references: at least 1.
        num_draws: of the bootstrap over problems.
        seed: of the bootstrap.
    """
    table = np.asarray(shares, dtype=np.float64)
    references = table[:num_references]
    wins = _by_problem(_won(table[:, None], references[None]), problems)
    losses = _by_problem(_won(references[None], table[:, None]), problems)
    for reference in range(num_references):  # nobody plays against itself
        wins[:, reference, reference] = losses[:, reference, reference] = 0
    all_wins, all_losses = wins.sum(axis=0), losses.sum(axis=0)
    # The zero rates others, and every reference that both won and lost against it.
    rates = (all_wins[:num_references, 0] > 0) & (all_losses[:num_references, 0] > 0)
    rates[0] = True
    num_problems = len(wins)
    n = num_problems + 2
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), num_draws).astype(np.float64)
    drawn_wins, drawn_losses = _drawn(counts[:, :-2], wins), _drawn(counts[:, :-2], losses)
    # The problem that every player but the zero itself won against the zero, and the one that it lost.
    drawn_wins[:, 1:, 0] += counts[:, [-2]]
    drawn_losses[:, 1:, 0] += counts[:, [-1]]
    drawn = ELO_PER_NAT * _ratings(drawn_wins, drawn_losses, rates)
    lowest = np.where(drawn_wins[..., rates].sum(axis=-1) > 0, drawn, -np.inf)
    highest = np.where(drawn_losses[..., rates].sum(axis=-1) > 0, drawn, np.inf)
    lowest[:, 0] = highest[:, 0] = 0.0  # by definition
    # The expanded percentile interval (Hesterberg 2015, section 5.3): a bootstrap over n clusters has (n - 1) / n of
    # the variance and ignores that it is itself estimated. No interpolation, which would be between a number and
    # infinity.
    tail = float(special.ndtr(-math.sqrt(n / (n - 1)) * student_quantile(0.95, n - 1)))
    low = np.quantile(lowest, tail, axis=0, method="lower")
    high = np.quantile(highest, 1 - tail, axis=0, method="higher")
    return Scale(
        ratings=ELO_PER_NAT * _ratings(all_wins, all_losses, rates),
        intervals=[Interval(low=float(a), high=float(b)) for a, b in zip(low, high, strict=True)],
        wins=all_wins[:, rates].sum(axis=1),
        losses=all_losses[:, rates].sum(axis=1),
        rates=tuple(bool(flag) for flag in rates),
    )


def _won(shares: ArrayLike, others: ArrayLike) -> Array:
    """The share of the matches on each task that the first player wins; nan where one of the two has no attempt."""
    return np.asarray(shares, dtype=np.float64) * (1 - np.asarray(others, dtype=np.float64))


def _by_problem(won: Array, problems: Sequence[Hashable]) -> Array:
    """(problems, players, references) matches won on each problem, of (players, references, tasks)."""
    numbers = cluster_numbers(problems)
    summed = np.zeros((numbers.max() + 1, *won.shape[:2]))
    np.add.at(summed, numbers, np.moveaxis(np.nan_to_num(won), -1, 0))
    return summed


def _drawn(counts: Array, matches: Array) -> Array:
    """(draws, players, references) matches of the problems that each draw holds."""
    return (counts @ matches.reshape(len(matches), -1)).reshape(len(counts), *matches.shape[1:])


def _ratings(wins: Array, losses: Array, rates: np.ndarray) -> Array:
    """(..., players) in nats, of wins and losses (..., players, references).

    The likelihood of the references that rate is strictly concave: to maximise it for one of them after the other,
    given the rest, ends at its maximum. All others are rated once, given these.
    """
    raters = np.flatnonzero(rates)
    if len(raters) == 1:
        return _log_odds(wins[..., 0], losses[..., 0])  # of the zero itself, which did not play, that is 0
    ratings = np.zeros(wins.shape[:-1])
    meetings = wins + losses
    change = np.inf
    while change > CONVERGED:
        before = ratings[..., raters]
        for player in raters[1:]:
            against = raters[raters != player]
            ratings[..., player] = _strength(
                wins[..., player, against], meetings[..., player, against], ratings[..., against]
            )
        change = float(np.abs(ratings[..., raters] - before).max())
    for player in np.setdiff1d(np.arange(wins.shape[-2]), raters):
        ratings[..., player] = _strength(wins[..., player, raters], meetings[..., player, raters], ratings[..., raters])
    return ratings


def _log_odds(wins: ArrayLike, losses: ArrayLike) -> Array:
    """The rating in nats against the zero alone, where the likelihood has its maximum in closed form."""
    return np.log((np.asarray(wins) + HALF) / (np.asarray(losses) + HALF))


def _strength(wins: Array, meetings: Array, opponents: Array) -> Array:
    """(...) the rating at which as many wins are expected as there were: the maximum of the likelihood.

    Args:
        wins: (..., opponents) matches won; draws are no matches.
        meetings: (..., opponents) matches.
        opponents: (..., opponents) their ratings in nats.
    """
    count = meetings.shape[-1]

    def missing_wins(rating: Array, won: Array, *pairs: Array) -> Array:
        expected = 2 * HALF * special.expit(rating)
        for met, opponent in zip(pairs[:count], pairs[count:], strict=True):
            expected = expected + met * special.expit(rating - opponent)
        return won - expected

    pairs = (*np.moveaxis(meetings, -1, 0), *np.moveaxis(opponents, -1, 0))
    return elementwise.find_root(
        missing_wins,
        (-FARTHEST, FARTHEST),
        args=(wins.sum(axis=-1) + HALF, *pairs),
        tolerances={"xatol": CONVERGED / 10},
    ).x
