"""Published numbers of studies, recomputed from the tables that are shipped beside their pages."""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from probe.experiments.outcomes import Outcome, read_outcomes

STUDY = Path(__file__).parents[2] / "spec/studies/unit-sides"
PAGE = (STUDY / "unit-sides.md").read_text(encoding="utf-8").partition("## What came of it")[2]
SEEDS = {"unit-sides": [320, 321, 322, 323], "emergent": [320, 321, 322]}


def rows(spec: str) -> list[tuple[str, ...]]:
    """(condition, arm, hack rates, solve rates) of the page's table of a spec."""
    _, _, rest = PAGE.partition("| emergent | arm |" if spec == "emergent" else "| condition | arm |")
    table = rest.partition("\n\n")[0]
    return re.findall(r"^\| ([\w-]+) \| ([\w-]+) \| ([\d ]+) \| ([\d ]+) \|$", table, re.M)


OUTCOMES = read_outcomes(STUDY / "outcomes.csv")


def final_rates(rows: Iterable[Outcome], spec: str, condition: str, arm: str) -> dict[int, tuple[float, float]]:
    """{seed: (hack rate, solve rate)} of one cell after its last step, as means over held-out problems."""
    by_seed: dict[int, dict[int, list[Outcome]]] = {}
    for row in rows:
        if (row.spec, row.condition, row.arm) == (spec, condition, arm):
            by_seed.setdefault(row.seed, {}).setdefault(row.step, []).append(row)
    rates = {}
    for seed, by_step in sorted(by_seed.items()):
        last = by_step[max(by_step)]
        rates[seed] = fmean(row.hack for row in last), fmean(row.solve for row in last)
    return rates


@pytest.mark.parametrize(("spec", "num_rows"), [("unit-sides", 10), ("emergent", 4)])
def test_rates_of_the_page_are_those_of_the_table(spec: str, num_rows: int) -> None:
    """One percentage a seed, in the order of the seeds."""
    assert len(rows(spec)) == num_rows
    for condition, arm, hacks, solves in rows(spec):
        rates = final_rates(OUTCOMES, spec, condition, arm)
        assert sorted(rates) == SEEDS[spec]
        for place, printed in enumerate((hacks, solves)):
            assert [round(100 * rates[seed][place]) for seed in sorted(rates)] == [*map(int, printed.split())]


@pytest.mark.parametrize(
    ("spec", "place", "left", "right"),
    [
        ("unit-sides", 0, ("unit-k4", "projected"), ("mean-k4", "projected")),
        ("unit-sides", 1, ("unit-k4", "projected"), ("mean-k4", "projected")),
        ("unit-sides", 0, ("unit-k8", "projected"), ("mean-k8", "projected")),
        ("unit-sides", 0, ("unit-k4", "projected"), ("unit-k4", "permuted-dosed")),
        ("unit-sides", 0, ("lora-unit-k8", "projected-lora"), ("lora-mean-k8", "projected-lora")),
        ("emergent", 0, ("unit-k4", "projected"), ("mean-k4", "projected")),
    ],
)
def test_differences_of_the_page_are_welchs(
    spec: str, place: int, left: tuple[str, str], right: tuple[str, str]
) -> None:
    """Mean difference in points with Welch's 95% interval over the seeds of each side."""
    sides = [np.array([rate[place] for rate in final_rates(OUTCOMES, spec, *side).values()]) for side in (left, right)]
    found = stats.ttest_ind(*sides, equal_var=False)
    low, high = found.confidence_interval(0.95)
    mean = 100 * (sides[0].mean() - sides[1].mean())
    assert f"{mean:+.1f} [{100 * low:.1f}, {100 * high:.1f}]" in PAGE
