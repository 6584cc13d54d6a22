"""Many arms against one vanilla: how often all statements hold, and what four seeds decide."""

import math

import pytest
from many_arms import Bench, rates

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
