"""The coordinates of a model that was adapted elsewhere: the same basis, or a refusal."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from extraction.adapters.coordinates import attach, existing_coordinates
from extraction.adapters.delta_s import DeltaSConfig
from replay_pools.errors import InputError
from replay_pools.policy.adapters import quiet_peft

OPTIONS = {"svd": {"cache_dir": None}, "lora": {"rank": 3, "seed": 4}}


def adapt(build_model, architecture, basis, dtype=torch.float32, **options):
    return attach(build_model(architecture, dtype), basis=basis, model_id="tiny", **OPTIONS[basis] | options)


@pytest.mark.parametrize(("basis", "dtype"), [("svd", torch.bfloat16), ("lora", torch.float32)])
def test_what_attach_makes_is_read_back(build_model, architecture, basis, dtype):
    """existing(attach(model).model) has the fingerprint, the modules in order, and the very parameters of attach."""
    made = adapt(build_model, architecture, basis, dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1)  # training moves what is trained, and no basis
    found = existing_coordinates(made.model, like=made.fingerprint())
    assert found is not None
    assert found.fingerprint() == made.fingerprint()
    assert list(found.layers) == list(made.layers)
    assert [id(p) for p in found.parameters()] == [id(p) for p in made.parameters()]


def plain_lora(model, **options):
    with quiet_peft():
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))


def test_no_adapter_of_the_basis(build_model):
    """Another A, other modules, scale or training, DoRA, an embedding, none: the numbers would mean something else."""
    made = adapt(build_model, "llama", "lora")
    lora, targets = made.fingerprint(), ["q_proj", "v_proj"]
    models = [
        plain_lora(build_model("llama"), r=3, lora_alpha=3, target_modules=made.fingerprint()["targets"]),
        plain_lora(build_model("llama"), target_modules=targets, use_dora=True),
        plain_lora(build_model("llama"), target_modules=["embed_tokens"]),
        build_model("llama"),
        adapt(build_model, "llama", "lora", seed=5).model,
        adapt(build_model, "llama", "lora", train_a=True).model,
        adapt(build_model, "llama", "lora", targets=targets).model,
    ]
    for model in models:
        assert existing_coordinates(model, like=lora) is None
    assert existing_coordinates(made.model, like=adapt(build_model, "llama", "svd").fingerprint()) is None
    layer = list(made.layers.values())[3]
    layer.scaling["default"] *= 2
    assert existing_coordinates(made.model, like=lora) is None


@pytest.mark.filterwarnings("ignore")  # peft warns of the second adapter
def test_refusals(build_model):
    """Our adapter under another name, without its model, beside another one."""
    with quiet_peft():
        named = get_peft_model(build_model("llama"), DeltaSConfig(task_type="CAUSAL_LM"), adapter_name="mine")
    with pytest.raises(InputError, match="found mine"):
        existing_coordinates(named, like={})
    made = adapt(build_model, "llama", "svd")
    with pytest.raises(InputError, match="LlamaForCausalLM"):
        existing_coordinates(made.model.get_base_model(), like={})
    inner = plain_lora(build_model("llama"), target_modules=["lm_head"]).get_base_model()
    both = attach(inner, basis="svd", model_id="tiny", cache_dir=None, targets=["q_proj"])
    with pytest.raises(InputError, match="found both"):
        existing_coordinates(both.model, like={})
