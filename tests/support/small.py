"""A model that does nothing well and is quick: for runs of which it matters what becomes of what the policy writes.

    path = small_model(tmp_path / "small")
    path = small_model(tmp_path / "hybrid", **HYBRID)

Its tokenizer, template and prompts are the organism's, so that it is taught by the built-in pools; its weights are
random: no completion of its own ends, is code, or is paid. A training takes a third of the time.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from replay_pools.policy.load import ORGANISM_WEIGHTS

LAYERS = 2
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
# What a training needs whose own completions must be paid, or read as code.
ORGANISM = {"model.name": "organism", "rollouts.sampler.max_new_tokens": 48}
# A layer of linear attention, which has other projections, and an ordinary one.
HYBRID = {
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


def small_model(folder: Path, model_type: str | None = None, **changes: Any) -> Path:
    """The same weights every time, written to the new folder."""
    shutil.copytree(ORGANISM_WEIGHTS, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(ORGANISM_WEIGHTS)
    if model_type is not None:
        shared = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")
        config = AutoConfig.for_model(model_type, **{key: getattr(config, key) for key in shared})
    config.update({**SHAPE, "num_hidden_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
