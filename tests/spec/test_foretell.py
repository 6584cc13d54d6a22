"""The study foretell: Spearman's interval simulated, what a side removes against the forecast, its table from runs."""

import math
from pathlib import Path

import numpy as np
import pytest
from scripts import ROOT, load_script
from worlds import World, make_run

from probe.analysis.forecast import forecast
from probe.analysis.statistics.run_gradients import Linked, link
from probe.records.run import Run, read_run

foretell = load_script(ROOT / "spec" / "studies" / "foretell" / "foretell.py")


@pytest.mark.parametrize("num_treatments", [8, 17])
@pytest.mark.parametrize("r", [0.0, 0.8])
def test_the_interval_covers(num_treatments: int, r: float) -> None:
    """Of bivariate normal measures and falls, whose rank correlation is 6 / pi arcsin(r / 2)."""
    rng, truth, covered = np.random.default_rng(0), 6 / math.pi * math.asin(r / 2), 0
    for _ in range(400):
        x = rng.normal(size=num_treatments)
        y = r * x + math.sqrt(1 - r * r) * rng.normal(size=num_treatments)
        _, interval = foretell.spearman([*x], [*y])
        covered += interval[0] <= truth <= interval[1]
    assert 0.92 <= covered / 400 <= 0.99


def test_a_perfect_ranking_is_no_certainty_and_no_ranking_no_number() -> None:
    rho, (low, high) = foretell.spearman([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])
    assert rho == pytest.approx(1)
    assert 0 < low < 0.99 < high < 1
    assert math.isnan(foretell.spearman([1, 1, 1, 1], [1, 2, 3, 4])[0])
    assert foretell.spearman([1, 2, 3], [3, 2, 1]) == (pytest.approx(-1), None), "three treatments have no interval"


def linked(run: Run, arm: str) -> Linked:
    return link(run, [row for row in run.samples if row.arm == arm], [row for row in run.steps if row.arm == arm])


@pytest.mark.parametrize(("side", "overshoot"), [("one_sided", 1.0), ("two_sided", 2.0)])
def test_what_the_gate_along_v_hack_removes_is_the_forecast(tmp_path: Path, side: str, overshoot: float) -> None:
    """Shares of the three targets, and the norm that is removed."""
    run = read_run(make_run(tmp_path / "runs" / "run", World(num_steps=12)))
    of_projected = linked(run, "projected")
    row = foretell.removals(run, of_projected, side=side, overshoot=overshoot)["projected"]
    expected = {one.name: one for one in forecast(of_projected, side=side, overshoot=overshoot, num_draws=9)}
    assert row["norm_removed"] == pytest.approx(expected["removed/norm"].value, rel=1e-9)
    for target in ("margin", "hacks", "honest"):
        assert row[f"{target}_removed"] == pytest.approx(expected[f"removed/{target}"].value, rel=1e-6), target
