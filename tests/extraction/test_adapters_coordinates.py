import pytest
import torch

from extraction.adapters.coordinates import attach
from extraction.adapters.interface import check_fingerprint
from replay_pools.errors import InputError

BASES = {"svd": {"cache_dir": None}, "lora": {"rank": 4}}


def make(build_model, basis, architecture="qwen3", dtype=torch.float32, **options):
    return attach(build_model(architecture, dtype), basis=basis, **({"model_id": "tiny"} | BASES[basis] | options))


@pytest.mark.parametrize("basis", BASES)
def test_values_round_trip(build_model, architecture, basis):
    """load_values(v); values() == v, values() is a copy, and the adapter is zero no more."""
    coordinates = make(build_model, basis, architecture)
    values = {module: torch.randn(size) for module, size in coordinates.sizes.items()}
    coordinates.load_values(values)
    found = coordinates.values()
    assert list(found) == list(coordinates.sizes)
    assert all(torch.equal(found[module], values[module]) for module in values)
    assert not coordinates.is_zero()
    next(iter(found.values())).zero_()
    assert coordinates.values()[next(iter(found))].any(), "values() aliases the parameters"


@pytest.mark.parametrize("basis", BASES)
def test_one_coordinate_is_enough_not_to_be_zero(build_model, basis):
    """is_zero looks at every module, the last one included."""
    coordinates = make(build_model, basis)
    values = coordinates.values()
    values[list(values)[-1]][-1] = 1e-30
    coordinates.load_values(values)
    assert not coordinates.is_zero()


@pytest.mark.parametrize("basis", BASES)
def test_set_gradients_makes_an_sgd_step(build_model, basis):
    """After set_gradients(g), SGD with rate 1 moves the coordinates by -g: .grad has the layout of values()."""
    coordinates = make(build_model, basis)
    before = coordinates.values()
    gradients = {module: torch.randn(size) for module, size in coordinates.sizes.items()}
    coordinates.set_gradients(gradients)
    torch.optim.SGD(coordinates.parameters(), lr=1.0).step()
    for module, value in coordinates.values().items():
        torch.testing.assert_close(value, before[module] - gradients[module], msg=f"{module}: another layout")


@pytest.mark.parametrize("basis", BASES)
def test_parameters_are_exactly_what_peft_trains(build_model, architecture, basis):
    """Nothing trainable is outside the coordinates, nothing in them is frozen."""
    coordinates = make(build_model, basis, architecture)
    trainable = {id(p) for p in coordinates.model.parameters() if p.requires_grad}
    assert {id(p) for p in coordinates.parameters()} == trainable
    assert sum(coordinates.sizes.values()) == sum(p.numel() for p in coordinates.parameters())


@pytest.mark.parametrize("method", ["load_values", "set_gradients"])
def test_foreign_vectors_are_refused(build_model, method):
    """A missing module and a wrong size are named."""
    coordinates = make(build_model, "svd")
    values = coordinates.values()
    module, value = values.popitem()
    with pytest.raises(InputError, match=module):
        getattr(coordinates, method)(values)
    with pytest.raises(InputError, match=r"\(25,\)"):
        getattr(coordinates, method)(values | {module: torch.zeros(value.numel() + 1)})


def test_same_values_same_fingerprint(build_model):
    """The basis of a bf16 model is that of its float32 copy under any name, and training does not change it."""
    half = make(build_model, "svd", dtype=torch.bfloat16)
    copy = attach(build_model("qwen3", torch.bfloat16).float(), basis="svd", model_id="another/path", cache_dir=None)
    half.load_values({module: torch.ones(size) for module, size in half.sizes.items()})
    half.model.merge_adapter()
    check_fingerprint("directions", expected=half.fingerprint(), found=copy.fingerprint())


@pytest.mark.parametrize(
    ("basis", "change", "field"),
    [
        ("lora", {"basis": "svd", "rank": None}, "basis"),
        ("lora", {"rank": 5}, "rank"),
        ("lora", {"alpha": 9.0}, "alpha"),
        ("lora", {"seed": 1}, "init_seed"),
        ("lora", {"targets": ["q_proj"]}, "targets"),
        ("lora", {"architecture": "llama"}, "weights_sha256"),
        ("lora", {"train_a": True}, "train_a"),
        ("svd", {"rank": 5}, "rank"),
        ("svd", {"rank": None}, "rank"),
        ("svd", {"storage": "bfloat16"}, "storage"),
    ],
)
def test_another_basis_is_refused_with_both_fingerprints(build_model, basis, change, field):
    """Each field alone makes another basis; the error shows its two values."""
    options = {"basis": basis, "model_id": "tiny", "rank": 4, "cache_dir": None}
    other = options | change
    expected = attach(build_model("qwen3"), **options).fingerprint()
    found = attach(build_model(other.pop("architecture", "qwen3")), **other).fingerprint()
    check_fingerprint("v_hack", expected=expected, found=dict(expected))
    with pytest.raises(InputError) as error:
        check_fingerprint("v_hack", expected=expected, found=found)
    assert str(expected.get(field))[:70] in error.value.expected
    assert str(found.get(field))[:70] in error.value.found


def test_all_triplets_are_the_full_basis(build_model):
    """A rank that cuts no module is no other basis; neither is the default storage by its name."""
    whole = make(build_model, "svd").fingerprint()
    assert make(build_model, "svd", rank=24, storage="float32").fingerprint() == whole
    assert make(build_model, "svd", rank=23).fingerprint() != whole
    assert "storage" not in whole


@pytest.mark.parametrize(
    "options",
    [
        {"basis": "svd", "rank": 0},
        {"basis": "svd", "storage": "float16"},
    ],
)
def test_options_that_make_no_sense(build_model, options):
    with pytest.raises(InputError):
        attach(build_model("qwen3"), model_id="tiny", cache_dir=None, **options)
