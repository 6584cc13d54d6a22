"""Estimates: means and differences by hand; a new estimator is one function and one row."""

from pathlib import Path

import pytest
from worlds import World, make_run

from probe.analysis import families
from probe.analysis.analyze import Analysis, analyze
from probe.analysis.estimate import Estimate, Family, difference, mean_of
from probe.analysis.statistics.intervals import t_interval
from probe.analysis.text_report import all_tables, format_analysis


def test_a_mean_has_students_interval_or_says_why_not() -> None:
    found = mean_of("x", {"a": 1.0, "b": 2.0, "c": 4.5}, "prompt")
    assert (found.value, found.n, found.interval) == (2.5, 3, t_interval([1.0, 2.0, 4.5]))
    for parts in ({"a": 1.0, "b": 1.0}, {"a": 1.0}, {}):
        without = mean_of("x", parts, "prompt")
        assert without.interval is None
        assert without.why


def test_a_difference_is_paired_by_the_units_of_both() -> None:
    a, b = mean_of("x", {"p": 1.0, "q": 3.0, "r": 9.0}, "prompt"), mean_of("x", {"q": 2.0, "p": 4.0}, "prompt")
    assert difference(a, b).parts == {"p": -3.0, "q": 1.0}
    assert (format(Estimate(name="x")), f"{difference(a, b):.1f}"[:4]) == ("-", "-1.0")


def test_a_new_estimator_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the text, in the tables of the page and in JSON."""

    def lengths(analysis: Analysis) -> list[Estimate]:
        sizes = {f"{one.step}-{one.sample_id}": float(one.comp_len) for one in analysis.samples}
        return [mean_of("completion length", sizes, "rollout", arm=analysis.measured_arm)]

    family = Family(title="Length of completions (arm {arm})", make=lengths, form=".1f")
    monkeypatch.setattr(families, "FAMILIES", {**families.FAMILIES, "length": family})
    for module in ("analyze", "text_report"):
        monkeypatch.setattr(f"probe.analysis.{module}.FAMILIES", families.FAMILIES)
    found = analyze(make_run(tmp_path / "runs" / "run", World(num_steps=4)))
    (row,) = [row for row in found.to_json()["estimates"] if row["family"] == "length"]
    assert (row["name"], row["n"], row["unit"]) == ("completion length", 32, "rollout")
    (table,) = [table for table in all_tables(found) if table.name == "length"]
    assert table.rows[0][1] == f"{row['value']:.1f}"
    assert "Length of completions (arm vanilla)" in format_analysis(found)
