"""probe train: everything at once in one run, killed and resumed; a run that stops itself."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import orjson
import processes
import pytest
import torch
from directories import contents
from processes import KILLER
from safetensors.torch import load_file

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_evals, read_run
from probe.runs import control
from replay_pools.base.files import read_json
from replay_pools.pool import open_pool

# Everything at once: two steps on every batch, the first batch with a teacher; ratio, adapted KL from a moving EMA,
# entropy, credit; a monitor of gradients; parts that are not deployed; directions extracted again in the middle; one
# checkpoint, of every second step.
COMBINED = {
    "seed": 3, "rollouts.iterations": 2, "rollouts.teacher.fraction": 0.25, "rollouts.teacher.off_step": 2,
    "objective.old_logprobs": "recorded", "objective.reference": "ema", "objective.beta": 0.02,
    "objective.entropy_coef": 0.01, "objective.gtpo_beta": 0.5, "control.beta_warmup_steps": 1,
    "control.target_kl": 1e-6, "control.ema_decay": 0.5, "intervention.arms": ["projected-at-deployment"],
    "intervention.refresh_every": 2, "remedy.name": "additive", "remedy.monitor": "similarity", "optimizer.lr": 0.05,
    "steps": 4, "checkpoints.every": 2, "evaluation.without_hint": True, "evaluation.num_problems": 1,
    "evaluation.every": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def combined(out: Path, preset: Callable[..., str]) -> tuple[Path, list[str]]:
    """(run that was never stopped, names of the files that it wrote, in order, as far as they are in no cache)."""
    written: list[str] = []
    directory, real = out / "runs" / "combined", os.fsync

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file() and directory in path.parents:
            written.append(f"{path.parent.relative_to(directory)}/{path.name.rsplit('.', 2)[0]}".removeprefix("./"))
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        options = ["--preset", preset(COMBINED), "--name", directory.name, "--out", str(out)]
        assert run(cli, ["train", *options]) == 0
    return directory, written


def test_a_run_killed_by_sigkill_resumes_to_the_same_bytes(combined, out: Path, tmp_path: Path) -> None:
    """Started by --config from the other run, killed inside a random write from the first checkpoint on, and resumed:
    rollouts, evaluations, records, directions, adapters and checkpoint are those of the run that was never killed.

    Before the first checkpoint: test_loop.py.
    """
    whole, written = combined
    first = written.index("checkpoint/.step_000002.pt")
    point = random.choice(sorted({*written[first:]} - {*written[:first]}))
    options = ["train", "--config", str(whole / "config.json"), "--name", "combined-killed", "--out", str(out)]
    directory = out / "runs" / "combined-killed"
    process = processes.start(KILLER, f"combined-killed/{point}", *options, log=tmp_path / "log")
    assert processes.finish(process) == -signal.SIGKILL, f"{point}: {(tmp_path / 'log').read_text()}"
    assert not (directory / "manifest.json").exists(), "a run that died must not look complete"
    assert any(directory.rglob(".*.tmp")), f"{point}: not killed inside the write"
    assert run(cli, options) == 0, f"killed at {point}"
    assert contents(directory) == contents(whole), f"killed at {point}"
    hashed = read_json(whole / "manifest.json")["files"].keys()
    pools = {f"{name}/manifest.json" for name in ("rollouts", "evaluations/step_000004-training/run_tests-no-hint")}
    others = {"adapter/adapter_model.safetensors", "evals.jsonl", "directions/step_000002.safetensors"}
    assert pools | others <= hashed


def test_a_finished_run_prints_its_card_again(combined: tuple[Path, list[str]], preset, probe, refused) -> None:
    """--config names the same run; with another seed it is another run. Records name rollouts by their pool, so a
    teacher must not be called as the own pool.
    """
    whole, _ = combined
    options = ("train", "--config", whole / "config.json", "--name", whole.name)
    printed, errors = probe(*options, "--json")
    assert "is complete; nothing to do" in errors
    card = orjson.loads(printed)
    assert (card["arm"], card["steps"], card["evals"]) == ("projected-at-deployment", 4, read_evals(whole))
    assert whole.name in refused(*options, "--seed", "41")
    teacher = preset({"rollouts.teacher.pool": str(whole / "rollouts")})
    assert "a name other than rollouts" in refused("train", "--preset", teacher, "--name", "two-pools")


def test_two_steps_on_a_batch_and_a_teacher_in_the_first(combined: tuple[Path, list[str]]) -> None:
    """Steps 0, 1 and 2, 3 train on the same rollouts; three of the policy's and one of the teacher's, then four."""
    samples = read_run(combined[0]).samples
    keys = [[(s.src_pool, s.src_step, s.src_sample) for s in samples if s.step == step] for step in range(4)]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert [pool for pool, *_ in keys[0]] == (["rollouts"] * 3 + ["teacher"]) * 2
    assert {pool for pool, *_ in keys[2]} == {"rollouts"}
    pool = open_pool(combined[0] / "rollouts")
    assert [len(group) for group in pool.steps] == [3, 3, 4, 4], "rollouts were sampled that nothing trains on"
    groups = [{s.prompt_sha for s in samples if s.step == 0 and s.sample_id // 4 == half} for half in (0, 1)]
    assert [len(group) for group in groups] == [1, 1], "a teacher answers another prompt"


def test_the_ratio_is_1_in_the_first_step_on_a_batch_only(combined: tuple[Path, list[str]]) -> None:
    """Off the teacher: what the sampler recorded is the policy's own law, to the 6 digits at rest, until it moves."""
    ratios = [step.ratio for step in read_run(combined[0]).steps]
    assert ratios[2]["mean"] == pytest.approx(1, abs=1e-4)
    assert ratios[2]["max"] == pytest.approx(1, abs=1e-3)
    assert ratios[3]["max"] > 1.01, "the second step is on-policy too"
    assert ratios[0]["mean"] < 0.9, "the teacher's law is the policy's"


def test_the_records_of_a_run_say_what_moved(combined: tuple[Path, list[str]]) -> None:
    """Ages and overlaps of the directions, the EMA beside the base, beta adapted upwards, the deployed update."""
    steps = read_run(combined[0]).steps
    assert [step.direction_age for step in steps] == [0, 1, 0, 1]
    assert [step.direction_overlap for step in steps[:2]] == [1, 1]
    assert 0 < steps[2].direction_overlap == steps[3].direction_overlap < 1
    assert {step.reference for step in steps} == {"ema"}
    assert steps[0].kl["mean"] == steps[0].kl["from_base"] == 0
    assert all(0 < step.kl["mean"] < step.kl["from_base"] for step in steps[2:]), "the EMA did not follow"
    assert [step.kl["warmup_progress"] for step in steps] == [0, 1, 1, 1]
    assert [step.kl["beta"] for step in steps] == pytest.approx([0, 0.02, 0.03, 0.045])
    assert all(step.hackward_frac_update < 1e-6 for step in steps), "a hack-ward part was deployed"


def test_route_is_evaluated_in_training_and_deployed(combined: tuple[Path, list[str]]) -> None:
    """Both kinds of weights in every evaluation, equal at the start and not at the end; two settings each."""
    rows = read_evals(combined[0])
    assert [(row["step"], row["weights"]) for row in rows] == [(d, w) for d in (0, 4) for w in ("training", "deployed")]
    assert all([*row["rates"]] == ["all", "run_tests", "no hint"] for row in rows)
    for key in ("rates", "frozen"):
        assert rows[0][key] == rows[1][key], f"{key}: nothing is in quarantine yet"
    assert [row["frozen"]["num_pairs"] for row in rows] == [2] * 4
    assert rows[0]["frozen"]["kl_from_base"] == 0 < rows[3]["frozen"]["kl_from_base"]
    assert rows[2]["frozen"]["margin"] != rows[3]["frozen"]["margin"], "deployed is what trains"
    state = torch.load(combined[0] / "checkpoint" / "step_000004.pt", weights_only=True)["updater"]
    values, quarantine = state["values"], state["parked"]
    assert any(q.any() for q in quarantine.values())
    found = load_file(combined[0] / "adapter" / "adapter_model.safetensors")
    for module, value in values.items():
        assert torch.equal(found[f"base_model.model.{module}.delta_S"], value - quarantine[module])


def test_a_tripwire_stops_a_lora_run_whose_updates_are_gated(out: Path, preset, probe, monkeypatch) -> None:
    """The KL limit is passed as soon as the policy has moved: exit code 0, the reason printed, evaluated as it ended.
    Until then every update is without its hack-ward part.
    """
    settings = {
        "intervention.arms": ["projected-lora"],
        "intervention.projection.target": "update",
        "objective.reference": "base",
        "control.kl_mean_max": 1e-9,
        "steps": 6,
        "evaluation.every": 6,
        "rollouts.teacher.off_step": 6,  # who is paid, so that the policy moves
    }
    monkeypatch.setattr(control, "PATIENCE", 1)
    printed, _ = probe("train", "--preset", preset(settings), "--name", "tripped")
    record = read_run(out / "runs" / "tripped")
    num_steps = len(record.steps)
    assert 1 < num_steps < 6
    assert f"STOPPED after {num_steps} steps: kl/mean " in printed
    assert [row["step"] for row in read_evals(out / "runs" / "tripped")] == [0, num_steps]
    updated = [step for step in record.steps if step.hackward_frac_update is not None]
    assert updated
    assert all(step.hackward_frac_update < 1e-6 for step in updated)
    assert any(step.hackward_frac_out > 1e-3 for step in updated), "the gradient was gated as well"
