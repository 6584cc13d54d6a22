"""Holm by hand."""

import pytest

from probe.analysis.statistics.significance import holm


def test_holm_by_hand():
    """.01 x 3, .02 x 2 (raised to the .03 before it), .5 x 1; order of the input is kept."""
    assert holm({"c": 0.5, "a": 0.01, "b": 0.012}) == pytest.approx({"c": 0.5, "a": 0.03, "b": 0.03})
    assert list(holm({"c": 0.5, "a": 0.01})) == ["c", "a"]
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
