"""Bradley-Terry ratings: by hand, against a maximisation that knows no shortcut, their invariances, their coverage."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from probe.analysis.statistics.bradley_terry import ELO_PER_NAT, elo_gap, rate


def test_two_players_by_hand():
    """Won 3, lost 1, drew 2 (both solve, both fail): 400 log10(3.5 / 1.5); the draws do not matter."""
    base, player = [0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 1, 0]
    scale = rate([base, player], range(6))
    assert scale.ratings == pytest.approx([0, 400 * math.log10(3.5 / 1.5)])
    assert (scale.wins[1], scale.losses[1]) == (3, 1)
    assert (scale.wins[0], scale.losses[0]) == (0, 0), "nobody plays against itself"
    assert elo_gap(player, base) == pytest.approx(scale.ratings[1])
    assert elo_gap(base, player) == pytest.approx(-scale.ratings[1])
    without_draws = rate([base[:4], player[:4]], range(4))
    assert without_draws.ratings == pytest.approx(scale.ratings)


def log_likelihood(nats, shares, pairs):
    """Of all matches between the pairs, with half a win and half a loss against player 0 for each of the others."""
    total = sum(0.5 * (log_expit(nats[i]) + log_expit(-nats[i])) for i in range(1, len(nats)))
    for i, j in pairs:
        total += (shares[i] * (1 - shares[j])).sum() * log_expit(nats[i] - nats[j])
        total += (shares[j] * (1 - shares[i])).sum() * log_expit(nats[j] - nats[i])
    return total


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_fit_is_the_maximum_of_the_likelihood(seed):
    """Four references that all rate one another, maximised by brute force; then a player, given these."""
    rng = np.random.default_rng(seed)
    skill, difficulty = rng.normal(0, 0.7, 5), rng.normal(0, 1, 40)
    shares = (rng.random((5, 40, 3)) < expit(skill[:, None, None] - difficulty[None, :, None])).mean(axis=2)
    scale = rate(shares, range(40), num_references=4)
    assert all(scale.rates)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    fitted = minimize(lambda free: -log_likelihood([0, *free], shares[:4], pairs), np.zeros(3), tol=1e-10).x
    assert scale.ratings[1:4] == pytest.approx(ELO_PER_NAT * fitted, abs=0.02)

    def of_the_player(free):
        nats = [0, *fitted, free[0]]
        return -log_likelihood(nats, shares, [(4, reference) for reference in range(4)])

    rated = minimize(of_the_player, [0.0], tol=1e-10).x[0]
    assert scale.ratings[4] == pytest.approx(ELO_PER_NAT * rated, abs=0.02)


def drawn(skills, num_problems, rng, spread=1.0):
    """(players, problems) outcomes of the Rasch model, one attempt each."""
    difficulty = rng.normal(0, spread, num_problems)
    return (rng.random((len(skills), num_problems)) < expit(np.array(skills)[:, None] - difficulty)).astype(float)


def test_no_other_player_moves_a_rating():
    """A league that grows leaves every rating and interval as it was, to the last bit."""
    outcomes = drawn([0, 0.3, -0.5, 1.0, 2.0], 50, np.random.default_rng(1))
    alone = rate(outcomes[:3], range(50), num_references=2)
    together = rate(outcomes, range(50), num_references=2)
    assert (together.ratings[:3] == alone.ratings).all()
    assert list(together.intervals[:3]) == list(alone.intervals)


def test_bots_that_solve_all_or_nothing_rate_nobody():
    """They lose or win every match that is no draw, whoever they meet: what they tell of a player is nothing."""
    outcomes = drawn([0, 0.5], 50, np.random.default_rng(2))
    bots = [np.zeros(50), np.ones(50), np.zeros(50)]
    plain = rate(outcomes, range(50))
    with_bots = rate([outcomes[0], *bots, outcomes[1]], range(50), num_references=4)
    assert with_bots.rates == (True, False, False, False)
    assert with_bots.ratings[4] == plain.ratings[1]


def test_a_perfect_score_has_a_finite_rating_and_an_open_end():
    """The bound that exists is finite and on the right side; the other one does not exist."""
    base = [1.0] * 20 + [0.0] * 20
    scale = rate([base, [1.0] * 40, [0.0] * 40, base], range(40))
    best, worst, same = scale.intervals[1:]
    assert scale.ratings[1] == pytest.approx(400 * math.log10(20.5 / 0.5))
    assert scale.ratings[2] == pytest.approx(-scale.ratings[1])
    assert (best.high, worst.low) == (math.inf, -math.inf)
    assert 0 < best.low < scale.ratings[1]
    assert scale.ratings[2] < worst.high < 0
    assert scale.ratings[3] == 0
    assert (same.low, same.high) == (-math.inf, math.inf), "40 draws tell nothing, which is no certainty"


def test_problems_are_drawn_whole():
    """Every problem twice under two settings is no more evidence, though it is twice the matches."""
    outcomes = drawn([0, 0.8], 60, np.random.default_rng(3))
    once = rate(outcomes, range(60)).intervals[1]
    twice = rate(np.hstack([outcomes, outcomes]), [*range(60), *range(60)]).intervals[1]
    apart = rate(np.hstack([outcomes, outcomes]), range(120)).intervals[1]
    width = lambda interval: interval.high - interval.low  # noqa: E731
    assert width(twice) == pytest.approx(width(once), rel=0.1)
    assert width(apart) < 0.8 * width(twice)


@pytest.mark.parametrize(
    ("skills", "num_problems"),
    [
        ([0.0, 0.0], 16),
        ([-4.0, 1.0], 64),  # the base solves 3%: almost no loss
        pytest.param([0.0, 1.0, 0.5], 64, marks=pytest.mark.slow),  # with a teacher that rates, too
    ],
)
def test_intervals_cover(skills, num_problems):
    """Under the Rasch model, at least nominal up to the noise of the simulation (and two points)."""
    rng, num_sims, covered = np.random.default_rng(0), 200 if len(skills) == 2 else 40, 0
    for sim in range(num_sims):
        scale = rate(
            drawn(skills, num_problems, rng),
            range(num_problems),
            num_references=len(skills) - 1,
            num_draws=299,
            seed=sim,
        )
        interval = scale.intervals[-1]
        covered += interval.low <= ELO_PER_NAT * (skills[-1] - skills[0]) <= interval.high
    assert covered / num_sims >= 0.95 - 0.02 - 2 * math.sqrt(0.05 * 0.95 / num_sims)
