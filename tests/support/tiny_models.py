"""Causal language models of two layers, from local configurations and random weights, of many architectures."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SHAPE, hidden_activation="gelu_pytorch_tanh")),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **GPT2)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=3)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**MIXED)),
    "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**MIXED)),
    "convolution": lambda: Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "recurrence": lambda: FalconMambaForCausalLM(
        FalconMambaConfig(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, state_size=4, eos_token_id=2)
    ),
}


def build_model(architecture: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A fresh model in evaluation mode; its weights are so large that every path (norms, gates, heads) matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BUILDERS[architecture]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(dtype=dtype).eval()  # pyright: ignore[reportCallIssue] (a decorator hides the signature)
