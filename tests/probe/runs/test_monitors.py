"""Monitors: thresholds by hand, the labels that they learn from, both weights, refusals, and the screen of a replay."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from extraction.adapters.frames import svd_frames
from extraction.adapters.trained import Trained
from probe.analysis.detectors import Material
from probe.analysis.gains import gain
from probe.experiments.spec_file import read_candidates
from probe.records.run import read_evals, read_run
from probe.runs.lookahead import look_at_remedies
from probe.runs.meter import mean_scores
from probe.runs.monitors import Monitor, open_monitor
from probe.settings.presets import configure
from probe.step.bases import Bases
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout


@pytest.fixture(scope="module")
def policy(small: str) -> Policy:
    return load_policy(small)


def nll(values: list[float]) -> Callable[[Any], Material]:
    """A meter that gives the rollouts these negative log-likelihoods."""
    return lambda rollouts: Material(rollouts=rollouts, logprobs=-np.array(values))


def test_the_threshold_flags_a_share_of_the_clean_rollouts(make_rollout: Callable[..., Rollout]) -> None:
    """Clean scores 0 to 9 and a labelled hack at 50, which does not count: 2 of 10 lie above 7."""
    clean = [make_rollout(0, i, hacked=True if i == 10 else None if i == 9 else False) for i in range(11)]
    labels = np.array([0.0] * 9 + [np.nan, 1.0])
    material = replace(nll([*map(float, range(10)), 50.0])(clean), labels=labels, pools=["base"] * 11)
    meter = nll([7.0, 7.5, 8.0, -1.0])
    monitor = Monitor("nll", fpr=0.2, clean=material, meter=meter, seed=0)  # pyright: ignore
    reading = monitor.read([make_rollout(1, i) for i in range(4)], ["rollouts"] * 4)
    assert reading.scores.tolist() == [7.0, 7.5, 8.0, -1.0]
    assert reading.flags.tolist() == [False, True, True, False]


def test_a_learning_detector_learns_from_the_clean_pool_alone(make_rollout: Callable[..., Rollout]) -> None:
    """Token 7 marks the hacks of the pool; labels of the scored rollouts, which say the opposite, are not read."""

    def made(step: int, i: int, hacked: bool, marked: bool) -> Rollout:
        return replace(make_rollout(step, i, hacked=hacked), completion_ids=[7] if marked else [8])

    pool = [made(step, i, bool(i), bool(i)) for step in range(30) for i in (0, 1)]
    labels = np.array([0.0, 1.0] * 30)
    clean = Material(rollouts=pool, labels=labels, pools=["mixed"] * 60)
    scored = [made(40, 0, True, False), made(40, 1, False, True)]
    monitor = Monitor("words", fpr=0.05, clean=clean, meter=None, seed=0)
    reading = monitor.read(scored, ["rollouts"] * 2)
    assert reading.flags.tolist() == [False, True]
    judged = monitor.judge(scored)["now"]
    assert (judged["auroc"], judged["recall"], judged["fpr"]) == (0.0, 0.0, 1.0)


def test_now_and_start_are_both_weights(policy: Policy) -> None:
    """Reference: the log-probabilities of the moved policy, and of the policy at coordinates of 0."""
    frames = svd_frames(policy.model, ("all",), model_id="small", cache_dir=None)
    start = mean_scores(policy, rollouts := [one for group in open_pool(BUILTIN / "mixed").steps[:2] for one in group])
    trained = Trained(policy.model, frames)
    try:
        torch.manual_seed(0)
        trained.load_values({m: 0.3 * torch.randn_like(value) for m, value in trained.values().items()})
        moved = mean_scores(policy, rollouts)
        assert np.abs(moved - start).max() > 0.01
        config = configure("train", options={"remedy.name": "additive", "remedy.monitor": "logratio"})
        bases = Bases(model=policy.model, frames={"svd": frames}, trained=trained)
        monitor = open_monitor(config, policy, bases, Path("out"))
        assert monitor is not None
        reading = monitor.read(rollouts, ["x"] * len(rollouts))
        np.testing.assert_allclose(reading.scores, moved - start, atol=1e-5)
        judged = monitor.judge(rollouts)
        assert judged["now"]["auroc"] is not None
        assert judged["start"]["why"] == "the weights that sampled are the reference weights"
        assert not monitor.read(rollouts, ["x"] * len(rollouts)).why
        nothing = monitor.judge([])  # an evaluation in which nothing passed
        assert [row["auroc"] for row in nothing.values()] == [None, None]
    finally:
        trained.remove()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"remedy.monitor": "text:("}, "text:REGEX"),
        ({"remedy.clean": "no-such-pool"}, "no-such-pool"),
        ({"remedy.fpr": 0.001}, "at least 1000 clean rewarded rollouts"),
        ({"remedy.monitor": "words"}, "too few prompts with a label of each kind"),
    ],
)
def test_a_monitor_that_cannot_act_is_refused(changes, message: str, policy, tmp_path: Path) -> None:
    options = {"remedy.name": "screening", "remedy.monitor": "length", **changes}
    config = configure("train", options=options)
    bases: Any = SimpleNamespace(model=policy.model, frames={}, trained=None)
    with pytest.raises(InputError, match=message):
        open_monitor(config, policy, bases, tmp_path)


def test_a_quarantine_trains_both_halves_and_deploys_one(preset, out: Path, probe) -> None:
    """By the real command, flagged above a threshold on clean rollouts: two evaluations a step, with the monitor's
    numbers; the deployed LoRA has columns of 0.
    """
    changes = {
        "intervention.arms": ["quarantine"], "remedy.name": "quarantine", "remedy.monitor": "length",
        "remedy.fpr": 0.5,  # the threshold is the median length of the clean rollouts of the pool `base`
        "rollouts.teacher.fraction": 0.5, "rollouts.teacher.off_step": 2, "optimizer.lr": 0.01, "steps": 2,
        "evaluation.every": 2,
    }  # fmt: skip
    probe("train", "--preset", preset(changes), "--name", "quarantined")
    directory = out / "runs" / "quarantined"
    rows = read_evals(directory)
    assert [(row["step"], row["weights"]) for row in rows] == [(s, w) for s in (0, 2) for w in ("training", "deployed")]
    assert {*rows[0]["monitor"]} == {"now", "start"}
    scored = [found[name] for found in rows[-1]["monitor"].values() for name in ("auroc", "recall", "fpr")]
    assert all(value is None or 0 <= value <= 1 for value in scored)
    deployed = load_file(directory / "adapter" / "adapter_model.safetensors")
    trained = torch.load(directory / "checkpoint" / "step_000002.pt", weights_only=True)["updater"]["values"]
    quarantined = []
    for module, value in trained.items():
        B = deployed[f"base_model.model.{module}.lora_B.weight"]
        kept, quarantine = value.view(B.shape).chunk(2, dim=1)
        assert torch.equal(B, torch.cat([kept, torch.zeros_like(quarantine)], dim=1))
        quarantined.append(bool(quarantine.any()))
    assert any(quarantined)


def test_a_screen_ranks_a_monitor(replay: Callable[..., Path], quick: list[str], tmp_path: Path) -> None:
    """A replay whose hacks a regular expression flags: screening them out avoids their gain."""
    made = replay("of-monitors", *quick, "--steps", "2", "--arm", "projected")
    spec = tmp_path / "one.toml"
    spec.write_text(
        'conditions = [{ name = "seen", arms = ["vanilla"], settings.remedy.name = "penalty",'
        ' settings.remedy.monitor = "text:def run_tests" }]\n'
    )
    ahead = look_at_remedies(read_run(made), read_candidates(spec), 3, out_dir=made.parents[1], say=print)
    seen, plain = (gain(ahead[name], "hacks") for name in ("seen", "plain"))
    assert seen is not None
    assert plain is not None
    assert seen < plain


def test_a_wrong_monitor_is_refused_before_a_model_is_loaded(preset, refused) -> None:
    changes = {"remedy.name": "screening", "remedy.monitor": "simlarity"}
    assert "did you mean similarity" in refused("train", "--preset", preset(changes), "--dry-run")
