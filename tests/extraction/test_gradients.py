"""Per-sample gradients against one ordinary autograd backward per sample; the passes and the memory that they take."""

import pytest
import torch
from adapted import adapt, framed, nll_gradient, sampled
from transformers import AutoConfig, AutoModelForCausalLM

from extraction import passes
from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from extraction.passes import FEWEST, MOST, checkpointed, tokens_that_fit
from replay_pools.base.errors import InputError


def reference(coordinates, prompts, completions):
    """For each sample alone and unpadded: full logits, -sum_t logp_t, autograd of the adapter's parameters."""
    rows = [nll_gradient(coordinates, *one) for one in zip(prompts, completions, strict=True)]
    return {module: torch.stack([row[module] for row in rows]) for module in coordinates.sizes}


def assert_close(found, expected, tolerance, hint):
    assert list(found) == list(expected)
    for module in expected:
        assert found[module].shape == expected[module].shape
        scale = expected[module].norm(dim=1, keepdim=True).clamp_min(1e-30)
        error = ((found[module] - expected[module]).norm(dim=1, keepdim=True) / scale).max().item()
        assert error < tolerance, f"{module}: relative error {error:.1e}: {hint}"


def test_a_module_that_reads_other_tokens_is_named():
    """ZAYA's delayed values are also computed of one vector of zeros a row, which belongs to no token."""
    options = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    options |= {"head_dim": 8, "vocab_size": 31, "moe_intermediate_size": 8, "num_experts": 2, "router_hidden_size": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("zaya", **options)).eval()
    frames = framed(model, "svd", targets=["v_proj_delayed"])
    with pytest.raises(InputError, match="v_proj_delayed"):
        per_sample_gradients(model, {"svd": frames}, make_batch([[3, 4], [5]], [[6, 7], [8]], pad_id=2))


@pytest.mark.parametrize(("budget", "share"), [(1000, False), (18, False), (1, False), (1000, True)])
def test_passes_are_counted_and_bounded(make_coordinates, rollouts, budget, share):
    """ceil(tokens / budget) forwards where the samples divide well, of at most `budget` tokens; then one a sample.

    A prompt that two samples share is read once.
    """
    coordinates, (prompts, completions) = make_coordinates("qwen3", "svd-zero"), rollouts
    batch, seen = make_batch([*prompts[:4], prompts[0] if share else prompts[4]], completions, pad_id=2), []
    sampled(coordinates, batch)  # the model's trial of packed rows is behind
    block = coordinates.model.get_base_model().base_model.layers[0]
    block.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape[1]))
    sampled(coordinates, batch, tokens_per_batch=budget, share=share)
    total = int(batch.lengths.sum()) - (len(prompts[0]) if share else 0)
    assert total == sum(seen)
    assert len(seen) == (-(-total // budget) if budget > 1 else len(batch))
    assert max(seen) <= max(budget, int(batch.lengths.max()))


def test_a_singular_value_of_zero_divides_nothing(build_model, make_coordinates, rollouts):
    """S + delta_S = 0 where W is well-conditioned, and an S at and near 0."""
    model = build_model("qwen3", torch.float64)
    weight = model.model.layers[1].mlp.up_proj.weight
    U, S, Vh = torch.linalg.svd(weight.detach(), full_matrices=False)
    S[-2:] = torch.tensor([1e-9, 0.0])
    weight.data = (U * S) @ Vh
    coordinates = make_coordinates(model, "svd-zero")
    values = {m: torch.zeros(r, dtype=torch.float64) for m, r in coordinates.sizes.items()}
    for module in values:
        values[module][1] = -coordinates.layers[module].S[1]
    coordinates.load_values(values)
    batch = make_batch(*rollouts, pad_id=2)
    expected = reference(coordinates, *rollouts)
    assert_close(sampled(coordinates, batch).gradients, expected, 1e-8, "divided by S + delta_S = 0")


@pytest.mark.parametrize("case", ["svd-moved", "lora-moved"])
def test_model_is_left_as_it_was(make_coordinates, rollouts, case):
    """No .grad is written or cleared, no weight, flag, mode or hook stays changed: even after an error."""
    coordinates = make_coordinates("qwen3", case)
    coordinates.model.train()
    coordinates.model.get_submodule(f"base_model.model.{next(iter(coordinates.sizes))}").eval()
    marked = coordinates.parameters()[0]
    marked.grad = torch.ones_like(marked)
    weights = {name: p.detach().clone() for name, p in coordinates.model.named_parameters()}

    def state():
        return (
            [p.requires_grad for p in coordinates.model.parameters()],
            [p.grad is not None for p in coordinates.model.parameters()],
            [torch.equal(p, weights[name]) for name, p in coordinates.model.named_parameters()],
            [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in coordinates.model.modules()],
            [m.forward.__func__ is type(m).forward for m in coordinates.model.modules()],
            coordinates.model.config._attn_implementation,
        )

    before, batch = state(), make_batch(*rollouts, pad_id=2)
    sampled(coordinates, batch, tokens_per_batch=10)
    assert state() == before

    def fail(*_):
        raise RuntimeError("inside")

    handle = coordinates.model.get_output_embeddings().register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="inside"):
        sampled(coordinates, batch, tokens_per_batch=10)
    handle.remove()
    assert state() == before, "an error left the model changed"
    assert torch.equal(marked.grad, torch.ones_like(marked))


def test_trained_bf16_model_moves_as_its_float32_copy(build_model, rollouts):
    """A delta_S far below the last bit of bf16 weights moves the log-probabilities by all of it on average.

    Two products that are rounded on their own, or weights rounded to the nearest, give a third.
    """
    batch = make_batch(*rollouts, pad_id=2)
    moved, cosines = {}, []
    step = None
    for dtype in (torch.float32, torch.bfloat16):
        model = build_model("qwen3", torch.bfloat16).to(dtype)
        coordinates = adapt(model, basis="svd", model_id="tiny", cache_dir=None)
        base = sampled(coordinates, batch)
        if step is None:  # of Adam: every coordinate by the same
            step = {module: -3e-3 * g.sum(0).sign() for module, g in base.gradients.items()}
        coordinates.load_values(step)
        with coordinates.folded():
            assert all(layer.merged for layer in coordinates.layers.values())
        found = sampled(coordinates, batch)
        moved[dtype] = float((found.token_logprobs - base.token_logprobs).sum())
        cosines.append(torch.cat(list(found.gradients.values()), dim=1).flatten())
    assert moved[torch.bfloat16] == pytest.approx(moved[torch.float32], rel=0.2)
    assert float(torch.nn.functional.cosine_similarity(*cosines, dim=0)) > 0.999


@pytest.mark.parametrize("case", ["svd-moved", "lora-moved"])
def test_layer_used_twice_adds_up(make_coordinates, rollouts, case):
    """A block that the model runs twice gets the sum of both uses, as autograd gives it."""
    coordinates = make_coordinates("qwen3", case)
    layers = coordinates.model.get_base_model().base_model.layers
    layers[1] = layers[0]
    for module in [module for module in coordinates.sizes if ".layers.1." in module]:
        del coordinates.layers[module], coordinates.sizes[module]
    found = sampled(coordinates, make_batch(*rollouts, pad_id=2)).gradients
    assert_close(found, reference(coordinates, *rollouts), 1e-8, "one of the two uses was lost")


@pytest.mark.parametrize(("total", "expected"), [(0, FEWEST), (10**7, 512), (7 * 10**7, 4096), (10**15, MOST)])
def test_tokens_follow_the_memory(build_model, monkeypatch, total, expected):
    """A power of two between the bounds; the Linears of the tiny model have 720 inputs and outputs in float32."""
    monkeypatch.setattr(passes, "batch_bytes", lambda _, held: int(0.5 * (total - held)))
    assert tokens_that_fit(build_model("llama").base_model) == expected


@pytest.mark.parametrize("wanted", [False, True])
def test_checkpointing_saves_only_the_inputs_of_blocks(build_model, architecture, wanted):
    """While open and wanted, autograd saves fewer tensors; gradients are the same; the blocks are as before after."""
    model, saved = build_model(architecture), []
    ids = torch.tensor([[3, 9, 27, 20, 60]])
    inputs = model.get_input_embeddings()(ids).detach().requires_grad_()

    def run():
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            loss = model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state.square().sum()
        return torch.autograd.grad(loss, inputs)[0], sum(saved)

    expected, most = run()
    with checkpointed(model.base_model, wanted):
        found, fewer = run()
    torch.testing.assert_close(found, expected)
    assert (fewer < most / 2) == wanted
    assert run()[1] == most
