"""probe.analysis on synthetic runs with a known truth: planted signal, no signal, nothing measurable, missing arms."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_records import sample_record, step_record
from scipy import stats
from scripts import ROOT, load_script

from probe.analysis.analyze import Analysis, analyze, conditions
from probe.analysis.cosines import HACK_DIFFERENCE
from probe.analysis.formatting import WIDTH
from probe.analysis.text_report import format_analysis
from probe.analysis.verdict.validity import projection_acted
from probe.records.records import ADVANTAGE_KEYS
from probe.records.run import Run

seed_tables = load_script(ROOT / "spec" / "tools" / "seed_tables.py").seed_tables
HAAR_SD = 0.02
# (src_pool, hacked, gt_pass, reward) of a group: two paid hacks, a paid clean one, a hack that is right, four failures.
GROUP = (
    [("teacher", True, False, 3.5)] * 2
    + [("teacher", True, True, 3.5), ("teacher", False, False, 0.5)]
    + [("base", False, True, 3.5)]
    + [("base", False, False, 0.5)] * 3
)


def sample(step, i, arm, cos_nll, group=GROUP):
    src_pool, hacked, gt_pass, reward = group[i]
    advantage = reward - float(np.mean([row[3] for row in group]))
    return sample_record(
        step=step, sample_id=i, src_pool=src_pool, src_step=step, src_sample=i, reward=reward, hacked=hacked,
        gt_pass=gt_pass, comp_len=20 + i, cos_S_contrib=float(np.sign(advantage)) * cos_nll if advantage else None,
        grad_norm_contrib=abs(advantage), arm=arm, advantage=advantage, cos_S_nll=cos_nll, problem_id=f"p{step}",
        prompt_sha=f"{step:016x}", null_reason=None if advantage else "advantage is 0", hint=src_pool == "teacher",
        haar_sd=HAAR_SD,
    )  # fmt: skip


def a_step(step, arm, cos_in, *, cos_out=None, cos_update=None, spread=3.0):
    there = cos_in is not None
    return step_record(
        step=step, arm=arm, problem_id=f"p{step}", cos_in=cos_in, cos_out=cos_in if cos_out is None else cos_out,
        mean_cos_in=cos_in, mean_cos_out=cos_in, hackward_frac_in=0.3 if there else None,
        hackward_frac_out=0.0 if there else None, frac_fired=0.5 if there else None,
        haar_sd=HAAR_SD if there else None, reward_spread=spread, grad_norm=float(there),
        null_reason=None if there else "no reward variance", cos_update=cos_update,
    )  # fmt: skip


def synthetic(*, aligned=0.0, hack=0.0, pure=0.0, arms=("vanilla",), num_steps=16, group=GROUP):
    """A run at frozen weights: cos_in ~ aligned + noise; cos_S_nll ~ hack * hacked + pure * pure hack + noise.

    Control arms have noise alone.
    """
    rng = np.random.default_rng(0)
    steps, samples = [], []
    for step in range(num_steps):
        cos_in, prompt = aligned + rng.normal(0, HAAR_SD), rng.normal(0, 0.1)
        cosines = [
            prompt + hack * hacked + pure * (hacked and not gt) + rng.normal(0, 0.03) for _, hacked, gt, _ in group
        ]
        for arm in arms:
            is_control = arm not in ("vanilla", "projected", "projected-lora")
            base, *own = rng.normal(0, HAAR_SD, 1 + len(group)).tolist() if is_control else [cos_in, *cosines]
            steps.append(a_step(step, arm, base, cos_out=-0.05 if arm == "projected" else None))
            samples += [sample(step, i, arm, c, group) for i, c in enumerate(own)]
    return Run(path=Path("out/runs/synthetic"), config={"settings": {}}, manifest={}, samples=samples, steps=steps)


def checks(analysis):
    return {check.name: check for check in seed_tables(analysis)}


def contrast_of(analysis):
    return analysis.get("contrasts", HACK_DIFFERENCE, "vanilla")


def test_planted_signal_in_the_seeds_tables():
    """cos_in .3 on every prompt and hacks .2 above clean ones: each row as the seed worded it, or VACUOUS."""
    arms = ("vanilla", "projected", "random", "permuted")
    found = analyze(synthetic(aligned=0.3, hack=0.2, pure=0.2, arms=arms))
    verdicts = {name: check.says for name, check in checks(found).items()}
    expected = {"PASS": "V1 V2 V3 V4b D2 D3", "VACUOUS": "V4 D4", "FAIL": "D1 D5"}
    assert verdicts == {name: says for says, names in expected.items() for name in names.split()}
    assert {name for name, check in checks(found).items() if check.role == "mechanism"} == {"V3", "D3", "D4"}


@pytest.mark.parametrize(
    ("aligned", "words"),
    [
        (0.3, ("PASS", "FAIL", "PASS")),
        (0.1, ("PASS", "FAIL", "FAIL")),
        (0.2, ("PASS", "FAIL", "INCONCLUSIVE")),
        (0.05, ("PASS", "INCONCLUSIVE", "FAIL")),
        (0.0, ("INCONCLUSIVE", "PASS", "FAIL")),
        (-0.3, ("FAIL", "FAIL", "FAIL")),
    ],
)
def test_the_seeds_rules_read_the_signed_cosine(aligned, words):
    """V2 above 0 on most steps, D1 within .05 of 0, D2 above .2; a negative one fails all three."""
    found = checks(analyze(synthetic(aligned=aligned)))
    assert tuple(found[name].says for name in ("V2", "D1", "D2")) == words
    assert ("reverse sign" in found["V2"].text) == (aligned < 0)


@pytest.mark.parametrize(
    ("gate", "cosines", "fired", "answers"),
    [
        # D3 below .05; D4: below 0 is a bug of a gate that removes what points away as well, and of no other.
        ({}, [(0.1, -0.08)] * 4, 0.5, "PASS PASS VACUOUS"),
        ({"side": "two_sided"}, [(0.1, 0.0)] * 4, 0.5, "PASS PASS PASS"),
        ({"side": "two_sided"}, [(0.1, -0.08)] * 4, 0.5, "PASS PASS FAIL"),
        ({"side": "two_sided", "overshoot": 2.0}, [(0.1, -0.08)] * 4, 0.5, "PASS PASS VACUOUS"),
        ({"overshoot": 0.5}, [(0.1, 0.07)] * 4, 0.5, "PASS FAIL VACUOUS"),
        # V3: cos_out < cos_in on 80% of the steps, and the modules fire: not "only on a few modules".
        ({"side": "one_sided"}, [(0.2, -0.1)] * 4, 0.01, "INCONCLUSIVE PASS VACUOUS"),
        # Raised from below 0, though hackward_frac falls.
        ({"side": "two_sided"}, [(0.2, 0.0), (-0.1, 0.0)] * 2, 1.0, "FAIL PASS PASS"),
    ],
)
def test_the_seeds_rules_after_the_gate(gate, cosines, fired, answers):
    """V3 compares cosines and names the gate; D3 and D4 read the signed cosine after it."""
    steps = []
    for i, (cos_in, cos_out) in enumerate(cosines):
        steps.append(replace(a_step(i, "projected", cos_in, cos_out=cos_out), frac_fired=fired))
    config = {"settings": {"verb": "replay", "intervention": {"projection": gate}}}
    rows = checks(Analysis(Run(path=Path("run"), config=config, manifest={}, samples=[], steps=steps)))
    assert " ".join(rows[name].says for name in ("V3", "D3", "D4")) == answers
    assert gate.get("side", "one_sided") in rows["V3"].text


def test_a_random_direction_that_separates_hacks_is_no_evidence():
    """Hack gradients differ from clean ones by .03 along the directions, on every prompt: as a Haar direction would."""
    run = synthetic(num_steps=16)
    samples = [replace(s, cos_S_contrib=0.03 * s.hacked + 0.001 * (s.step % 3)) for s in run.samples]
    found = analyze(replace(run, samples=samples))
    assert contrast_of(found).p < 1e-4
    z = contrast_of(found).value / (2 * HAAR_SD)
    row = checks(found)["V4b"]
    assert f"Haar p {2 * stats.norm.sf(z):.2g}" in row.text
    assert row.says == "INCONCLUSIVE"


def test_all_null_cosines():
    """Equal rewards in every group: nothing is measured, everything is counted, nothing reads as orthogonal."""
    group = [("teacher", True, False, 3.5)] * 4
    run = synthetic(group=group, num_steps=4)
    steps = [a_step(s.step, s.arm, None, spread=0.0) for s in run.steps]
    found = analyze(replace(run, steps=steps))
    assert "no group has an update" in found.verdict.sentence
    assert "16 of 16 samples have no cosine (advantage is 0: 16)" in "\n".join(found.verdict.caveats)
    assert {checks(found)[name].says for name in ("V2", "D1", "D2")} == {"INCONCLUSIVE"}
    assert found.cells[0]["mean_cos_contrib"] is None
    assert found.cells[0]["mean_cos_nll"] is not None, "the NLL cosine exists when A = 0"
    assert "one bucket is empty" in checks(found)["V4"].text
    assert max(map(len, format_analysis(found).splitlines())) <= WIDTH


@pytest.mark.parametrize("arms", [("projected",), ()])
def test_missing_arms(arms):
    """Without vanilla, another v_hack arm stands for it; without any, nothing can be read and nothing fails."""
    found = analyze(synthetic(aligned=0.3, arms=arms))
    if "projected" in arms:
        assert found.measured_arm == "projected"
    else:
        assert found.measured_arm is None
        assert "no arm measures along v_hack" in found.verdict.sentence
        assert {c.says for c in seed_tables(found) if c.name != "V1"} == {"INCONCLUSIVE"}
    assert format_analysis(found)


def test_cells_by_hand_and_additive():
    """Cell counts follow GROUP, and the cells' dots add up to the sum over all samples."""
    run = synthetic(num_steps=3)
    found = analyze(run)
    labels = ("src_pool", "hacked", "gt_pass", "advantage_sign")
    cells = {tuple(map(cell.get, labels)): cell for cell in found.cells}
    assert {key: c["n"] for key, c in cells.items()} == {
        ("teacher", True, False, 1): 6,
        ("teacher", True, True, 1): 3,
        ("teacher", False, False, -1): 3,
        ("base", False, True, 1): 3,
        ("base", False, False, -1): 9,
    }
    assert cells["base", False, True, 1]["mean_advantage"] == pytest.approx(3.5 - 2.0)
    assert cells["base", False, True, 1]["num_prompts"] == 3
    total = sum(s.cos_S_contrib * s.grad_norm_contrib for s in run.samples)
    assert sum(c["dot"] for c in found.cells) == pytest.approx(total)


def test_confounds_are_named():
    """In GROUP every paid clean sample comes from base without hint and solves: hack, source and hint coincide."""
    found = analyze(synthetic(hack=0.2))
    assert contrast_of(found).why == "cannot be told from src_pool, hint"


def test_flattened_advantages_fail_the_spread_row():
    """The seed's sneaky failure: rewards differ, yet a cap has left advantages of .01."""
    run, tiny = synthetic(), dict.fromkeys(ADVANTAGE_KEYS, 0.01)
    row = checks(analyze(replace(run, steps=[replace(step, advantage=tiny) for step in run.steps])))["V1"]
    assert (row.says, "flattened" in row.text) == ("FAIL", True)


def test_conditions_are_analysed_one_by_one():
    """Each analysis sees its own condition's records only; `default` is the primary wherever it stands."""
    plain, other = synthetic(aligned=0.3), synthetic(aligned=-0.3, num_steps=4)
    named = {key: [replace(row, condition="scaled") for row in getattr(other, key)] for key in ("samples", "steps")}
    run = replace(plain, samples=named["samples"] + plain.samples, steps=named["steps"] + plain.steps)
    assert conditions(run) == ["default", "scaled"]
    assert analyze(run).to_json() == analyze(plain).to_json()
    found = analyze(run, "scaled")
    assert (found.condition, found.size["num_steps"], found.size["num_samples"]) == ("scaled", 4, 32)
    assert found.of("cos_in")[0].value == pytest.approx(-0.3, abs=0.05)
    assert "condition scaled" in format_analysis(found)
    assert conditions(replace(other, steps=named["steps"])) == ["scaled"]


UPDATE = {"hackward_frac_out": 0.3, "frac_fired": 0.0, "cos_update": -0.1}  # the gradient is left as it is


@pytest.mark.parametrize(
    ("projection", "changes", "expected"),
    [
        ({}, {}, "HOLDS"),
        ({}, {"hackward_frac_out": 1e-3}, "BROKEN"),
        ({"side": "two_sided"}, {"cos_out": 0.01}, "BROKEN"),
        ({"side": "two_sided"}, {"cos_out": 1e-7}, "HOLDS"),
        ({}, {"cos_out": -0.2}, "HOLDS"),  # one-sided: a negative cos_out is legitimate
        ({"overshoot": 0.5}, {}, "NOT SEEN"),
        ({}, {"frac_fired": 0.0}, "BROKEN"),
        ({}, {"cos_in": None, "cos_out": None, "null_reason": "zero"}, "NOT SEEN"),
        ({"target": "update"}, UPDATE | {"hackward_frac_update": 1e-5}, "HOLDS"),
        ({"target": "update"}, UPDATE | {"hackward_frac_update": 0.1}, "BROKEN"),
        ({"target": "update"}, UPDATE, "NOT SEEN"),
    ],
)
def test_a_gate_is_judged_on_what_it_acts_on(projection, changes, expected):
    steps = [step_record(), step_record(arm="projected", **changes)]
    lr = 0.1 if "cos_update" in changes else 0.0
    settings = {"verb": "replay", "optimizer": {"lr": lr}, "intervention": {"projection": projection}}
    run = Run(path=Path("run"), config={"settings": settings}, manifest={}, samples=[], steps=steps)
    says, text = projection_acted(Analysis(run))
    assert says == expected, text
