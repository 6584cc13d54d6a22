"""delta_S written as LoRA is the same policy: W + B A is W + U diag(delta_S) Vh to the rounding of the two factors."""

from pathlib import Path

import pytest
import torch
from adapted import adapt

from extraction.adapters.trained import lora_rank, save_as_lora
from replay_pools.base.files import read_json
from replay_pools.policy.load import Policy, load_policy


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in policy.model.named_parameters()}


@pytest.mark.parametrize("rank", [96, 5])
def test_the_merged_adapter_is_the_policy(rank: int, tmp_path: Path) -> None:
    """Another program that merges the directory gets the weights of the policy, where modules differ in rank too."""
    policy, generator = load_policy("organism"), torch.Generator().manual_seed(0)
    coordinates = adapt(policy.model, basis="svd", model_id="organism", rank=rank)
    scales = {module: 0.2 * layer.S for module, layer in coordinates.layers.items()}
    coordinates.load_values({m: S * torch.randn(S.shape, generator=generator) for m, S in scales.items()})
    assert lora_rank(coordinates) == rank
    save_as_lora(coordinates, tmp_path / "adapter")
    config = read_json(tmp_path / "adapter" / "adapter_config.json")
    assert config["r"] == config["lora_alpha"] == rank, "a scale other than 1"
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
