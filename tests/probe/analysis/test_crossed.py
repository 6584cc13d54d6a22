"""Rates over seeds and problems: how often intervals hold the truth, nothing is called something, and all is true."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from many_arms import Bench, rates
from scipy.stats import ttest_ind

from probe.analysis.statistics.crossed import change, compare, rate


def expit(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Rates on the logit scale: problems differ (sd 1.5), react to an arm (sd .7), and seeds differ."""

    seeds: int
    problems: int
    seed_sd: float

    def draw(self, rng: np.random.Generator, *centres: float) -> list[np.ndarray]:
        """(seeds, problems) of outcomes, of each arm on the same problems."""
        problems = 1.5 * rng.normal(size=self.problems)
        arms = []
        for centre in centres:
            logits = centre + problems + 0.7 * rng.normal(size=self.problems)
            logits = logits + self.seed_sd * rng.normal(size=(self.seeds, 1))
            arms.append((rng.random(logits.shape) < expit(logits)).astype(float))
        return arms

    def rate(self, centre: float) -> float:
        """The mean over seeds and problems without end."""
        spread = np.sqrt(1.5**2 + 0.7**2 + self.seed_sd**2)
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        return float((expit(centre + spread * nodes) * weights).sum() / weights.sum())


TRUTHS = [Truth(seeds=n, problems=p, seed_sd=sd) for n, p in ((3, 64), (4, 16), (8, 64)) for sd in (0.0, 0.5, 1.0)]


# Fast: few seeds that differ much, and many that are alike.
WORLDS = [truth if i in (2, 6) else pytest.param(truth, marks=pytest.mark.slow) for i, truth in enumerate(TRUTHS)]


@pytest.mark.parametrize("truth", WORLDS, ids=str)
@pytest.mark.parametrize("centres", [(0.7, 0.7), (0.7, -1.7), (-6.0, -6.0), (0.7, -5.0)], ids=str)
def test_intervals_hold_the_truth(truth: Truth, centres: tuple[float, float]) -> None:
    """Of 400 draws 90% at least: nominal 95%, and .92 to 1 in 1500 draws of each of these worlds."""
    rng = np.random.default_rng(5)
    expected, held = truth.rate(centres[0]) - truth.rate(centres[1]), 0
    for _ in range(400):
        a, b = truth.draw(rng, *centres)
        compared = compare(rate(a, a.size), rate(b, b.size))
        assert compared is not None
        held += compared.bounded().low <= expected <= compared.bounded().high
    assert held >= 360, held / 400


@pytest.mark.parametrize(("seeds", "value"), [(2, 0.0), (8, 1.0)])
def test_equal_rates_are_no_certainty(seeds: int, value: float) -> None:
    """At the floor, at the ceiling, or equal in all seeds: an interval has a width, more seeds make it narrower."""
    flat = rate(np.full((seeds, 32), value), 32 * seeds)
    half = rate(np.tile([0.0, 1.0], (seeds, 16)), 32 * seeds)
    for compared in (compare(flat, flat), compare(half, half), compare(change(flat, flat))):
        assert compared.bounded().value == 0
        width = compared.bounded().high - compared.bounded().low
        assert width > 0.02, width
        assert compared.seeds > 0
    one = rate(np.full((1, 32), value), 32)
    assert compare(one, flat) is None
    assert compare(one) is None


def test_problems_alone_widen_an_interval_that_seeds_do_not_narrow() -> None:
    """An arm that reacts to problems differently: the part of the variance that more seeds leave is there."""
    rng = np.random.default_rng(0)
    hard = rng.random(32) < 0.5
    a = rate(np.tile(hard, (8, 1)), 256)
    b = rate(np.tile(~hard, (8, 1)), 256)
    compared = compare(a, b)
    assert compared.problems > 0.02
    power = compared.power(0.2, 65)
    assert compared.power(0.2, 64) < power
    assert replace(compared, problems=0.0).power(0.2, 65) > power, "seeds show more where problems do not matter"
    assert compared.seeds_to_see(0.2) is None


def test_without_problems_it_is_the_test_over_seeds() -> None:
    """One column: Welch's interval, where the seeds differ by more than drawing outcomes does."""
    x, y = [0.5, 0.9, 0.7, 0.3], [0.1, 0.2, 0.5, 0.4]
    compared = compare(rate(np.array(x)[:, None], 4000), rate(np.array(y)[:, None], 4000))
    expected = ttest_ind(x, y, equal_var=False).confidence_interval()
    assert (compared.bounded().low, compared.bounded().high) == pytest.approx((expected.low, expected.high))


NONE_FALLS = Bench(hack=rates((17, 0.7)), solve=rates((17, 0.5)))
PRICE_IS_THE_BOUND = Bench(hack=rates((1, 0.7), (8, 0.4), (8, 0.7)), solve=rates((1, 0.6), (16, 0.45)))


def below(share: float, draws: int) -> float:
    """A share that as many draws miss by chance once in a thousand times."""
    return share - 3.1 * math.sqrt(share * (1 - share) / draws)


@pytest.mark.parametrize(
    ("bench", "draws"), [(NONE_FALLS, 60), pytest.param(PRICE_IS_THE_BOUND, 400, marks=pytest.mark.slow)]
)
def test_all_statements_hold_together(bench: Bench, draws: int) -> None:
    share = bench.holding(draws, seed=5)
    assert share >= below(0.95, draws), share
