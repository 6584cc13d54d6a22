"""probe.analysis.measures.arm_removal on replays of the organism: against the forecast, the records, and controls whose
answer is known. Nothing here is made by hand.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from extraction import library
from probe.analysis.measures.arm_removal import ArmRemoval, arm_removals
from probe.analysis.measures.forecast import forecast
from probe.analysis.statistics.intervals import prompt_weights
from probe.analysis.statistics.run_gradients import Linked, link
from probe.experiments.judge.foretell import removal_of
from probe.records.run import Run, read_run

POOLS = ("--replay-dirs", "teacher,base-hinted", "--match", "prompt")


def linked(run: Run, arm: str) -> Linked:
    return link(run, [row for row in run.samples if row.arm == arm], [row for row in run.steps if row.arm == arm])


def rows(path: Path, arm: str) -> dict[str, ArmRemoval]:
    run = read_run(path)
    return {row.arm: row for row in arm_removals(run, linked(run, arm))}


@pytest.fixture
def dosed(all_hinted: Path) -> Path:
    # All groups: of a few prompts the forecast has no interval, and gives no share.
    return all_hinted


@pytest.fixture(scope="module")
def same(replay: Callable[..., Path]) -> Path:
    """The arm random with v_hack in the place of Haar directions: its products are read as any control's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "haar_directions", lambda v_hack, seed: v_hack)
        return replay("removal-same", *POOLS, "--steps", "8", "--arm", "vanilla,random")


@pytest.mark.parametrize(("gate", "overshoot"), [("one_sided", 1.0), ("two_sided", 1.0), ("one_sided", 2.0)])
def test_the_row_of_v_hack_is_the_forecast(dosed: Path, gate: str, overshoot: float) -> None:
    """Shares of the three targets, and the norm that is removed."""
    run = read_run(dosed)
    of_projected = linked(run, "projected")
    row = arm_removals(run, of_projected, gate=gate, overshoot=overshoot)[0]
    foretold = forecast(of_projected, gate=gate, overshoot=overshoot, num_draws=9)
    assert foretold is not None
    assert row.arm == "projected"
    assert row.norm_removed == pytest.approx(foretold.norm_removed, rel=1e-9)
    for target in ("margin", "hacks", "honest"):
        share = foretold.row(target)
        assert share is not None
        assert share.removed is not None
        assert getattr(row, f"{target}_removed") == pytest.approx(share.removed.value, rel=1e-6), target


def test_the_row_of_v_hack_is_what_the_run_recorded(dosed: Path) -> None:
    """Means over prompts of the records; a one-sided gate removes the hack-ward part and no more."""
    row = rows(dosed, "projected")["projected"]
    steps = [step for step in read_run(dosed).steps if step.arm == "projected" and step.cos_in is not None]
    weights = prompt_weights([step.problem_id for step in steps])
    fractions = np.array([step.hackward_frac_in for step in steps])
    assert row.cos_in == pytest.approx(float(weights @ [step.cos_in for step in steps]), abs=1e-6)
    assert row.hackward_frac == pytest.approx(float(weights @ fractions), abs=1e-6)
    assert row.norm_removed == pytest.approx(float(np.sqrt(weights @ fractions**2)), abs=1e-6)
    assert row.norm_removed > 0.1, "the gate removes nothing: the test shows nothing"


def test_a_control_with_the_directions_of_v_hack_has_its_row(same: Path) -> None:
    """From the products that are stored of controls; and a study of treatments finds it under the control's name."""
    found = rows(same, "vanilla")
    control, v_hack = (
        {name: value for name, value in asdict(found[arm]).items() if name != "arm"} for arm in ("random", "vanilla")
    )
    assert control == pytest.approx(v_hack, rel=1e-5)
    removal = removal_of(read_run(same))
    assert removal == found["random"]


def test_a_dosed_arm_removes_as_much_and_something_else(dosed: Path) -> None:
    found = rows(dosed, "projected")
    for arm in ("random-dosed", "permuted-dosed"):
        assert found[arm].norm_removed == pytest.approx(found["projected"].norm_removed, rel=1e-6)
        assert found[arm].margin_removed != pytest.approx(found["projected"].margin_removed, abs=0.1)
        assert found[arm].cos_in != pytest.approx(found["projected"].cos_in, abs=0.01)
