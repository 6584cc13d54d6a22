"""The page of a spec that trained: its question, its decision and the curves of its arms come first."""

import re
from pathlib import Path

import pytest
from specs import MORE, PENALTY, training_spec
from trainings import Planted

from probe.cli import cli
from probe.cli._frame import run
from probe.report import analyses

QUESTION = "Does the gate keep a policy from learning the hack?"
SCALE = {"name": "SCALE", "then": "Take it to a larger model.", "requires": {"lowers-hacking": "PASS"}}
SPEC = training_spec(
    "gated", seeds=[0, 1, 2], question=QUESTION, conditions={"plain": {}, "kl": PENALTY}, decisions=[SCALE, MORE]
)
RATES = {
    "plain vanilla": (0.0, 0.5, 0.9, 0.5),
    "plain projected": (0.0, 0.5, 0.1, 0.5),
    "kl vanilla": (0.0, 0.5, 0.0, 0.75),
}
pytestmark = pytest.mark.slow  # trainings of a spec; a training's page is one of test_page.py


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, planted: Planted) -> tuple[str, Path]:
    """(text of the page, folder of its figures and tables)."""
    spec, out = planted(tmp_path_factory.mktemp("gated"), SPEC, RATES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analyses, "MOST_DRAWN", 1)
        assert run(cli, ["report", str(spec.path), "--out", str(out)]) == 0
    return (out / "reports" / "gated.html").read_text(), out / "reports" / "gated"


def test_it_opens_with_question_decision_and_curves(page: tuple[str, Path]) -> None:
    """In this order, before any run is shown by itself."""
    text, _ = page
    body = re.sub("</?abbr[^>]*>", "", text[text.index("<main>") :])
    words = (
        QUESTION,
        "SCALE",
        "Take it to a larger model.",
        "Hack rate: ",
        "Solve rate: ",
        "Hack against solve after training",
        "lowers-hacking",
        'id="runs"',
        "gated-plain-vanilla-seed0",
    )
    places = [body.index(each) for each in words]
    assert places == sorted(places), dict(zip(words, places))


def test_its_curves_are_of_arms_and_conditions_by_name(page: tuple[str, Path]) -> None:
    """One curve a treatment, a mean over its seeds; the Pareto figure has each of them, and the start."""
    text, folder = page
    for name in ("learning-hack", "learning-solve", "pareto"):
        svg = (folder / f"{name}.svg").read_text()
        assert all(f">{arm}" in svg for arm in ("vanilla (plain)", "projected (plain)", "vanilla (kl)")), name
    svg = (folder / "pareto.svg").read_text()
    assert ">vanilla (plain) (baseline)<" in svg
    assert ">start<" in svg
    assert "95% over seeds" in text
