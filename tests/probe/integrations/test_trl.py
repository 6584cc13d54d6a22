"""GradientProbeCallback in the real GRPOTrainer, on the organism."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from adapted import configured, random_directions
from peft import LoraConfig

from extraction.directions import Directions
from probe.integrations.trl import GradientProbeCallback
from probe.records.records import GradientRecord
from probe.records.run import read_records
from probe.settings.training import ModelConfig
from replay_pools.policy.load import load_policy

if TYPE_CHECKING:
    from trl import GRPOTrainer

# trl 1.16 and transformers 5.23 warn of each other's renamed settings, and accelerate of pinned memory without a GPU.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("trl") is None, reason="needs trl: pip install gradient-probe[trl]"),
]
STEPS = 3


def reward_length(completions, **_):
    return [float(len(completion[0]["content"])) for completion in completions]


def make_trainer(out: Path, basis="svd", trained="adapter", **options) -> "tuple[GRPOTrainer, Directions]":
    """GRPO of the organism on the length of its answers, and random directions of the basis.

    Trained are the adapter of the basis, all weights ("whole"), or LoRA as TRL makes it of a config ("stock").
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy = load_policy("organism")
    coordinates = configured(policy, basis, ModelConfig(lora_rank=4), out / "cache")
    settings = {
        "output_dir": str(out / "trl"), "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8, "max_steps": STEPS,
        "learning_rate": 1e-2, "logging_steps": 1, "bf16": False, "use_cpu": True, "seed": 0,
    }  # fmt: skip
    questions = [{"prompt": [{"role": "user", "content": f"Write add {i}"}]} for i in range(8)]
    model = coordinates.model
    if trained != "adapter":
        model = load_policy("organism").model.requires_grad_(True)
    trainer = GRPOTrainer(
        model=model,
        peft_config=LoraConfig(task_type="CAUSAL_LM") if trained == "stock" else None,
        reward_funcs=reward_length,
        args=GRPOConfig(**settings | options),
        train_dataset=Dataset.from_list(questions),
        processing_class=policy.tokenizer,
    )
    return trainer, random_directions(coordinates, seed=1)


def adapter_values(trainer: "GRPOTrainer") -> dict[str, torch.Tensor]:
    assert trainer.model is not None
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


@pytest.fixture(scope="module")
def trained_alone(out: Path) -> dict[str, torch.Tensor]:
    trainer, _ = make_trainer(out)
    trainer.train()
    return adapter_values(trainer)


def test_measuring_changes_nothing_and_logs(out: Path, tmp_path: Path, trained_alone) -> None:
    """Bit for bit the training without callback; one record a step, in memory, on disk and in the trainer's log."""
    trainer, directions = make_trainer(out)
    callback = GradientProbeCallback(trainer, directions, path=tmp_path / "gradients.jsonl")
    trainer.add_callback(callback)
    trainer.train()
    for name, value in adapter_values(trainer).items():
        assert torch.equal(value, trained_alone[name]), f"{name}: the probe moved what it measures"
    assert read_records(GradientRecord, tmp_path / "gradients.jsonl") == callback.records
    assert [record.step for record in callback.records] == list(range(STEPS))
    assert all(record.cos_in is not None and not record.projected for record in callback.records)
    logged = [entry for entry in trainer.state.log_history if "probe/cos_in" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 3]
    assert [entry["probe/cos_in"] for entry in logged] == [record.cos_in for record in callback.records]
    rewarded = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(rewarded) == STEPS, "our entries used up the metrics of GRPOTrainer"
    assert all("loss" in entry for entry in rewarded)


def test_projecting_acts_before_the_optimizer(out: Path, trained_alone) -> None:
    """One sided: AdamW gets no hack-ward part, and training goes elsewhere; what is logged is the mean of a window."""
    trainer, directions = make_trainer(out, logging_steps=2)
    callback = GradientProbeCallback(trainer, directions, project=True)
    trainer.add_callback(callback)
    trainer.train()
    assert all(record.projected for record in callback.records)
    assert all(record.hackward_frac_out < 1e-5 < record.hackward_frac_in for record in callback.records)
    assert any(not torch.equal(value, trained_alone[name]) for name, value in adapter_values(trainer).items())
    logged = [entry for entry in trainer.state.log_history if "probe/cos_out" in entry]
    assert logged[0]["step"] == 2
    first_two = [record.cos_out for record in callback.records[:2]]
    assert logged[0]["probe/cos_out"] == pytest.approx(sum(first_two) / 2)


@pytest.mark.parametrize(
    ("basis", "trained"),
    [("lora", "adapter"), *(pytest.param("svd", one, marks=pytest.mark.slow) for one in ("stock", "adapter"))],
)
def test_with_a_reference_adapter(out: Path, basis: str, trained: str) -> None:
    """With KL the trainer adds a second adapter `ref`; measured and projected is `default`."""
    trainer, directions = make_trainer(out, basis=basis, trained=trained, beta=0.1, max_steps=2)
    callback = GradientProbeCallback(trainer, directions, project=True, cache_dir=out / "cache" / "svd")
    trainer.add_callback(callback)
    trainer.train()
    assert len(callback.records) == 2
    assert all(record.projected and record.hackward_frac_out < 1e-4 for record in callback.records)


@pytest.mark.slow
@pytest.mark.parametrize(("trained", "beta"), [("stock", 0.1), ("whole", 0.0)])
def test_a_model_without_our_adapter(out: Path, trained: str, beta: float) -> None:
    """Measured without changing the training, under TRL's activation checkpointing, accumulation and reference."""
    ends = []
    for is_watched in (False, True):
        options = {"beta": beta, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "max_steps": 2}
        trainer, directions = make_trainer(out, trained=trained, **options)
        assert trainer.args.gradient_checkpointing
        if is_watched:
            callback = GradientProbeCallback(trainer, directions, cache_dir=out / "cache" / "svd")
            trainer.add_callback(callback)
        trainer.train()
        ends.append(adapter_values(trainer))
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    assert len(callback.records) == 2
    assert all(None not in (record.cos_in, record.cos_update) for record in callback.records)
    logged = [entry for entry in trainer.state.log_history if "probe/cos_in" in entry]
    assert [entry["probe/would_cos_out"] for entry in logged] == [record.cos_out for record in callback.records]
    assert not any("probe/cos_out" in entry for entry in logged)
