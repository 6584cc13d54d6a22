"""Causal language models of two layers, from local configurations and random weights, of many architectures."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 61
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
MIXED = {**SHAPE, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
SMALL = {"vocab_size": VOCABULARY, "eos_token_id": 2}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {  # {name: (model type, its settings)}
    "qwen3": ("qwen3", {**SHAPE, "tie_word_embeddings": True}),
    "gemma": ("gemma", {**SHAPE, "hidden_activation": "gelu_pytorch_tanh"}),
    "llama": ("llama", {**SHAPE, "tie_word_embeddings": False}),
    "gpt2": ("gpt2", {**SMALL, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}),
    "mistral": ("mistral", {**SHAPE, "sliding_window": 3}),
    "gemma3": ("gemma3_text", MIXED),
    "cohere2": ("cohere2", MIXED),
    "convolution": ("lfm2", {**SHAPE, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}),
    "recurrence": ("falcon_mamba", {**SMALL, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4}),
}


def build_model(architecture: str, dtype: torch.dtype = torch.float32, moved: float = 0.15) -> PreTrainedModel:
    """A fresh model in evaluation mode; its weights are so large that every path (norms, gates, heads) matters."""
    model_type, settings = ARCHITECTURES[architecture]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
        for parameter in model.parameters():
            parameter.add_(moved * torch.randn_like(parameter))
    return model.to(dtype=dtype).eval()
