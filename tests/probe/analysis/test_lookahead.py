"""The lookahead of a replay: arms that do the same gain the same, paired by prompt; transfer by its labels."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from worlds import World, make_run

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.gains import moves
from probe.analysis.rivals import transfer
from probe.analysis.screen import K
from probe.analysis.statistics.run_gradients import Linked, link
from probe.records.records import LookaheadRecord
from probe.records.run import read_run
from probe.runs.lookahead import look_at_remedies


def rows(arm: str, measure: str, *values: float) -> list[LookaheadRecord]:
    return [LookaheadRecord(arm=arm, measure=measure, prompt=f"p{i}", value=value) for i, value in enumerate(values)]


@pytest.mark.slow
def test_a_gate_that_removes_nothing_moves_the_policy_as_no_gate_does(quick, out: Path, probe, monkeypatch) -> None:
    """Same steps: every measure is equal to the last bit; a gate that removes something moves it less."""
    pairs = builtin_pairs("run_tests")
    write_pairs(out / "pairs" / "ahead.jsonl", [*pairs[:4], *pairs[-2:]])
    options = (*quick, "--pairs", out / "pairs" / "ahead.jsonl", "--steps", "2", "--lookahead", "2")
    for name, overshoot in (("idle", 0), ("acts", 1)):
        changed = ("--arm", "vanilla,projected", "--set", f"intervention.projection.overshoot={overshoot}")
        probe("replay", *options, *changed, "--name", name)
    idle, acts = (read_run(out / "runs" / name) for name in ("idle", "acts"))
    of_arm = {
        arm: {(row.measure, row.prompt): row.value for row in idle.lookahead if row.arm == arm}
        for arm in ("vanilla", "projected")
    }
    assert of_arm["vanilla"]
    assert of_arm["vanilla"] == {key: of_arm["projected"][key] for key in of_arm["vanilla"]}
    assert any(value != 0 for (measure, _), value in of_arm["vanilla"].items() if measure == "held-out hacks")
    changes = {row.name: row.value for row in moves(acts.lookahead) if row.arm == "projected"}
    assert changes["hacks, minus vanilla"] < 0
    # Remedies look ahead as arms do, to the same numbers.
    remedies = {
        "gate": {"intervention.arms": ["projected"]},
        "closed": {"remedy.name": "no-loophole"},
        "paid": {"rollouts.pay": "tests"},
        "slow": {"optimizer.lr": 0.001},
        "lora": {"intervention.arms": ["projected-lora"]},
    }
    ahead = look_at_remedies(acts, remedies, 2, out_dir=out, say=print)
    plain, gate, closed = (ahead[name].records for name in ("plain", "gate", "closed"))
    assert plain + gate == acts.lookahead
    assert {row.measure for row in closed} == {row.measure for row in plain}
    assert closed != plain
    assert [name for name, found in ahead.items() if isinstance(found, str)] == ["paid", "slow", "lora"]
    assert "another basis" in ahead["lora"]
    assert "do not see optimizer.lr" in ahead["slow"]
    # The command reads what is there, and says what it cannot see.
    monkeypatch.setattr("probe.settings.remedy.CANDIDATES", {"closed": remedies["closed"], "k99": {K: 99}})
    closed, k99 = json.loads(probe("screen", "acts", "--lookahead", "2", "--json")[0])["remedies"]
    assert min(closed["hack_gain_avoided"], closed["cost"]) > 0
    assert (k99["hack_gain_avoided"], "99" in k99["why"]) == (None, True)


def test_differences_are_paired_by_prompt() -> None:
    records = rows("vanilla", "honest", 0.5, 1.0, 0.0) + rows("projected", "honest", 0.25, 0.5, 0.0)
    less = moves(records)[-1]
    assert [row.name for row in moves(records)] == ["honest", "honest", "honest, minus vanilla"]
    half = stats.t.ppf(0.975, 2) * stats.tstd([-0.25, -0.5, 0.0]) / 3**0.5
    assert (less.value, less.high) == pytest.approx((-0.25, -0.25 + half))


@pytest.mark.parametrize("shuffled", [False, True])
def test_labels_that_follow_the_gradients_transfer_and_shuffled_ones_do_not(shuffled: bool, tmp_path: Path) -> None:
    world = read_run(make_run(tmp_path / "runs" / "run", World(num_steps=24)))
    samples = [row for row in world.samples if row.arm == "vanilla"]
    linked: Linked = link(world, samples, [row for row in world.steps if row.arm == "vanilla"])
    hacked = np.array([row.hacked for row in linked.samples])
    if shuffled:
        hacked = np.random.default_rng(0).permutation(hacked)
    labels = zip(linked.samples, hacked.tolist(), strict=True)
    labelled = replace(linked, samples=[replace(row, hacked=hack, gt_pass=not hack) for row, hack in labels])
    found = transfer(labelled, [*{row.src_pool for row in linked.samples}], "vanilla")
    if shuffled:
        assert found.low < 0.5 < found.high
    else:
        assert found.low > 0.7
    assert transfer(linked, [], "vanilla").why == "no rollouts of the policy itself"
