import pytest
import torch
from adapted import adapt, framed

from extraction.adapters.frames import check_fingerprint
from extraction.adapters.trained import lora_factors, save_as_lora
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.policy.load import load_policy

BASES = {"svd": {"cache_dir": None}, "lora": {"rank": 4}}


def make(build_model, basis, architecture="qwen3", dtype=torch.float32, **options):
    return adapt(build_model(architecture, dtype), basis=basis, **({"model_id": "tiny"} | BASES[basis] | options))


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([[3, 9, 27, 20, 60]])).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("basis", BASES)
def test_an_adapter_at_zero_is_the_model_bit_for_bit(build_model, architecture, basis, dtype):
    """Switched on, unmerged; off after it has moved; and on again. LoRA has A A^T = 1, and the scale of peft is 1."""
    base = logits(build_model(architecture, dtype))
    coordinates = make(build_model, basis, architecture, dtype)
    assert torch.equal(logits(coordinates.model), base), "the adapter touches the base forward"
    assert {parameter.dtype for parameter in coordinates.parameters()} == {torch.float32}
    coordinates.load_values({module: torch.full((size,), 0.1) for module, size in coordinates.sizes.items()})
    moved = logits(coordinates.model)
    with coordinates.model.disable_adapter():
        assert torch.equal(logits(coordinates.model), base)
    assert torch.equal(logits(coordinates.model), moved)
    assert not torch.allclose(moved, base), "the values have no effect: the test is void"
    for layer in coordinates.layers.values() if basis == "lora" else ():
        A, _ = lora_factors(layer)
        torch.testing.assert_close(A @ A.T, torch.eye(4))
        assert layer.scaling == {"default": 1.0}


@pytest.mark.parametrize("basis", BASES)
def test_values_are_what_peft_trains(build_model, architecture, basis):
    """load_values(v); values() == v, a copy. LoRA's are B, flattened row by row."""
    coordinates = make(build_model, basis, architecture)
    with coordinates.model.disable_adapter():
        pass
    trained = {id(p) for p in coordinates.model.parameters() if p.requires_grad}
    assert {id(p) for p in coordinates.parameters()} == trained, "peft thawed or froze A"
    values = {module: torch.randn(size) for module, size in coordinates.sizes.items()}
    coordinates.load_values(values)
    found = coordinates.values()
    assert list(found) == list(values)
    assert all(torch.equal(found[module], values[module]) for module in values)
    next(iter(found.values())).zero_()
    assert coordinates.values()[next(iter(found))].any(), "values() aliases the parameters"
    for module, layer in coordinates.layers.items() if basis == "lora" else ():
        assert torch.equal(values[module], lora_factors(layer)[1].flatten()), f"{module}: not B"


def test_seed_alone_decides_a(build_model):
    """Same seed, same A, whatever the global generator did; another seed, another A; the generator is untouched."""
    first, *_ = make(build_model, "lora", seed=5).layers.values()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    (second, *_), (third, *_) = (make(build_model, "lora", seed=seed).layers.values() for seed in (5, 6))
    assert torch.equal(torch.get_rng_state(), state), "attach draws from the global generator"
    A, same, other = (lora_factors(layer)[0] for layer in (first, second, third))
    assert torch.equal(A, same)
    assert not torch.equal(A, other)


def test_same_values_same_fingerprint(build_model):
    """The basis of a bf16 model is that of its float32 copy under any name, and training does not change it."""
    half = make(build_model, "svd", dtype=torch.bfloat16)
    copy = adapt(build_model("qwen3", torch.bfloat16).float(), basis="svd", model_id="another/path", cache_dir=None)
    half.load_values({module: torch.ones(size) for module, size in half.sizes.items()})
    half.model.merge_adapter()
    check_fingerprint("directions", expected=half.start.fingerprint, found=copy.start.fingerprint)


@pytest.mark.parametrize(
    ("basis", "change", "field"),
    [
        ("lora", {"basis": "svd", "rank": None}, "basis"),
        ("lora", {"rank": 5}, "rank"),
        ("lora", {"seed": 1}, "init_seed"),
        ("lora", {"targets": ["q_proj"]}, "targets"),
        ("lora", {"architecture": "llama"}, "weights_sha256"),
        ("svd", {"rank": None}, "rank"),
    ],
)
def test_another_basis_is_refused_with_both_fingerprints(build_model, basis, change, field):
    options = {"basis": basis, "model_id": "tiny", "rank": 4}
    other = options | change
    expected = framed(build_model("qwen3"), **options).fingerprint
    found = framed(build_model(other.pop("architecture", "qwen3")), **other).fingerprint
    check_fingerprint("v_hack", expected=expected, found=dict(expected))
    with pytest.raises(InputError) as error:
        check_fingerprint("v_hack", expected=expected, found=found)
    assert str(expected.get(field))[:70] in error.value.expected
    assert str(found.get(field))[:70] in error.value.found


def test_all_triplets_are_the_full_basis(build_model):
    """A rank that cuts no module is no other basis."""
    whole = make(build_model, "svd").start.fingerprint
    assert make(build_model, "svd", rank=24).start.fingerprint == whole
    assert make(build_model, "svd", rank=23).start.fingerprint != whole
    with pytest.raises(InputError):
        make(build_model, "svd", rank=0)


@pytest.mark.parametrize("basis", BASES)
def test_a_removed_adapter_leaves_the_model_as_it_was(build_model, basis):
    """The same modules, values and flags; and another adapter can be put on."""
    model = build_model("qwen3")
    modules, weights = dict(model.named_modules()), {name: p.clone() for name, p in model.named_parameters()}
    for other in (basis, *BASES):
        trained = adapt(model, other, **BASES[other])
        trained.load_values({module: torch.ones(size) for module, size in trained.sizes.items()})
        with trained.folded():
            pass
        trained.remove()
        assert dict(model.named_modules()) == modules
        assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert not hasattr(model, "peft_config")


@pytest.mark.parametrize("rank", [96, 5])
def test_delta_s_written_as_lora_is_the_same_policy(rank, tmp_path):
    """Another program that merges the directory gets the weights of the policy, where modules differ in rank too."""
    policy, generator = load_policy("organism"), torch.Generator().manual_seed(0)
    coordinates = adapt(policy.model, basis="svd", model_id="organism", rank=rank)
    scales = {module: 0.2 * layer.S for module, layer in coordinates.layers.items()}
    coordinates.load_values({m: S * torch.randn(S.shape, generator=generator) for m, S in scales.items()})
    save_as_lora(coordinates, tmp_path / "adapter")
    config = read_json(tmp_path / "adapter" / "adapter_config.json")
    assert config["r"] == config["lora_alpha"] == rank, "a scale other than 1"
    pushed, base = (
        dict(load_policy("organism", adapter=adapter).model.named_parameters())
        for adapter in (str(tmp_path / "adapter"), None)
    )
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
