"""`probe report` on a run: what it writes; experiments/test_spec_verdict.py has a spec's page."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest


def words_of(html: str) -> str:
    """A page without the elements around terms and the words of commands."""
    return re.sub("</?(abbr|span)[^>]*>", "", Path(html).read_text())


@pytest.fixture
def measured(replay: Callable[..., Path], quick: list[str]) -> Path:
    """A run with inner products and the shares of its first step's tokens."""
    return replay("reported", "--arm", "vanilla,projected", "--steps", "4", "--set", "token_attribution=1", *quick)


@pytest.mark.slow
def test_a_run(measured: Path, out: Path, probe) -> None:
    """One page with the module map, the pushing strings and the rollouts; every path that is printed exists."""
    found = json.loads(probe("report", measured, "--json")[0])
    assert found["html"] == str(out / "reports" / "reported.html")
    assert all(Path(path).is_file() for path in [found["html"], *found["figures"]])
    assert any(Path(path).name.startswith("modules-") for path in found["figures"])
    text = words_of(found["html"])
    for words in (
        "Where in the network?",
        "Lines that push toward the hack",
        "def run_tests():",
        "probe replay --config",
    ):
        assert words in text, words
    data = json.loads(text.split('id="rollout-data">')[1].partition("</script>")[0])
    coloured = ["shares" in part for row in data["rows"] for part in (row["prompt"], *row["turns"])]
    assert sum(coloured) == 2 * 8, "prompt and completion of the rollouts of one step"
    assert len(data["rows"]) == 4 * 8
