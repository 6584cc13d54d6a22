"""The study foretell-2: its law and decision on planted falls, and the numbers of its page."""

import math
import sys

import numpy as np
from scripts import ROOT, load_script

from replay_pools.base.files import read_json

study = load_script(ROOT / "spec" / "studies" / "foretell-2" / "foretell-2.py")


def treatments(noise: float, *, follows: str) -> list:
    """16 whose falls lie on the line of a measure through the pilot, with noise."""
    rng, rows = np.random.default_rng(0), []
    for i in range(16):
        hacks, door = rng.uniform(0, 1.5), rng.uniform(0, 0.25)
        row = study.Pilot(hacks, door, rng.uniform(0, 1.0), bool(i % 2), math.nan)
        measures = {line: float(measure(row)) for line, measure in study.LINES.items()}
        said = {}
        for line, measure in study.LINES.items():
            points = [(float(measure(pilot)), pilot.fall) for pilot in study.PILOT.values()]
            said[line] = study.fall_of(measures[line], points)
        measures |= {name: rng.uniform() for name in study.FITTED_HERE}
        measures[study.SECOND], said[study.SECOND] = row.removed, study.fall_ahead(row.removed)
        fall = said[follows].value + noise * rng.normal()
        rows.append(study.Treatment(name=f"t{i}", measures=measures, said=said, seeds=4, fall=fall, loss=0.0))
    return rows


def test_the_forecast_holds_where_falls_follow_the_law_and_not_where_they_follow_a_rival() -> None:
    found = study.result(treatments(0.02, follows=study.LAW))
    assert found["rmse"][study.LAW] < 0.03
    assert found["inside"] == 16
    assert study.sentence(found).startswith("THE FORECAST HOLDS: ")
    assert "(shown)" in study.sentence(found)
    assert study.sentence(study.result(treatments(0.02, follows=study.LAW)[:8])).endswith("nothing is decided")
    found = study.result(treatments(0.02, follows="margin_removed"))
    assert found["best_rival"] == "margin_removed"
    assert found["smaller_by"] < 0
    assert study.sentence(found).startswith("THE FORECAST DOES NOT HOLD: ")
    assert "points larger than that of margin_removed" in study.sentence(found)


def test_what_is_kept_of_the_runs_gives_the_numbers_of_the_page() -> None:
    rows = study.read_treatments()
    found, page = study.result(rows), study.SPEC.with_suffix(".md").read_text()
    row = next(row for row in rows if row.name == "tests-k8")
    assert f"| tests-k8 | {100 * row.said[study.LAW].value:.0f} |" in page
    assert (
        f"| the law | {100 * found['rmse'][study.LAW]:.0f} | {found['ranks'][study.LAW][0]:.2f} |".replace("0.", ".")
        in page
    )
    assert f"{found['inside']} of 16 falls lie inside the law's intervals" in page
    vanilla = np.mean([row["64"]["hack"] for row in read_json(study.MEASURED)["rates"][study.UNTREATED].values()])
    moved, shares = np.array([*sys.modules["points"].ELSEWHERE.values()]).T
    assert np.allclose(shares, [row.fall / vanilla for row in rows], atol=0.006), "the table of the screen"
    assert np.allclose(moved, [row.measures[study.SECOND] for row in rows], atol=0.11), "20 steps move what 40 do"
