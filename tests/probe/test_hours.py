"""Counted operations against those that torch counts, and the hours of a dry run and a plan."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import framed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from extraction.logprobs import split_model
from probe.cli import cli
from probe.cli._frame import run
from probe.runs.hours import Flops, Rows
from probe.settings.machines import GPUS, PASSES
from probe.settings.training import ModelConfig

ROOT = Path(__file__).parents[2]
TOKENS = 24
SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
CONFIG = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, vocab_size=64, tie_word_embeddings=False, **EAGER)


class Counting(TorchDispatchMode):
    """While open, adds up the operations of products. `FlopCounterMode` cannot go into `torch.autograd.grad`."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def counted(model: torch.nn.Module, tokens: int, *, backward: bool) -> int:
    """What torch counts in a pass of one row in which every token is predicted, to the inputs."""
    model.requires_grad_(False)
    inputs = torch.randn(1, tokens, SHAPE["hidden_size"], requires_grad=backward)
    with Counting() as counter:
        logits = model(inputs_embeds=inputs).logits
        if backward:
            logits.sum().backward()
    return counter.total


def test_passes_are_counted() -> None:
    """Against torch's count, in which attention looks at all keys: twice as many as a causal one."""
    model = Qwen3ForCausalLM(CONFIG)
    cost, row = Flops(model, ModelConfig(), bases=()), Rows(number=1, prompt=0, completion=TOKENS)
    attention = 2 * 64 * TOKENS**2  # layers x heads x head size
    assert cost.gradient(row) + 6 * attention == pytest.approx(counted(model, TOKENS, backward=True), rel=0.01)
    assert cost.forward(row) + 2 * attention == pytest.approx(counted(model, TOKENS, backward=False), rel=0.01)


def test_of_experts_the_chosen_ones_are_counted() -> None:
    """Two of eight: a quarter of the numbers of their stacks."""
    costs = []
    for chosen in (2, 4):
        model = MixtralForCausalLM(
            MixtralConfig(
                **SHAPE, num_key_value_heads=2, vocab_size=64, num_local_experts=8, num_experts_per_tok=chosen
            )
        )
        costs.append(Flops(model, ModelConfig(), ()).forward(Rows(number=1, prompt=1, completion=0)))
    expert = 3 * SHAPE["hidden_size"] * SHAPE["intermediate_size"]
    assert costs[1] - costs[0] == 2 * 2 * 2 * expert  # 2 operations x 2 layers x 2 more experts


@pytest.mark.parametrize("rank", [None, 4])
def test_taps_are_counted(rank: int | None) -> None:
    """What a pass with the gradients of samples does beyond one without, as torch counts it."""
    model = Qwen3ForCausalLM(CONFIG)
    cost = Flops(model, ModelConfig(svd_rank=rank), bases=("svd",))
    plain = Flops(model, ModelConfig(), bases=())
    row = Rows(number=1, prompt=TOKENS / 2, completion=TOKENS / 2)
    read = {"svd": framed(model, "svd", rank=rank)}
    split_model(model)  # its one trial is behind
    ids = list(range(TOKENS))
    batch = make_batch([ids[: TOKENS // 2]], [ids[TOKENS // 2 :]], pad_id=0)
    with Counting() as counter:
        per_sample_gradients(model, read, batch)
    attention = 2 * 64 * TOKENS**2
    # Without the tap of the first layer's inputs, at which no gradient need arrive.
    assert counter.total == pytest.approx(cost.gradient(row) + 6 * attention, rel=0.1)
    assert cost.gradient(row) > 1.03 * plain.gradient(row)


def test_a_dry_run_says_hours(quick: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the machine that is named, in proportion to its speed; of the CPU without a name; measured once it ran."""
    out = tmp_path / "out"
    args = ["replay", "--arm", "vanilla", "--steps", "2", "--name", "x", "--out", str(out), *quick, "--dry-run"]
    steps = {}
    for gpu in ("a100", "h100"):
        assert run(cli, [*args, "--gpu", gpu, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert f"one {gpu}; as an H200 reached of the vendor's peak: {PASSES:.0%} in passes" in found["hours_source"]
        steps[gpu] = found["hours"]["steps"] * GPUS[gpu].flops["float32"]
        assert list(found["hours"]) == ["SVDs, once", "gradients of the pairs, once", "steps"]
    assert steps["a100"] == pytest.approx(steps["h100"])
    assert run(cli, args) == 0
    assert "counted for one CPU like this one; assumed of the speed of a product now: 30%" in capsys.readouterr().out
    assert run(cli, args[:-1]) == 0
    (out / "runs" / "x" / "manifest.json").unlink()
    capsys.readouterr()
    assert run(cli, [*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hours_source"].startswith("measured")
    assert found["hours"]["steps"] == 0.0
    assert found["hours"]["start"] > 0


def test_a_training_and_a_plan_say_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training samples and evaluates, too; a plan adds up the runs of its spec."""
    args = ["train", "--preset", "smoke", "--out", str(tmp_path), "--dry-run", "--json", "--gpu", "h100"]
    assert run(cli, args) == 0
    hours = json.loads(capsys.readouterr().out)["hours"]
    assert list(hours)[2:] == ["sampling", "gradients", "evaluations"]
    assert all(number > 0 for number in hours.values())
    assert run(cli, ["spec", "plan", str(ROOT / "spec" / "phase3-replication.toml"), "--gpu", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (price,) = [price for price in found["prices"] if price["what"] == "this spec, counted"]
    assert price["runs"] == found["runs"]
    assert price["hours"] > 0
