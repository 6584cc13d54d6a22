"""spec/foretell.py: Spearman's interval simulated, what a gate removes against the forecast, its table from runs."""

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from trainings import plant
from worlds import World, make_run

from extraction import library
from probe.analysis.measures.forecast import forecast
from probe.analysis.statistics.intervals import prompt_weights
from probe.analysis.statistics.run_gradients import Linked, link
from probe.experiments.load import load_spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, Run, file_hashes, read_run
from replay_pools.storage.files import read_json, write_json

SCRIPT = Path(__file__).resolve().parents[2] / "spec" / "foretell.py"
_module = importlib.util.spec_from_file_location("foretell", SCRIPT)
assert _module is not None
assert _module.loader is not None
foretell = importlib.util.module_from_spec(_module)
sys.modules["foretell"] = foretell  # its dataclasses look it up
_module.loader.exec_module(foretell)


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


@pytest.mark.parametrize(("gate", "overshoot"), [("one_sided", 1.0), ("two_sided", 2.0)])
def test_what_the_gate_along_v_hack_removes_is_the_forecast(all_hinted: Path, gate: str, overshoot: float) -> None:
    """Shares of the three targets, and the norm that is removed."""
    run = read_run(all_hinted)
    of_projected = linked(run, "projected")
    row = foretell.removals(run, of_projected, gate=gate, overshoot=overshoot)["projected"]
    expected = forecast(of_projected, gate=gate, overshoot=overshoot, num_draws=9)
    assert expected is not None
    assert row["norm_removed"] == pytest.approx(expected.norm_removed, rel=1e-9)
    for target in ("margin", "hacks", "honest"):
        share = expected.row(target)
        assert share is not None
        assert share.removed is not None
        assert row[f"{target}_removed"] == pytest.approx(share.removed.value, rel=1e-6), target


def test_measures_are_what_the_run_recorded_and_a_dosed_arm_removes_as_much(all_hinted: Path) -> None:
    run = read_run(all_hinted)
    rows = foretell.removals(run, linked(run, "projected"))
    steps = [step for step in run.steps if step.arm == "projected" and step.cos_in is not None]
    weights = prompt_weights([step.problem_id for step in steps])
    fractions = np.array([step.hackward_frac_in for step in steps])
    assert rows["projected"]["cos_in"] == pytest.approx(float(weights @ [step.cos_in for step in steps]), abs=1e-6)
    assert rows["projected"]["norm_removed"] == pytest.approx(float(np.sqrt(weights @ fractions**2)), abs=1e-6)
    for arm in ("random-dosed", "permuted-dosed"):
        assert rows[arm]["norm_removed"] == pytest.approx(rows["projected"]["norm_removed"], rel=1e-6)
        assert rows[arm]["margin_removed"] != pytest.approx(rows["projected"]["margin_removed"], abs=0.1)


def test_a_control_with_the_directions_of_v_hack_has_its_row(
    replay: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the products that are stored of controls; the treatment is the control, not vanilla beside it."""
    monkeypatch.setattr(library, "haar_directions", lambda v_hack, seed: v_hack)
    options = ("--replay-dirs", "teacher,base-hinted", "--match", "prompt", "--steps", "8")
    run = read_run(replay("removal-same", *options, "--arm", "vanilla,random"))
    rows = foretell.removals(run, linked(run, "vanilla"))
    assert rows["random"] == pytest.approx(rows["vanilla"], rel=1e-5)
    assert foretell.measures_of(run) == rows["random"]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_table_holds_replays_and_trainings_together(
    sign: int,
    tmp_path: Path,
    make_rollout: Callable[..., Any],
    pool_header: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight doses of one gate: trainings hack less the larger the dose, or the more; `pull` does not know the dose."""
    names = ("k1", "k2", "k4", "k8", "mean", "first-half", "second-half", "sentinel")
    monkeypatch.setattr(foretell, "CHOOSE", names[::2])
    monkeypatch.setattr(foretell, "CONFIRM", names[1::2])
    monkeypatch.setattr(foretell, "NUM_DRAWS", 99)
    spec = load_spec(foretell.SPEC).model_copy(update={"seeds": (22,)})
    monkeypatch.setattr(foretell, "load_spec", lambda path: spec)
    rates = {"none vanilla": (0.02, 0.5, 0.8, 0.5)}
    for number, name in enumerate(names):
        rates[f"{name} projected"] = (0.02, 0.5, 0.8 - 0.09 * (number if sign > 0 else 7 - number), 0.5)
    plant(spec, tmp_path, rates, make_rollout, pool_header, problems=64)
    for number, name in enumerate(names):
        world = World(num_steps=8, arms=("vanilla", "projected"))
        directory = make_run(foretell.replay_run(spec, name, spec.seeds[0], tmp_path), world)
        settings = asdict(foretell.replay_config(spec, name, spec.seeds[0]))
        assert settings["intervention"]["arms"] == ("vanilla", "projected")
        settings["intervention"]["gate"]["overshoot"] = (number + 1) / 8
        settings["intervention"]["extraction"] |= {"k": 4, "method": "svd", "half": None, "pairs": "builtin"}
        write_json(directory / CONFIG_FILE, read_json(directory / CONFIG_FILE) | {"settings": settings, "pools": []})
        manifest = read_json(directory / MANIFEST_FILE)
        write_json(directory / MANIFEST_FILE, manifest | {"files": manifest["files"] | file_hashes(directory)})
    result = CliRunner().invoke(foretell.main, ["table", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = orjson.loads(result.stdout)
    rho = {(row["measure"], row["treatments"]): row["rho"] for row in found["correlations"] if row["outcome"] == "hack"}
    assert sign * rho["margin_removed", "all"] > 0.8
    assert ("pull", "all") not in rho
    if sign > 0:
        assert found["chosen"] in ("norm_removed", "margin_removed", "hacks_removed", "honest_removed")
        text = CliRunner().invoke(foretell.main, ["table", "--out", str(tmp_path)]).stdout
        assert "Rank correlation over treatments" in text
