"""delta_S written as LoRA is the same policy: W + B A is W + U diag(delta_S) Vh to the rounding of the two factors."""

from pathlib import Path

import pytest
import torch
from adapted import adapt

from extraction.adapters.trained import Trained, as_lora_factors, lora_rank, save_as_lora
from replay_pools.base.files import read_json
from replay_pools.policy.load import Policy, load_policy


def adapted(cache_dir: Path, rank: int | None, dtype: str = "float32", size: float = 0.2) -> Trained:
    """The organism with delta_S drawn at random, relative to the singular values."""
    policy = load_policy("organism", dtype=dtype)
    coordinates = adapt(policy.model, basis="svd", model_id="organism", rank=rank, cache_dir=cache_dir)
    generator = torch.Generator().manual_seed(0)
    values = {}
    for module, vector in coordinates.values().items():
        values[module] = size * coordinates.layers[module].S * torch.randn(vector.shape, generator=generator)
    coordinates.load_values(values)
    return coordinates


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("svd")


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in policy.model.named_parameters()}


@pytest.mark.parametrize("rank", [96, 5])
def test_the_merged_adapter_is_the_policy(cache: Path, rank: int, tmp_path: Path) -> None:
    """Another program that merges the directory gets the weights of the policy, where modules differ in rank too."""
    coordinates = adapted(cache, rank)
    assert lora_rank(coordinates) == (rank)
    save_as_lora(coordinates, tmp_path / "adapter")
    config = read_json(tmp_path / "adapter" / "adapter_config.json")
    assert config["r"] == config["lora_alpha"] == (rank), "a scale other than 1"
    pushed, base = weights(load_policy("organism", adapter=str(tmp_path / "adapter"))), weights(load_policy("organism"))
    compared = 0
    for name, start in base.items():
        module = name.removesuffix(".weight")
        if module not in coordinates.layers:
            assert torch.equal(pushed[name], start)
            continue
        change = coordinates.layers[module].delta_weight("default")
        assert (pushed[name] - (start + change)).norm() <= 1e-6 * start.norm()
        assert change.norm() > 0.01 * start.norm(), "the policy has not moved: the test shows nothing"
        compared += 1
    assert compared == len(coordinates.layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_are_rounded_once_to_the_dtype_of_the_weights(cache: Path, dtype: str) -> None:
    """In bfloat16 each factor is off by 2^-9 of itself, and so the change of the weight by a few of its last bits."""
    coordinates = adapted(cache, 64, dtype)
    eps = torch.finfo(getattr(torch, dtype)).eps
    for module in coordinates.layers:
        A, B = as_lora_factors(coordinates, module)
        assert A.dtype == B.dtype == getattr(torch, dtype)
        U, Vh = coordinates.layers[module].frames()
        exact = (U * coordinates.trainable(module)[0].detach()) @ Vh
        assert (B.float() @ A.float() - exact).norm() <= (eps if dtype == "bfloat16" else 10 * eps) * exact.norm()
