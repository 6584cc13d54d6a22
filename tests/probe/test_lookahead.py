"""The lookahead of a replay: arms that do the same move alike, what moved is said by prompt; transfer by its labels."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from worlds import World, make_run

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import analyze
from probe.analysis.lookahead import moves, stale
from probe.analysis.screen import K
from probe.analysis.statistics.run_gradients import Linked, link
from probe.analysis.transfer import transfer
from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.load import load_spec
from probe.records.records import LookaheadRecord
from probe.records.run import read_run
from probe.runs.screening import look_at_remedies


def rows(arm: str, measure: str, *values: float) -> list[LookaheadRecord]:
    return [LookaheadRecord(arm=arm, measure=measure, prompt=f"p{i}", value=value) for i, value in enumerate(values)]


def test_a_gate_that_removes_nothing_moves_the_policy_as_no_gate_does(
    quick: list[str], out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same steps, same noise: every measure is equal to the last bit; a gate that removes something moves it less."""
    pairs = builtin_pairs("run_tests")
    write_pairs(out / "pairs" / "ahead.jsonl", [*pairs[:4], *pairs[-2:]])
    command = ["replay", *quick, "--pairs", str(out / "pairs" / "ahead.jsonl"), "--steps", "2", "--lookahead", "2"]
    command += ["--set", "lookahead.num_problems=2"]
    command += ["--set", "lookahead.rollouts_per_problem=1", "--out", str(out)]
    for name, overshoot in (("idle", "0"), ("acts", "1")):
        changed = ["--arm", "vanilla,projected", "--set", f"intervention.gate.overshoot={overshoot}", "--name", name]
        assert run(cli, [*command, *changed]) == 0
    idle, acts = (read_run(out / "runs" / name) for name in ("idle", "acts"))
    of_arm = {
        arm: {(row.measure, row.prompt): row.value for row in idle.lookahead if row.arm == arm}
        for arm in ("vanilla", "projected")
    }
    assert of_arm["vanilla"]
    assert of_arm["vanilla"] == {key: of_arm["projected"][key] for key in of_arm["vanilla"]}
    assert any(value != 0 for (measure, _), value in of_arm["vanilla"].items() if measure == "held-out hacks")
    changes = {row.measure: row.difference for row in moves(acts.lookahead) if row.arm == "projected"}
    assert changes["hacks"] is not None
    assert changes["hacks"].value < 0
    (fresh,) = stale(acts.lookahead)
    assert fresh.overlap is not None
    assert 0 < fresh.overlap < 1
    assert {"progress", "removed by old", "removed by new"} <= {row.measure for row in acts.lookahead}
    # Remedies look ahead as arms do, to the same numbers.
    remedies = {
        "gate": {"intervention.arms": ["projected"]},
        "closed": {"remedy.name": "closed"},
        "paid": {"rollouts.pay": "tests"},
        "slow": {"optimizer.lr": 0.001},
        "lora": {"intervention.arms": ["projected-lora"]},
    }
    ahead = look_at_remedies(acts, remedies, 2, out_dir=out, say=print)
    found = ahead.records
    gained = {"hacks", "honest", "held-out hacks", "held-out clean"}  # and nothing is sampled
    kept = [row for row in acts.lookahead if row.measure in gained]
    assert found["plain"] + found["gate"] == kept
    assert {row.measure for row in found["closed"]} == {row.measure for row in found["plain"]}
    assert found["closed"] != found["plain"]
    assert list(ahead.unseen) == ["paid", "slow", "lora"]
    assert "another basis" in ahead.unseen["lora"]
    assert "do not see optimizer.lr" in ahead.unseen["slow"]
    # The command reads what is there, and says what it cannot see.
    monkeypatch.setattr("probe.settings.remedy.CANDIDATES", {"closed": remedies["closed"], "k99": {K: 99}})
    capsys.readouterr()
    command = ["screen", str(out / "runs" / "acts"), "--lookahead", "2", "--spec", str(out / "picks.toml")]
    assert run(cli, [*command, "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    closed, k99 = said["remedies"]
    assert (closed["remedy"], closed["fall"], "a lookahead of 2 steps" in closed["why"]) == ("closed", None, True)
    assert closed["word"] == "RANKED", "its steps were measured; it is picked without points"
    assert list(load_spec(Path(said["written"])).resolved) == ["plain", "closed"]
    assert closed["cost"] > 0
    assert "99" in k99["why"]
    assert run(cli, ["analyze", str(out / "runs" / "acts"), "--draws", "99", "--full"]) == 0
    text = capsys.readouterr().out
    assert "Lookahead: after steps of each arm" in text
    assert "staleness: ahead, the directions overlap with new ones" in " ".join(text.split())


def test_differences_are_paired_by_prompt_and_shares_are_of_sums() -> None:
    records = rows("vanilla", "sampled solve", 0.5, 1.0, 0.0) + rows("projected", "sampled solve", 0.25, 0.5, 0.0)
    records += rows("projected", "progress", 1.0, 1.2, 0.9, 1.1)
    records += rows("projected", "removed by old", 0.5, 0.7, 0.4, 0.5)
    records += rows("projected", "removed by new", 0.8, 0.9, 0.8, 0.8)
    records += [LookaheadRecord(arm="projected", measure="overlap", prompt="", value=0.9)]
    plain, gated = moves(records)
    assert plain.difference is None
    assert gated.difference is not None
    half = stats.t.ppf(0.975, 2) * stats.tstd([-0.25, -0.5, 0.0]) / 3**0.5
    assert (gated.difference.value, gated.difference.interval.high) == pytest.approx((-0.25, -0.25 + half))
    (row,) = stale(records)
    assert row.overlap == 0.9
    assert row.old is not None
    assert row.new is not None
    assert (row.old.value, row.new.value) == pytest.approx((2.1 / 4.2, 3.3 / 4.2))
    assert row.old.interval.low < 0.5 < row.old.interval.high < row.new.value


@pytest.mark.parametrize(("hacks", "destroys"), [(-64.0, True), (1.5, False)])
def test_steps_that_destroy_the_policy_say_nothing(hacks: float, destroys: bool, tmp_path: Path) -> None:
    """As twenty steps of LoRA at the rate for delta_S do; a policy that grows sharper loses honest solutions alone."""
    moved = [row for arm in ("vanilla", "projected") for row in rows(arm, "hacks", hacks) + rows(arm, "honest", -117.0)]
    moved += [LookaheadRecord(arm="projected", measure="overlap", prompt="", value=0.02)]
    stored = replace(read_run(make_run(tmp_path / "runs" / "run", World())), lookahead=moved)
    said = " ".join(analyze(stored, num_draws=99).verdict.caveats)
    assert ("its steps without a gate make every text less likely, honest solutions by 117 nats" in said) == destroys
    assert ("staleness: ahead, the directions overlap" in said) != destroys


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
    found = transfer(labelled, [*{row.src_pool for row in linked.samples}])
    assert found.auroc is not None
    assert found.ceiling is not None
    if shuffled:
        assert found.auroc.interval.low < 0.5 < found.auroc.interval.high
        assert found.ceiling.value < 0.7, "a fit to labels that say nothing does not hold on other prompts"
    else:
        assert found.auroc.interval.low > 0.7
        assert found.ceiling.interval.low > 0.7
    assert transfer(linked, []).reason == "no rollouts of the policy itself"
