"""Tiny causal language models of four architectures, and rollouts for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from adapted import adapt, move
from tiny_models import VOCABULARY, build_model
from transformers import PreTrainedModel

from extraction.adapters.trained import Trained


@pytest.fixture(name="build_model", scope="session")
def build_model_fixture() -> Callable[..., PreTrainedModel]:
    """`build_model(architecture, dtype=torch.float32)`: a fresh tiny model at each call."""
    return build_model


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gemma", "llama")]


@pytest.fixture(params=["gpt2", "qwen3", *SLOW])
def architecture(request: pytest.FixtureRequest) -> str:
    """Each architecture in turn: fast are weights that are stored transposed, and a norm of queries and keys."""
    return request.param


BASES: dict[str, dict[str, Any]] = {
    "svd": {"basis": "svd", "cache_dir": None},
    "svd7": {"basis": "svd", "cache_dir": None, "rank": 7},
    "lora": {"basis": "lora", "rank": 3},
}


@pytest.fixture(scope="session")
def make_coordinates() -> Callable[..., Trained]:
    """`make_coordinates("qwen3", "svd-zero")`, or of a model that is there; `svd-moved` is not at 0."""

    def make(model: str | PreTrainedModel, case: str, dtype: torch.dtype = torch.float64) -> Trained:
        basis, state = case.split("-")
        model = build_model(model, dtype) if isinstance(model, str) else model
        coordinates = adapt(model, model_id="tiny", **BASES[basis])
        if state != "zero":
            move(coordinates, 1)
        return coordinates

    return make


@pytest.fixture(scope="session")
def rollouts() -> tuple[list[list[int]], list[list[int]]]:
    """Ragged prompts and completions of five samples; one completion has a single token, one ends in the pad id 2."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda count: torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()  # noqa: E731
    prompts = [draw(count) for count in (7, 3, 1, 5, 9)]
    completions = [draw(count) for count in (4, 9, 6, 1, 3)]
    completions[1][-1] = 2
    return prompts, completions
