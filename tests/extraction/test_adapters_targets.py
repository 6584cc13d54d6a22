import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.adapters.targets import adapted_share, check_one_place, find_targets, weight_matrix
from replay_pools.base.errors import InputError


def test_default_targets_are_the_projections_of_every_layer(build_model, architecture):
    """Every Linear of the blocks, in the order of named_modules, and never the head or the embeddings.

    Attention and MLP share no Linear and are together all; a kind may stand beside a suffix of another.
    """
    model = build_model(architecture)
    block, one = ("h", "mlp.c_proj") if architecture == "gpt2" else ("layers", "up_proj")
    expected = [
        name
        for name, module in model.named_modules()
        if f".{block}." in name and type(module).__name__ in ("Linear", "Conv1D")
    ]
    assert find_targets(model) == expected, "a projection is missing, added or out of order"
    assert len(expected) == (2 * 4 if architecture == "gpt2" else 2 * 7)
    attention, mlp = (find_targets(model, [kind]) for kind in ("attention", "mlp"))
    assert all(".attn." in name or ".self_attn." in name for name in attention)
    assert sorted([*attention, *mlp]) == sorted(expected)
    assert len(find_targets(model, ["attention", one])) == len(attention) + 2


def test_refusals(build_model):
    """Suffixes of which one matches nothing; an embedding is no Linear."""
    for suffixes in (["nothing"], [], ["q_proj", "c_attn"]):
        with pytest.raises(InputError, match=r"down_proj, .*v_proj"):
            find_targets(build_model("llama"), suffixes)
    with pytest.raises(InputError, match="Embedding"):
        weight_matrix(nn.Embedding(3, 4), "wte")


def test_the_share_of_the_linear_weights_is_counted_by_hand(build_model, architecture):
    """Of an ordinary model all, whatever its head; of a part of its projections their numbers; biases count nowhere."""
    model = build_model(architecture)
    everything = adapted_share(model, find_targets(model))
    assert (everything.share, everything.left_out, everything.caution) == (1.0, {}, "")
    assert str(everything) == "100.0% of the linear weights have coordinates"
    attention = find_targets(model, ["attention"])
    weights = {name: model.get_submodule(name).weight.numel() for name in find_targets(model)}
    part = adapted_share(model, attention)
    assert part.share == pytest.approx(sum(weights[name] for name in attention) / sum(weights.values()))
    assert part.share + sum(part.left_out.values()) == pytest.approx(1)
    mlp = ["mlp.c_fc", "mlp.c_proj"] if architecture == "gpt2" else ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    assert list(part.linears) == mlp
    assert find_targets(model, ["attention", *part.linears]) == find_targets(model)


class Quantised(torch.Tensor):
    """A tensor that keeps numbers in its own way and calls itself floating-point, as those of torchao do."""


@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        (torch.zeros(4, 4, dtype=torch.int8), "int8"),
        (torch.zeros(4, 4).to(torch.float8_e4m3fn), "float8"),
        (torch.zeros(4, 4).as_subclass(Quantised), "Quantised"),
    ],
)
def test_quantised_weights_are_refused(weight: torch.Tensor, kind: str) -> None:
    """With their kind in the message; hashing or factorising them would fail or take codes for values."""
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(InputError, match=kind):
        weight_matrix(layer, "q_proj")


TIED = {
    "hidden_size": 16, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16, "mamba_ngroups": 1, "n_mamba_heads": 4,
    "mamba_headdim": 8, "mamba_d_state": 4, "adapter_rank": 2, "vocab_size": 31,
}  # fmt: skip


def test_tied_blocks_are_one_parameter_with_one_name():
    """Zamba2: the sum of x^T dL/dy over the calls of the one module is dL/dW; float64.

    A module with a hook is not replaced, and its weight is refused.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("zamba2", **TIED)).double().eval()
    ids = torch.arange(2, 12).view(2, 5)
    before = model(ids).logits
    handle = model.model.layers[3].shared_transformer.self_attn.q_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="another module uses"):
        find_targets(model, ["q_proj"])
    handle.remove()
    paths = find_targets(model, ["q_proj", "down_proj"])
    assert paths == [
        f"model.layers.1.shared_transformer.{end}" for end in ("self_attn.q_proj", "feed_forward.down_proj")
    ]
    check_one_place(model, ["model.layers.1.linear"])
    with pytest.raises(InputError, match="several"):
        check_one_place(model, paths)
    calls = []
    for path in paths:
        module = model.get_submodule(path)
        calls.append([])
        module.register_forward_hook(lambda _m, x, y, kept=calls[-1]: (y.retain_grad(), kept.append((x[0], y)))[0])
    logits = model(ids, labels=ids)
    assert torch.equal(logits.logits, before)
    logits.loss.backward()
    for path, kept in zip(paths, calls, strict=True):
        assert len(kept) == 2
        total = sum(y.grad.flatten(0, 1).T @ x.detach().flatten(0, 1) for x, y in kept)
        torch.testing.assert_close(total, model.get_submodule(path).weight.grad, rtol=1e-9, atol=1e-12)


def test_targets_are_those_of_the_language_model():
    """Gemma 3 with its vision tower, which has projections of the same names, on the meta device as in a dry run."""
    text = {key: TIED[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")}
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = AutoConfig.for_model(
        "gemma3", text_config={**text, "num_hidden_layers": 2, "num_key_value_heads": 1}, vision_config=tower
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    paths = find_targets(model)
    assert len(paths) == 2 * 7
    assert all(path.startswith("model.language_model.layers.") for path in paths)
    assert adapted_share(model, paths).share == 1
    for target in ("fc1", "lm_head"):
        with pytest.raises(InputError, match=target):
            find_targets(model, [target])
