"""Per-sample gradients against the slow, obvious reference: one ordinary autograd backward per sample."""

import pytest
import torch
from adapted import adapt, framed, sampled
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from extraction.logprobs import split_model
from extraction.passes import score
from replay_pools.base.errors import InputError

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
CASES = ["svd-zero", "svd-moved", "svd7-zero", "svd7-moved", "lora-zero", "lora-moved"]


def reference(coordinates, prompts, completions, weights):
    """For each sample alone and unpadded: full logits, -sum_t w_t logp_t, backward into the adapter's parameters."""
    rows = {module: [] for module in coordinates.sizes}
    for prompt, completion, weight in zip(prompts, completions, weights):
        ids = torch.tensor([prompt + completion])
        logprobs = (
            coordinates.model(ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        )
        coordinates.model.zero_grad()
        (-(torch.tensor(weight) * logprobs[len(prompt) - 1 :]).sum()).backward()
        for module in rows:
            rows[module].append(torch.cat([p.grad.flatten() for p in coordinates.trainable(module)]))
    coordinates.model.zero_grad()
    return {module: torch.stack(found) for module, found in rows.items()}


def assert_close(found, expected, tolerance, hint):
    assert list(found) == list(expected)
    for module in expected:
        assert found[module].shape == expected[module].shape
        scale = expected[module].norm(dim=1, keepdim=True).clamp_min(1e-30)
        error = ((found[module] - expected[module]).norm(dim=1, keepdim=True) / scale).max().item()
        assert error < tolerance, f"{module}: relative error {error:.1e}: {hint}"


def token_weights(batch, completions):
    """Uneven weights, and 9 off the completion, where they must not be read."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(len(completion), generator=generator).tolist() for completion in completions]
    weights = torch.full(batch.ids.shape, 9.0)
    weights[batch.completion_mask] = torch.tensor([weight for row in rows for weight in row])
    return weights, rows


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_one_backward_equals_single_sample_backwards(make_coordinates, architecture, rollouts, case, dtype):
    coordinates = make_coordinates(architecture, case, dtype)
    batch = make_batch(*rollouts, pad_id=2)
    weights, rows = token_weights(batch, rollouts[1])
    expected = reference(coordinates, *rollouts, rows)
    found = sampled(coordinates, batch, token_weights=weights)
    assert_close(found.gradients, expected, TOLERANCE[dtype], "x and dL/dy do not belong to the same module or sample")
    assert {gradient.dtype for gradient in found.gradients.values()} == {dtype}


@pytest.mark.parametrize("case", ["svd-zero", "lora-moved"])
def test_neither_company_nor_padding_matters(make_coordinates, architecture, rollouts, case):
    coordinates = make_coordinates(architecture, case)
    prompts, completions = rollouts
    batch = make_batch(prompts, completions, pad_id=2)
    weights, _ = token_weights(batch, completions)
    whole = sampled(coordinates, batch, token_weights=weights)
    for budget in (1, 15, 1000):
        found = sampled(coordinates, batch, token_weights=weights, tokens_per_batch=budget)
        assert_close(found.gradients, whole.gradients, 1e-8, f"tokens_per_batch={budget} changes the result")
        torch.testing.assert_close(found.token_logprobs, whole.token_logprobs)
    unit = sampled(coordinates, batch).gradients
    longer = make_batch([*prompts, [5] * 20], [*completions, [7] * 30], pad_id=2)
    beside = sampled(coordinates, longer).gradients
    assert_close({m: g[:-1] for m, g in beside.items()}, unit, 1e-8, "the padding leaks into the gradient")


@pytest.mark.parametrize("case", ["svd-moved", "lora-zero"])
def test_padded_rows_serve_where_packed_ones_do_not(make_coordinates, architecture, rollouts, case, monkeypatch):
    """Padded rows are packed rows: nothing of the result changes."""
    coordinates = make_coordinates(architecture, case)
    batch = make_batch(*rollouts, pad_id=2)
    packed = sampled(coordinates, batch)
    monkeypatch.setattr("extraction.passes.packs", lambda _: False)
    padded = sampled(coordinates, batch)
    assert_close(padded.gradients, packed.gradients, 1e-8, "packed rows are not padded rows")
    torch.testing.assert_close(padded.token_logprobs, packed.token_logprobs)


@pytest.mark.parametrize("case", ["svd-zero", "svd-moved", "lora-zero", "lora-moved"])
def test_samples_that_share_a_prompt_add_up(make_coordinates, architecture, rollouts, case):
    """The sum over samples, in one pass or several, with fewer tokens where the budget lets a prompt serve twice."""
    coordinates, (prompts, completions) = make_coordinates(architecture, case), rollouts
    batch = make_batch([*prompts[:2], prompts[0], prompts[0], prompts[1]], completions, pad_id=2)
    weights, _ = token_weights(batch, completions)
    alone, seen = sampled(coordinates, batch, token_weights=weights), []
    total = {module: gradient.sum(0)[None] for module, gradient in alone.gradients.items()}
    backbone, _ = split_model(coordinates.model)
    backbone.register_forward_hook(lambda _m, _i, output: seen.append(output.last_hidden_state.shape[1]))
    for budget in (1000, 20, 1):
        seen.clear()
        found = sampled(coordinates, batch, token_weights=weights, tokens_per_batch=budget, share=True)
        added = {module: gradient.sum(0)[None] for module, gradient in found.gradients.items()}
        # Qwen's norms are in float32, and meet the sum in the place of its parts.
        assert_close(added, total, 1e-6, f"a shared prompt loses or doubles what flows to it, {budget} tokens a pass")
        torch.testing.assert_close(found.token_logprobs, alone.token_logprobs, rtol=1e-6, atol=1e-6)
        assert (sum(seen) < batch.lengths.sum()) == (budget > 1)
        scores = score(coordinates.model, batch, tokens_per_batch=budget)
        torch.testing.assert_close(scores, alone.token_logprobs, rtol=1e-6, atol=1e-6)


def test_a_module_that_reads_other_tokens_is_named():
    """ZAYA's delayed values are also computed of one vector of zeros a row, which belongs to no token."""
    options = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    options |= {"head_dim": 8, "vocab_size": 31, "moe_intermediate_size": 8, "num_experts": 2, "router_hidden_size": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("zaya", **options)).eval()
    frames = framed(model, "svd", targets=["v_proj_delayed"])
    with pytest.raises(InputError, match="v_proj_delayed"):
        per_sample_gradients(model, {"svd": frames}, make_batch([[3, 4], [5]], [[6, 7], [8]], pad_id=2))


@pytest.mark.parametrize("budget", [1000, 18, 1])
def test_passes_are_counted_and_bounded(make_coordinates, rollouts, budget):
    """ceil(tokens / budget) forwards where the samples divide well, of at most `budget` tokens; then one a sample."""
    coordinates = make_coordinates("qwen3", "svd-zero")
    batch, seen = make_batch(*rollouts, pad_id=2), []
    sampled(coordinates, batch)  # the model's trial of packed rows is behind
    block = coordinates.model.get_base_model().base_model.layers[0]
    block.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape[1]))
    sampled(coordinates, batch, tokens_per_batch=budget)
    total = int(batch.lengths.sum())
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
    ones = [[1.0] * len(completion) for completion in rollouts[1]]
    expected = reference(coordinates, *rollouts, ones)
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
    ones = [[1.0] * len(completion) for completion in rollouts[1]]
    found = sampled(coordinates, make_batch(*rollouts, pad_id=2)).gradients
    assert_close(found, reference(coordinates, *rollouts, ones), 1e-8, "one of the two uses was lost")
