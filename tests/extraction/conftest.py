"""Tiny causal language models of four architectures, and rollouts for them."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import VOCABULARY, build_model
from transformers import PreTrainedModel


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
