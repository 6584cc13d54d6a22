"""probe.experiments.judge.foretell: Spearman's interval simulated, a measure that is chosen, and what specs may ask."""

import math
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

from probe.cli import cli
from probe.experiments.judge.foretell import MEASURES, OUTCOMES, ForetoldTreatment, correlate, spearman
from probe.experiments.planning.checks import open_spec
from probe.experiments.spec.jobs import block, runs_of
from probe.experiments.spec.prereg import load_spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, file_hashes
from replay_pools.errors import InputError
from replay_pools.storage.files import read_json, write_json

SHIPPED = Path("spec/foretell.toml")


@pytest.mark.parametrize("num_treatments", [8, 9, 17])
@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_the_interval_covers(num_treatments: int, r: float) -> None:
    """Of bivariate normal measures and falls, whose rank correlation is 6 / pi arcsin(r / 2)."""
    rng, truth, covered = np.random.default_rng(0), 6 / math.pi * math.asin(r / 2), 0
    for _ in range(600):
        x = rng.normal(size=num_treatments)
        y = r * x + math.sqrt(1 - r * r) * rng.normal(size=num_treatments)
        _, interval = spearman([*x], [*y])
        assert interval is not None
        covered += interval.low <= truth <= interval.high
    assert 0.92 <= covered / 600 <= 0.99


def test_a_perfect_ranking_is_no_certainty() -> None:
    rho, interval = spearman([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])
    assert rho == pytest.approx(1)
    assert interval is not None
    assert 0 < interval.low < 0.99
    assert interval.high < 1


def test_what_does_not_vary_has_no_correlation() -> None:
    assert math.isnan(spearman([1, 1, 1, 1], [1, 2, 3, 4])[0])
    assert spearman([1, 2, 3], [3, 2, 1]) == (pytest.approx(-1), None), "three treatments have no interval"


def treatment(number: int, half: str, fall: float, **measures: float | None) -> ForetoldTreatment:
    return ForetoldTreatment(
        condition=f"c{number}",
        half=half,
        verdict=None,
        measures=dict.fromkeys(MEASURES, None) | measures,
        falls={outcome: {"1": fall - 0.1, "2": fall + 0.1} for outcome in OUTCOMES},
    )


def test_the_choosing_half_chooses_and_the_other_confirms() -> None:
    """`pull` ranks the choosing half and misranks the other; `cos_in`, missing once, is no candidate."""
    falls = [0.1, 0.3, 0.2, 0.6, 0.5]
    rows = []
    for number, fall in enumerate(falls):
        cos_in = None if number == 0 else fall
        rows.append(treatment(number, "choose", fall, pull=fall, norm_removed=-fall, cos_in=cos_in))
        rows.append(treatment(number + 9, "confirm", fall, pull=-fall, norm_removed=fall, cos_in=fall))
    found = correlate(rows)
    assert found.chosen == "pull"
    values = {key.metric: estimate.value for key, estimate in found.metrics().items()}
    assert values["foretold/hack"] == pytest.approx(-1)
    assert values["foretold/hack/norm_removed"] == values["foretold/solve/norm_removed"]
    assert "foretold/hack/honest_removed" not in values, "nothing was measured"


def test_the_shipped_spec_replays_every_treatment_beside_its_training(tmp_path: Path) -> None:
    """A replay has the condition's directions and arm, and v_hack's measure beside it."""
    spec = open_spec(SHIPPED)
    jobs = block(spec, spec.seeds[0], tmp_path)
    replays = {job.foretells: job for job in jobs if job.foretells is not None}
    trainings = {job.conditions[0]: job for job in jobs if job.foretells is None}
    assert replays.keys() == trainings.keys() - {"none"}
    for name, job in replays.items():
        training = trainings[str(name)].config.intervention
        assert job.config.verb == "replay"
        assert job.config.intervention.arms == ("vanilla", *training.arms)
        assert job.config.intervention.extraction == training.extraction


WRONG: dict[str, tuple[str, str, str]] = {
    "a condition that is not there": (
        'untreated = "none"',
        'untreated = "nobody"',
        "untreated: expected some",
    ),
    "twice": ('choose = ["k1",', 'choose = ["k2",', "'k2' twice"),
    "a setting of the condition": ("replay = {", "replay = { intervention.extraction.k = 3,", "found intervention"),
    "an unknown metric": ('"foretold/hack/all"', '"foretold/hack/al"', "did you mean foretold/hack/all"),
    "a unit": (
        'metric = "foretold/hack"\nstatistic = "lower95"\ncomparison = ">"\nthreshold = 0.0\nunit = "condition"',
        'metric = "foretold/hack"\nstatistic = "lower95"\ncomparison = ">"\nthreshold = 0.0\nunit = "seed"',
        "unit: expected condition",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_does_not_fit_is_refused(fault: str, tmp_path: Path) -> None:
    old, new, message = WRONG[fault]
    text = SHIPPED.read_text()
    assert old in text
    path = tmp_path / SHIPPED.name
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        open_spec(path)


NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
SPEC = """
arms = ["vanilla", "projected"]
seeds = [0, 1]
[experiment]
name = "doses"
question = "Does a replay rank doses as their trainings do?"
hypotheses = ["It does."]
[settings]
verb = "train"
preset = "fast"
[foretell]
replay = {{ source.replay_dirs = ["teacher", "base-hinted"], source.match = "prompt" }}
untreated = "none"
choose = ["a", "c", "e", "g"]
confirm = ["b", "d", "f", "h"]
[[conditions]]
name = "none"
arms = ["vanilla"]
{conditions}
[[criteria]]
name = "foretells"
metric = "foretold/hack/margin_removed"
statistic = "lower95"
comparison = ">"
threshold = 0.0
unit = "condition"
role = "primary"
[[decisions]]
name = "FORETOLD"
requires = {{ foretells = "PASS" }}
[[decisions]]
name = "NOT FORETOLD"
requires = {{ foretells = "FAIL" }}
[[decisions]]
name = "OPEN"
"""
CONDITION = '[[conditions]]\nname = "{name}"\narms = ["projected"]\nsettings.intervention.gate.overshoot = {dose}\n'


@pytest.mark.parametrize(("sign", "decision"), [(1, "FORETOLD"), (-1, "NOT FORETOLD")])
def test_replays_and_trainings_of_a_sweep_are_held_together(
    sign: int, decision: str, tmp_path: Path, make_rollout: Callable[..., Any], pool_header: dict[str, Any]
) -> None:
    """Eight doses of one gate: trainings hack less the larger the dose, or the more; `probe analyze` says which. The
    files say it, too, which are tried on the first.
    """
    doses = {name: (number + 1) / 8 for number, name in enumerate(NAMES)}
    conditions = "".join(CONDITION.format(name=name, dose=dose) for name, dose in doses.items())
    path = tmp_path / "doses.toml"
    path.write_text(SPEC.format(conditions=conditions))
    spec, rates = load_spec(path), {"none vanilla": (0.02, 0.5, 0.8, 0.5)}
    for number, name in enumerate(NAMES):
        rates[f"{name} projected"] = (0.02, 0.5, 0.8 - 0.09 * (number if sign > 0 else 7 - number), 0.5)
    plant(spec, tmp_path / "out", rates, make_rollout, pool_header, problems=64)
    for run in runs_of(spec, tmp_path / "out"):
        if run.job.foretells is not None:
            directory = make_run(run.job.directory, World(num_steps=8, arms=("vanilla", "projected")))
            config = read_json(directory / CONFIG_FILE) | {"settings": asdict(run.job.config), "pools": []}
            write_json(directory / CONFIG_FILE, config)
            manifest = read_json(directory / MANIFEST_FILE)
            write_json(directory / MANIFEST_FILE, manifest | {"files": manifest["files"] | file_hashes(directory)})
    arguments = ["analyze", str(path), "--out", str(tmp_path / "out"), "--draws", "99"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    verdict = orjson.loads(result.stdout)
    found = verdict["foretold"]
    rho = {(row["measure"], row["treatments"]): row["rho"] for row in found["correlations"] if row["outcome"] == "hack"}
    assert sign * rho["margin_removed", "all"] > 0.8
    assert ("pull", "all") not in rho, "it does not know the dose"
    if sign > 0:
        assert found["chosen"] in ("norm_removed", "margin_removed", "hacks_removed", "honest_removed")
    assert verdict["decision"] == decision
    if sign > 0:
        files_say_it(path, arguments)


def files_say_it(path: Path, arguments: list[str]) -> None:
    """The screen, the log of the spec with its drawing, and the page."""
    text = CliRunner().invoke(cli, [*arguments, "--write"]).stdout
    assert "Rank correlation over treatments" in text
    assert "by the verdict of their replay" in text
    assert "(doses.svg)" in path.with_suffix(".md").read_text()
    drawing = path.with_suffix(".svg").read_text()
    assert all(f">{name}</text>" in drawing for name in NAMES)
    result = CliRunner().invoke(cli, ["report", *arguments[1:]])
    assert result.exit_code == 0, result.output
    (page,) = (path.parent / "out" / "reports").rglob("*.html")
    assert "Did the replays foretell the trainings?" in page.read_text()
    assert [*page.parent.rglob("foretold-hack.svg")]
