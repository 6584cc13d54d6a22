"""Tiny causal language models of four architectures, from local configurations and seeded weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
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
BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SHAPE, hidden_activation="gelu_pytorch_tanh")),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
        )
    ),
}


def build_model(architecture: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """`qwen3`, `llama`, `gemma` or `gpt2` with weights so large that every path (norms, gates, heads) matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BUILDERS[architecture]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(dtype=dtype).eval()  # pyright: ignore[reportCallIssue] (a decorator hides the signature)


@pytest.fixture(name="build_model", scope="session")
def build_model_fixture() -> Callable[..., PreTrainedModel]:
    """`build_model(architecture, dtype=torch.float32)`: a fresh tiny model at each call."""
    return build_model


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gemma", "llama")]


@pytest.fixture(params=["gpt2", "qwen3", *SLOW])
def architecture(request: pytest.FixtureRequest) -> str:
    """Each architecture in turn: fast are weights that are stored transposed, and a norm of queries and keys."""
    return request.param


@pytest.fixture(scope="session")
def rollouts() -> tuple[list[list[int]], list[list[int]]]:
    """Ragged prompts and completions of five samples; one completion has a single token, one ends in the pad id 2."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda count: torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()  # noqa: E731
    prompts = [draw(count) for count in (7, 3, 1, 5, 9)]
    completions = [draw(count) for count in (4, 9, 6, 1, 3)]
    completions[1][-1] = 2
    return prompts, completions
