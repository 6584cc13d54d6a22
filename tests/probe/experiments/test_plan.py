"""Plans: detectable effects, hours and money of a spec, and its vacuous parts, all before the first run."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from specs import criterion, replay_spec, training_spec

from probe.experiments.jobs import run_jobs
from probe.experiments.plan import vacuous_parts
from probe.experiments.register import spec_files
from probe.experiments.spec_file import load_spec
from replay_pools.base.files import write_json

ROOT = Path(__file__).parents[3]
OTHER = "conditions.other.settings"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(other, seeds, budget) -> a spec of ten steps with this condition and so on."""

    def make(other: Any = None, **parts: Any) -> Path:
        other = {"intervention.extraction.k": 2} if other is None else other
        usual = criterion("main", "cos_in above 0.0", "primary")
        parts = {"conditions": {"plain": {}, "other": other}, "criteria": [usual], **parts}
        path = tmp_path / "planned.toml"
        path.write_text(replay_spec("planned", {"steps": 10}, arms=["vanilla", "projected", "placebo"], **parts))
        return path

    return make


CAP = f"{OTHER}.objective.advantage_clip"
CLIP = "objective.advantage_clip"
# (the condition, the vacuous part, why)
VACUOUS: list[tuple[Any, str, str]] = [
    (None, "", ""),
    ({CLIP: 5.0}, CAP, "not below 3.06"),
    ({CLIP: 2.0}, "", ""),
    ({CLIP: 7.0, "objective.advantage_estimator": "maxrl"}, CAP, "below 7,"),
    ({CLIP: 2.5, "objective.scale_rewards": "group"}, CAP, "not below 2.47"),
    ({"objective.sepa_lambda": 0.5}, f"{OTHER}.objective.sepa_lambda", "gtpo_beta"),
    ({"objective.sepa_lambda": 0.5, "objective.gtpo_beta": 0.1}, "", ""),
]


@pytest.mark.parametrize(("other", "where", "why"), VACUOUS)
def test_vacuous_parts_are_named_with_the_reason(write, other: Any, where: str, why: str, probe) -> None:
    """Against the bound of a group of 2 x 4 rewards that differ by 3.5; the caps that bind are none."""
    path = write(other)
    parts = vacuous_parts(load_spec(path))
    assert [part["where"] for part in parts] == ([where] if where else [])
    assert all(why in part["why"] for part in parts)
    if where == CAP:
        assert f"VACUOUS  {CAP}" in probe("spec", "plan", path)[0]


@pytest.fixture
def plan(tmp_path: Path, probe) -> Callable[[Path], dict[str, Any]]:
    """plan(spec) -> what `probe spec plan --json` prints, with the runs in tmp_path."""
    return lambda path: json.loads(probe("spec", "plan", path, "--json", root=tmp_path)[0])


def test_the_numbers_of_a_plan(write: Callable[..., Path], tmp_path: Path, plan) -> None:
    """By hand: 6 runs of 60 s and 10 steps at 30 s, 4 an hour; effects as in power."""
    budget = {"price_per_hour": 4.0, "sd": 0.15, "expected_effect": 0.3, "effect_unit": "rate"}
    path = write(seeds=[0, 1, 2], budget=budget)
    timed = tmp_path / "runs" / "planned-plain-seed0"
    write_json(timed / "config.json", {"settings": asdict(run_jobs(load_spec(path), tmp_path)[0].config)})
    start = '{"start":{"load":{"seconds":50},"svd":{"seconds":10}}}\n'
    (timed / "timings.jsonl").write_text(
        start + '{"step":0,"seconds":39}\n{"step":1,"seconds":31}\n{"step":2,"seconds":20}\n'
    )
    found = plan(path)
    (own,) = found["prices"]
    assert (own["runs"], own["hours"], own["money"]) == (6, pytest.approx(0.6), pytest.approx(2.4))
    assert "30 s a step, 60 s before the first" in own["source"]
    planned = next(effect for effect in found["effects"] if effect["planned"])
    assert planned == {"n": 3, "smallest": pytest.approx(0.461, abs=1e-3), "planned": True}
    assert any("CANNOT see the expected effect of 0.3 rate" in note for note in found["notes"])
    path.write_text(path.read_text().replace("steps = 10", "").replace("sd = 0.15\n", ""))
    found = plan(path)
    assert any("[budget] states no sd" in note for note in found["notes"]), "nothing is left out silently"
    (all_groups,) = found["prices"]
    assert all_groups["hours"] == pytest.approx(6 * (60 + 40 * 30) / 3600), "a step for each of the pools' 40 groups"


def test_the_plan_of_a_training_spec(tmp_path: Path, plan) -> None:
    """9 runs (two arms and one, three seeds) of 10 and 20 steps; times of the spec's own finished runs; one arm."""
    path = tmp_path / "trained.toml"
    conditions = {"plain": {"steps": 10}, "other": {"arms": ["vanilla"], "steps": 20}}
    path.write_text(training_spec("trained", seeds=[0, 1, 2], conditions=conditions))
    for arm, seconds in (("vanilla", 20), ("projected", 40)):
        run_dir = tmp_path / "runs" / f"trained-plain-{arm}-seed0"
        write_json(run_dir / "config.json", {"settings": asdict(run_jobs(load_spec(path), tmp_path)[0].config)})
        (run_dir / "timings.jsonl").write_text(f'{{"step":0,"seconds":{seconds}}}\n')
    found = plan(path)
    assert found["runs"] == 9
    assert found["prices"][0]["hours"] == pytest.approx((6 * 10 + 3 * 20) * 30 / 3600), "a condition's own steps"
    measured = "measured in trained-plain-projected-seed0, trained-plain-vanilla-seed0:"
    assert found["prices"][0]["source"].startswith(measured)


def test_shipped_specs_plan(plan) -> None:
    """One part of all is vacuous, which its .md file explains: a cap of 5."""
    found = []
    for path in spec_files(ROOT / "spec"):
        own = plan(path)
        found += [f"{path.stem} {part['where']}" for part in own["vacuous"]]
    assert found == ["advantage-capping conditions.C2-cap5.settings.objective.advantage_clip"]
