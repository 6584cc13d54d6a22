"""probe train: live equals replay, killed and resumed equals never killed, the mean comes before the gate."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import torch

from extraction.library import attach_basis
from probe.arms import get_arm
from probe.cli import cli
from probe.cli._frame import run
from probe.live import LiveSource, choose_problems
from probe.objective import Objective
from probe.optimizer import Decay, Stepper
from probe.passes import Bases, weighted_sums
from probe.projection import project_modules
from probe.runs import read_run
from probe.sources import ReplaySource
from probe.step import Measure, StepResult, train_step
from probe.timings import TIMINGS_FILE
from replay_pools.environments.registry import get_environment
from replay_pools.generate import PoolPlan, RolloutMaker, pool_header
from replay_pools.grading.grade import Grader
from replay_pools.policy import load_policy
from replay_pools.pool import open_pool
from replay_pools.sampling import Sampler

PRESET = """
[model]
name = "organism"
[rollouts]
prompts_per_step = 2
group = 4
sampler.max_new_tokens = 64
[intervention]
arm = "projected"
extraction.pairs = "{pairs}"
extraction.k = 2
[optimizer]
steps = 3
lr = 0.01
[evaluation]
every = 2
num_problems = 3
"""


def measure(coordinates):
    """Fixed random directions: what is tested here does not depend on what they mean."""
    torch.manual_seed(0)
    vectors = {m: torch.linalg.qr(torch.randn(r, 2)).Q.T.contiguous() for m, r in coordinates.sizes.items()}
    return Measure(condition="default", arm=get_arm("projected"), vectors=vectors, gate="one_sided")


def one_step(coordinates, groups, stepper=None) -> StepResult:
    return train_step(
        Bases(coordinates=[coordinates]),
        groups,
        [measure(coordinates)],
        conditions={"default": Objective()},
        planning=[[False] * len(ids) for group in groups for ids in group.completion_ids],
        pad_id=0,
        stepper=stepper,
    )


@pytest.fixture(scope="module")
def live(out: Path):
    """(adapted policy, finished LiveSource of two steps with two prompts, its pool)."""
    policy = load_policy("organism")
    coordinates = attach_basis(policy, "svd", cache_dir=out / "cache")
    problems = choose_problems(get_environment("minicode").problems("train"), steps=2, prompts_per_step=2, seed=4)
    sampler, plan = Sampler(max_new_tokens=160), PoolPlan(hint=True, steps=4, group=4, seed=4)
    with Grader() as grader:
        maker = RolloutMaker(policy=policy, sampler=sampler, grader=grader, mode="run_tests", hint=True, group=4)
        header = pool_header(policy, plan, sampler, grader, [p for step in problems for p in step])
        source = LiveSource(
            out / "live" / "rollouts", header=header, maker=maker, coordinates=coordinates, problems=problems, seed=4
        )
        for step in range(2):
            source.groups(step)
        source.finish()
        yield coordinates, source, open_pool(out / "live" / "rollouts")


def test_live_groups_are_what_a_replay_of_their_pool_gives(live) -> None:
    """Every live group equals the replayed group of the same pool step, and both give bit-equal step results."""
    coordinates, source, pool = live
    replayed = ReplaySource([pool], per_pool=4)
    groups = [group for step in range(2) for group in source.groups(step)]
    again = [replace(replayed.groups(i)[0], step=group.step) for i, group in enumerate(groups)]
    assert groups == again
    results = [one_step(coordinates, [own]) for own in (groups[0], again[0])]
    arms = [result.arms[0] for result in results]
    for name in ("cos_nll", "contribution_norms", "sample_haar_sd"):
        assert torch.equal(*(getattr(arm, name) for arm in arms)), f"{name} differs between live and replay"
    assert arms[0].projection.norm_in.equal(arms[1].projection.norm_in)
    assert all(torch.equal(g, results[1].unit["svd"][m]) for m, g in results[0].unit["svd"].items())


def test_recorded_log_probabilities_are_the_policys(live) -> None:
    """Sampled at temperature 1: what the sampler recorded is what the engine computes (rounded to 6 digits at rest)."""
    coordinates, source, _ = live
    groups = source.groups(1)
    nll = one_step(coordinates, groups).nll
    recorded = [source.rollout(key).sampling_logprobs for group in groups for key in group.keys]
    expected = torch.tensor([-sum(row) / len(row) for row in recorded], dtype=nll.dtype)
    torch.testing.assert_close(nll, expected, atol=1e-4, rtol=1e-3)


def test_the_mean_over_groups_comes_before_the_gate(live) -> None:
    """Slow reference: each group by itself, then the mean of their gradients, then the gate."""
    coordinates, source, _ = live
    groups = source.groups(0)
    parts = []
    for group in groups:
        alone = one_step(coordinates, [group])
        parts.append(weighted_sums(alone.weightings["default"].scale, alone.unit)["svd"])
    mean = {m: sum(part[m] for part in parts) / len(parts) for m in parts[0]}
    expected = project_modules(mean, measure(coordinates).vectors, gate="one_sided")
    found = one_step(coordinates, groups).arms[0].projection
    assert float(expected.norm_in) > 0, "no group has reward variance: the test shows nothing"
    for name in ("norm_in", "norm_out", "cos_in", "cos_out", "frac_fired"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-6)


def test_a_step_is_adamw_on_the_clipped_gradient_under_the_schedule() -> None:
    """Reference: torch's AdamW with clip_grad_norm_ on a plain parameter, the rates of warm-up and cosine by hand."""
    policy = load_policy("organism")
    coordinates = attach_basis(policy, "lora", lora_rank=2, cache_dir=Path("unused"))
    stepper = Stepper(coordinates, lr=0.1, weight_decay=0.01, max_grad_norm=0.5, decay=Decay(warmup_steps=1, steps=5))
    plain = torch.nn.Parameter(torch.cat([*coordinates.values().values()]))
    optimizer = torch.optim.AdamW([plain], lr=0.1, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    for rate in (0.0, 0.1, 0.1 * (1 + 2**-0.5) / 2):
        gradients = {m: torch.randn(r, generator=generator) for m, r in coordinates.sizes.items()}
        plain.grad = torch.cat([*gradients.values()])
        plain.grad *= min(1.0, 0.5 / float(plain.grad.norm()))
        optimizer.param_groups[0]["lr"] = rate
        before = plain.detach().clone()
        optimizer.step()
        update = torch.cat([*stepper.step(gradients).values()])
        torch.testing.assert_close(update, before - plain.detach(), rtol=1e-4, atol=1e-7)


def test_every_problem_is_met_before_any_is_met_again() -> None:
    problems = get_environment("minicode").problems("train")[:5]
    chosen = choose_problems(problems, steps=4, prompts_per_step=3, seed=1)
    flat = [problem.problem_id for step in chosen for problem in step]
    assert [len(step) for step in chosen] == [3] * 4
    assert len({*flat[:5]}) == len({*flat[5:10]}) == 5
    assert choose_problems(problems, steps=2, prompts_per_step=3, seed=1) == chosen[:2], "a longer run starts otherwise"
    assert choose_problems(problems, steps=4, prompts_per_step=3, seed=2) != chosen


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory, few_pairs: list[str]) -> str:
    path = tmp_path_factory.mktemp("preset") / "tiny.toml"
    path.write_text(PRESET.format(pairs=few_pairs[1]))
    return str(path)


@pytest.fixture(scope="module")
def whole(out: Path, preset: str) -> Path:
    """A run that was never stopped."""
    assert run(cli, ["train", "--preset", preset, "--name", "train-whole", "--out", str(out)]) == 0
    return out / "runs" / "train-whole"


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the wall-clock times."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != TIMINGS_FILE)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "appears",
    ["rollouts/step_002.jsonl.gz", "checkpoint/step_000002.pt"],
    ids=["while a step is graded", "after a checkpoint, before its records"],
)
def test_a_run_killed_by_sigkill_resumes_to_the_same_bytes(appears: str, whole: Path, out: Path, preset: str) -> None:
    """SIGKILL as soon as the file is there; every file of the resumed run, checkpoints included, is the whole run's."""
    name = f"killed-{Path(appears).parts[0]}"
    options = ["train", "--preset", preset, "--name", name, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "probe", *options], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (out / "runs" / name / appears).exists():
        assert process.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "runs" / name / "manifest.json").exists(), "a run that died must not look complete"
    assert run(cli, options) == 0
    manifests = [orjson.loads((path / "manifest.json").read_bytes())["files"] for path in (out / "runs" / name, whole)]
    assert manifests[0] == manifests[1]
    assert {"evals.jsonl", "rollouts/manifest.json", "adapter/adapter_model.safetensors"} <= manifests[0].keys()
    assert contents(out / "runs" / name) == contents(whole)


def test_a_run_trains_records_and_evaluates(
    whole: Path, capsys: pytest.CaptureFixture[str], out: Path, preset: str
) -> None:
    record = read_run(whole)
    assert [(step.step, step.arm) for step in record.steps] == [(0, "projected"), (1, "projected"), (2, "projected")]
    moved = [step for step in record.steps if step.cos_in is not None]
    assert moved
    assert all(step.cos_update is not None and step.hackward_frac_update is not None for step in moved)
    assert all(step.hackward_frac_out < 1e-5 for step in moved), "the gate left a hack-ward part"
    assert len(record.samples) == 3 * 2 * 4
    assert {sample.src_pool for sample in record.samples} == {"rollouts"}
    evals = [orjson.loads(line) for line in (whole / "evals.jsonl").read_bytes().splitlines()]
    assert [row["step"] for row in evals] == [0, 2, 3]
    trained = {r.problem_id for group in open_pool(whole / "rollouts").steps for r in group}
    held_out = {r.problem_id for group in open_pool(whole / "evaluations" / "step_000000").steps for r in group}
    assert len(held_out) == 3
    assert not trained & held_out, "held-out problems were trained on"
    assert all(r.hint for group in open_pool(whole / "evaluations" / "step_000003").steps for r in group)
    capsys.readouterr()
    assert run(cli, ["train", "--preset", preset, "--name", whole.name, "--out", str(out), "--json"]) == 0
    card = orjson.loads(capsys.readouterr().out)
    assert (card["arm"], card["steps"], card["evals"]) == ("projected", 3, evals)


def test_config_repeats_a_run(whole: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The complete run is recognised as the same one; an option beside --config, or an unknown table, is refused."""
    options = ["train", "--config", str(whole / "config.json"), "--out", str(out), "--name", whole.name]
    assert run(cli, options) == 0
    assert "is complete; nothing to do" in capsys.readouterr().err
    assert run(cli, [*options, "--seed", "3"]) == 2
    assert "--config: expected no other setting beside it, found seed" in capsys.readouterr().err
    (tmp_path / "kl.toml").write_text("[loss.kl]\nbeta = 0.001")
    assert run(cli, ["train", "--preset", str(tmp_path / "kl.toml"), "--out", str(out)]) == 2
    assert "found unknown: loss" in capsys.readouterr().err


def test_the_lora_arm_trains(out: Path, preset: str) -> None:
    options = ["--arm", "projected-lora", "--steps", "1", "--name", "train-lora"]
    assert run(cli, ["train", "--preset", preset, "--out", str(out), *options]) == 0
    assert read_run(out / "runs" / "train-lora").steps[0].arm == "projected-lora"
