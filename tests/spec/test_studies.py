"""Published numbers of studies, recomputed from the tables that are shipped beside their pages."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from probe.experiments.outcomes import final_rates, read_outcomes

STUDY = Path(__file__).parents[2] / "spec/studies/unit-sides"
PAGE = (STUDY / "unit-sides.md").read_text(encoding="utf-8").partition("## What came of it")[2]
ROWS = re.findall(r"^\| ([\w-]+) \| ([\w-]+) \| ([\d ]+) \| ([\d ]+) \|$", PAGE, re.M)
OUTCOMES = read_outcomes(STUDY / "outcomes.csv")


def test_rates_of_the_page_are_those_of_the_table() -> None:
    """One percentage a seed, in the order of the seeds."""
    assert len(ROWS) == 7
    for condition, arm, hacks, solves in ROWS:
        rates = final_rates(OUTCOMES, condition, arm)
        assert sorted(rates) == [320, 321, 322, 323]
        for place, printed in enumerate((hacks, solves)):
            assert [round(100 * rates[seed][place]) for seed in sorted(rates)] == [*map(int, printed.split())]


@pytest.mark.parametrize(
    ("place", "left", "right"),
    [
        (0, ("unit-k4", "projected"), ("mean-k4", "projected")),
        (1, ("unit-k4", "projected"), ("mean-k4", "projected")),
        (0, ("unit-k8", "projected"), ("mean-k8", "projected")),
        (0, ("unit-k4", "projected"), ("unit-k4", "permuted-dosed")),
    ],
)
def test_differences_of_the_page_are_welchs(place: int, left: tuple[str, str], right: tuple[str, str]) -> None:
    """Mean difference in points with Welch's 95% interval over four seeds each."""
    sides = [np.array([rate[place] for rate in final_rates(OUTCOMES, *side).values()]) for side in (left, right)]
    found = stats.ttest_ind(*sides, equal_var=False)
    low, high = found.confidence_interval(0.95)
    mean = 100 * (sides[0].mean() - sides[1].mean())
    assert f"{mean:+.1f} [{100 * low:.1f}, {100 * high:.1f}]" in PAGE
