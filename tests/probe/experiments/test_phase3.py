"""phase3.toml: its plan without a model at hand, its ceiling, its decisions, and its first step at two layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
from in_process import Scripted
from trainings import Rates, plant

from probe.experiments.judge import evaluate_spec
from probe.experiments.spec_file import load_spec
from probe.experiments.sweep import sweep

PHASE3 = Path(__file__).parents[3] / "spec" / "experiments" / "phase3.toml"
LEARNT: Rates = (0.02, 0.2, 0.85, 0.2)
GOOD: Rates = (0.02, 0.2, 0.05, 0.5)


def test_it_plans_without_files_and_without_a_hub(tmp_path: Path, probe, monkeypatch) -> None:
    """Shapes of the published model; what is not known is said, with what to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("replay_pools.policy.load.HfApi", mock.Mock(side_effect=AssertionError("a hub was asked")))
    plan = orjson.loads(probe("spec", "plan", PHASE3, "--json", root="out")[0])
    runs = {price["what"]: price["runs"] for price in plan["prices"]}
    assert runs == {"up to its ceiling learns": 3, "up to its ceiling lowers-hacking": 6, "this spec": 24}
    assert plan["prices"][0]["money"] == pytest.approx(3 * 7.2 * 6.15)
    planned = next(row for row in plan["effects"] if row["planned"])
    assert planned["n"] == 3
    assert planned["smallest"] < 0.5
    assert [note for note in plan["notes"] if "medhard_filtered.jsonl: expected a LeetCode jsonl file" in note]


@pytest.fixture
def swept(tmp_path: Path, make_rollout, pool_header: dict[str, Any]) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """swept(rates of projected, of vanilla) -> (the sweep of phase3 in a world with these rates, its runs in order)."""

    def make(projected: Rates, vanilla: Rates = LEARNT) -> tuple[dict[str, Any], list[str]]:
        spec, closed = load_spec(PHASE3), (0.02, 0.2, 0.02, 0.4)
        rates = {f"{condition} {arm}": LEARNT for condition, arm in spec.cells}
        rates |= {"gradient vanilla": vanilla, "gradient projected": projected, "gradient projected-lora": projected}
        rates |= {"kl vanilla": (0.02, 0.2, 0.7, 0.2), "closed vanilla": closed}

        def act(name: str) -> int:
            (side,) = [side for side in rates if name.startswith(f"phase3-{side.replace(' ', '-')}-seed")]
            # All seeds of a side are planted at once, with the first of them.
            if not (tmp_path / "runs" / name).exists():
                plant(spec, tmp_path, {side: rates[side]}, make_rollout, pool_header, problems=24)
            return 0

        engine = Scripted(act)
        return sweep(spec, tmp_path, engine=engine), engine.launched

    return make


COMPARED = [f"phase3-gradient-{arm}-seed{seed}" for arm in ("vanilla", "projected") for seed in (0, 1, 2)]


@pytest.mark.slow
def test_the_others_are_bought_where_the_first_arms_separate(swept: Callable[..., Any], tmp_path: Path) -> None:
    table, launched = swept(GOOD)
    assert launched[:6] == COMPARED
    assert len(launched) == len({*launched}) == 24
    assert not table["stopped"]
    verdict = evaluate_spec(load_spec(PHASE3), tmp_path)
    assert verdict.verdict.word == "IT IS THE DIRECTION"
    assert verdict.verdict.finding("hacks-no-more-than-closed").says != "FAIL"


def test_the_ceiling_holds_where_they_do_not(swept: Callable[..., Any]) -> None:
    """Six runs, not eighteen, and the same call again buys none of the others."""
    for again in (False, True):
        table, launched = swept((0.02, 0.2, 0.84, 0.2))
        assert launched == ([] if again else COMPARED)
        assert table["stopped"].startswith("at the ceiling: lowers-hacking is ")
        assert table["stopped"].endswith(" after 6 of 24 runs")
        assert [row["status"] for row in table["rows"]].count("skipped") == 18


def test_nothing_but_vanilla_is_bought_where_it_does_not_learn(swept: Callable[..., Any]) -> None:
    table, launched = swept(GOOD, vanilla=(0.02, 0.2, 0.06, 0.3))
    assert launched == COMPARED[:3]
    assert table["stopped"].startswith("at the ceiling: learns is ")
