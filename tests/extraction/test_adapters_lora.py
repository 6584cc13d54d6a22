import pytest
import torch
from adapted import adapt

from extraction.adapters.trained import lora_factors

IDS = torch.tensor([[3, 9, 27, 20, 60]])


def lora(build_model, architecture="qwen3", dtype=torch.float32, **options):
    options = {"rank": 4, "model_id": "tiny"} | options
    return adapt(build_model(architecture, dtype), basis="lora", **options)


def test_starts_at_the_base_model_with_an_orthonormal_frame(build_model, architecture):
    """B = 0: logits bit-equal to the base. A A^T = 1, and peft does not rescale."""
    coordinates = lora(build_model, architecture)
    with torch.no_grad():
        assert torch.equal(coordinates.model(IDS).logits, build_model(architecture)(IDS).logits)
    for module in coordinates.sizes:
        A, B = lora_factors(coordinates.layers[module])
        torch.testing.assert_close(A @ A.T, torch.eye(4))
        assert not B.any()
        assert coordinates.layers[module].scaling == {"default": 1.0}


def test_coordinates_are_a_then_b(build_model, architecture):
    """With train_a, (r,) = [A; B] flattened row by row, r = rank (d_in + d_out)."""
    coordinates = lora(build_model, architecture, train_a=True)
    for module, value in coordinates.values().items():
        A, B = lora_factors(coordinates.layers[module])
        assert A.shape[0] == B.shape[1] == 4
        assert torch.equal(value, torch.cat([A.flatten(), B.flatten()])), f"{module}: not [A; B]"


def test_seed_alone_decides_a(build_model):
    """Same seed, same A, whatever the global generator did; another seed, another A; the generator is untouched."""
    first = lora(build_model, seed=5, train_a=True).values()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    second, third = (lora(build_model, seed=seed, train_a=True).values() for seed in (5, 6))
    assert torch.equal(torch.get_rng_state(), state), "attach draws from the global generator"
    assert all(torch.equal(first[m], second[m]) for m in first)
    assert not any(torch.equal(first[m], third[m]) for m in first)


def test_frozen_a(build_model):
    """The coordinates are B alone and A stays frozen through disable_adapter()."""
    coordinates = lora(build_model)
    assert not any(lora_factors(coordinates.layers[module])[0].requires_grad for module in coordinates.sizes)
    with coordinates.model.disable_adapter():
        pass
    for module, size in coordinates.sizes.items():
        A, B = lora_factors(coordinates.layers[module])
        assert size == B.numel()
        assert not A.requires_grad, f"{module}: peft thawed A"
        assert B.requires_grad


@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_precision(build_model, dtype, wide):
    assert {p.dtype for p in lora(build_model, dtype=dtype, train_a=True).parameters()} == {wide}
