import json

import pytest
import torch
from adapted import adapt
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file

from extraction.adapters.delta_s import DeltaSConfig, dithered
from extraction.adapters.targets import weight_matrix

IDS = torch.tensor([[3, 9, 27, 20, 60], [4, 8, 16, 32, 3]])

# peft reads a property that transformers renamed; `attach` silences it, peft's own entry points cannot.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


CUTS = [{}, {"rank": 7}]


def adapted(build_model, architecture="qwen3", dtype=torch.float32, scale=0.3, cache_dir=None, **options):
    model = build_model(architecture, dtype)
    coordinates = adapt(model, basis="svd", model_id="tiny", cache_dir=cache_dir, **options)
    generator = torch.Generator().manual_seed(1)
    coordinates.load_values({m: scale * torch.randn(r, generator=generator) for m, r in coordinates.sizes.items()})
    return coordinates


@pytest.mark.parametrize("rank", [None, 7])
def test_adapted_layer_is_the_weight_with_changed_singular_values(build_model, architecture, rank):
    """Reference: y = W' x with W' = U diag(S + delta_S) Vh built densely, in float64; delta_S is 0 beyond the rank."""
    coordinates = adapted(build_model, architecture, torch.float64, rank=rank)
    base = build_model(architecture, torch.float64)
    for module, delta in coordinates.values().items():
        layer, plain = coordinates.layers[module], base.get_submodule(module)
        weight = weight_matrix(plain, module)
        U, S, Vh = torch.linalg.svd(weight.detach(), full_matrices=False)
        x = torch.randn(3, weight.shape[1], dtype=torch.float64)
        delta = torch.cat([delta, torch.zeros(len(S) - len(delta))])
        expected = x @ (U * (S + delta) @ Vh).T  # the sign of a pair (U column, Vh row) cancels
        bias = 0 if plain.bias is None else plain.bias
        torch.testing.assert_close(layer(x), expected + bias, msg=f"{module}: not W + U diag(delta_S) Vh")


@pytest.mark.parametrize("options", CUTS)
def test_merge_and_unmerge(build_model, architecture, options):
    """Merged = adapted up to rounding; unmerged = adapted and the base weights are restored bit for bit."""
    coordinates = adapted(build_model, architecture, **options)
    before = logits(coordinates.model)
    coordinates.model.merge_adapter()
    torch.testing.assert_close(logits(coordinates.model), before, rtol=1e-4, atol=1e-4)
    coordinates.model.unmerge_adapter()
    base = build_model(architecture)
    for module, layer in coordinates.layers.items():
        assert torch.equal(layer.weight, base.get_submodule(module).weight), f"{module}: unmerge lost bits"
    assert torch.equal(logits(coordinates.model), before)


def test_dithering_keeps_a_sum_that_rounding_would_lose():
    """Entries are neighbours in bfloat16, what it holds stays, and a change of a tenth of a bit arrives on average."""
    W = torch.randn(256, 192, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(dithered(W.float()), W)
    change = 0.1 * 2.0**-8 * W.float()
    moved = dithered(W.float() + change)
    assert ((moved.float() - W.float()).abs() <= 2.0**-7 * W.float().abs()).all()
    share = float(((moved.float() - W.float()) * W.float()).sum() / (change * W.float()).sum())
    assert share == pytest.approx(1.0, abs=0.05)
    assert torch.equal((W.float() + change).bfloat16(), W), "to the nearest it would be lost"


@pytest.mark.parametrize("options", CUTS)
def test_save_and_load(build_model, architecture, tmp_path, options):
    """A saved adapter holds delta_S and nothing else, and loads into a fresh base model with equal logits."""
    coordinates = adapted(build_model, architecture, cache_dir=tmp_path / "svd", **options)
    coordinates.model.save_pretrained(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    expected = {f"base_model.model.{module}.delta_S": (size,) for module, size in coordinates.sizes.items()}
    assert {name: tuple(tensor.shape) for name, tensor in saved.items()} == expected, "U or Vh leaked into the file"
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "DELTA_S"
    assert str(tmp_path) not in json.dumps(config), "a path of this machine was saved"
    assert config["num_triplets"] == options.get("rank")
    assert isinstance(PeftConfig.from_pretrained(tmp_path / "adapter"), DeltaSConfig)
    loaded = PeftModel.from_pretrained(build_model(architecture), tmp_path / "adapter")
    assert torch.equal(logits(loaded), logits(coordinates.model))


@pytest.mark.parametrize("low_cpu_mem_usage", [False, True])
def test_loading_into_a_bf16_model_does_not_round(build_model, tmp_path, low_cpu_mem_usage):
    coordinates, base = adapted(build_model, dtype=torch.bfloat16), build_model("qwen3", torch.bfloat16)
    coordinates.model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(base, tmp_path, low_cpu_mem_usage=low_cpu_mem_usage).get_base_model()
    for module, value in coordinates.values().items():
        found = loaded.get_submodule(module).delta_S["default"]
        assert found.dtype == torch.float32
        assert torch.equal(found, value), f"{module}: delta_S was rounded on the way"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_casting_the_model_leaves_the_adapter_precise(build_model, dtype):
    """`.to(bfloat16)` casts the base model and never delta_S or the factors, whose values stay bit for bit."""
    coordinates = adapted(build_model, dtype=dtype)
    before = coordinates.values()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    coordinates.model.to(torch.bfloat16)
    for module, layer in coordinates.layers.items():
        assert layer.base_layer.weight.dtype == torch.bfloat16
        factors = [factor for factor in (layer.U, layer.S, layer.Vh) if factor is not None]
        assert {tensor.dtype for tensor in (layer.delta_S["default"], *factors)} == {wide}, module
        assert torch.equal(coordinates.values()[module], before[module]), f"{module}: delta_S was rounded"
    assert logits(coordinates.model).isfinite().all()
