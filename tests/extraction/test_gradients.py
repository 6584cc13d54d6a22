"""Per-sample gradients against the slow, obvious reference: one ordinary autograd backward per sample."""

import pytest
import torch

from extraction.adapters import attach
from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from replay_pools.errors import InputError

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
CASES = ["svd-zero", "svd-moved", "lora-zero", "lora-moved", "lora-frozen-a"]


def make(build_model, architecture, case, dtype=torch.float64):
    basis, state = case.split("-", 1)
    options = {"cache_dir": None} if basis == "svd" else {"rank": 3, "alpha": 6.0, "train_a": state != "frozen-a"}
    coordinates = attach(build_model(architecture, dtype), basis=basis, model_id="tiny", **options)
    if state != "zero":
        generator = torch.Generator().manual_seed(1)
        coordinates.load_values(
            {m: v + 0.2 * torch.randn(v.shape, generator=generator) for m, v in coordinates.values().items()}
        )
    return coordinates


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
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_backward_equals_single_sample_backwards(build_model, architecture, rollouts, case, dtype):
    """Ragged prompts and completions, uneven token weights, every architecture, both bases, at 0 and elsewhere."""
    coordinates = make(build_model, architecture, case, dtype)
    batch = make_batch(*rollouts, pad_id=2)
    weights, rows = token_weights(batch, rollouts[1])
    expected = reference(coordinates, *rollouts, rows)
    found = per_sample_gradients(coordinates, batch, token_weights=weights)
    assert_close(found.gradients, expected, TOLERANCE[dtype], "x and dL/dy do not belong to the same module or sample")
    assert {gradient.dtype for gradient in found.gradients.values()} == {dtype}


@pytest.mark.parametrize("case", CASES)
def test_default_weight_is_the_summed_nll(build_model, rollouts, case):
    """Without weights: the gradient of nll, which is minus the sum of token_logprobs, 0 off the completion."""
    coordinates = make(build_model, "qwen3", case)
    batch = make_batch(*rollouts, pad_id=2)
    found = per_sample_gradients(coordinates, batch)
    ones = [[1.0] * len(completion) for completion in rollouts[1]]
    assert_close(found.gradients, reference(coordinates, *rollouts, ones), 1e-8, "not the unit gradient")
    torch.testing.assert_close(found.nll, -found.token_logprobs.sum(1))
    assert not found.token_logprobs[~batch.completion_mask].any()
    assert (found.token_logprobs[batch.completion_mask] < 0).all()


@pytest.mark.parametrize("case", CASES)
def test_weighted_sum_is_the_batch_gradient(build_model, rollouts, case):
    """sum_i A_i g_i = the gradient that one ordinary backward of sum_i A_i nll_i puts in .grad."""
    coordinates = make(build_model, "llama", case)
    batch = make_batch(*rollouts, pad_id=2)
    advantages = torch.tensor([0.5, -1.0, 0.0, 2.0, -0.25], dtype=torch.float64)
    logits = coordinates.model(batch.ids, attention_mask=batch.attention_mask).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(2, batch.ids[:, 1:, None])[..., 0] * batch.completion_mask[:, 1:]
    (-(advantages @ logprobs.sum(1))).backward()
    expected = {m: torch.cat([p.grad.flatten() for p in coordinates.trainable(m)])[None] for m in coordinates.sizes}
    unit = per_sample_gradients(coordinates, batch).gradients
    assert_close({m: (advantages @ g)[None] for m, g in unit.items()}, expected, 1e-8, "not linear in the advantage")


@pytest.mark.parametrize("case", ["svd-zero", "lora-moved"])
def test_neither_company_nor_padding_matters(build_model, architecture, rollouts, case):
    """A sample's gradient is the same alone, in a batch, beside a much longer sample and in micro-batches."""
    coordinates = make(build_model, architecture, case)
    prompts, completions = rollouts
    batch = make_batch(prompts, completions, pad_id=2)
    weights, _ = token_weights(batch, completions)
    whole = per_sample_gradients(coordinates, batch, token_weights=weights)
    for micro_batch in (1, 2, 9):
        found = per_sample_gradients(coordinates, batch, token_weights=weights, micro_batch=micro_batch, chunk_size=3)
        assert_close(found.gradients, whole.gradients, 1e-8, f"micro_batch={micro_batch} changes the result")
        torch.testing.assert_close(found.token_logprobs, whole.token_logprobs)
        torch.testing.assert_close(found.nll, whole.nll)
    unit = per_sample_gradients(coordinates, batch).gradients
    longer = make_batch([*prompts, [5] * 20], [*completions, [7] * 30], pad_id=2)
    beside = per_sample_gradients(coordinates, longer).gradients
    assert_close({m: g[:-1] for m, g in beside.items()}, unit, 1e-8, "the padding leaks into the gradient")


def test_lora_at_zero_lives_in_b_alone(build_model, rollouts):
    """B = 0 makes dL/dA = s B^T dL/dy x^T exactly 0."""
    coordinates = make(build_model, "qwen3", "lora-zero")
    found = per_sample_gradients(coordinates, make_batch(*rollouts, pad_id=2)).gradients
    for module, gradient in found.items():
        size = coordinates.factors(module)[0].numel()
        assert not gradient[:, :size].any()
        assert gradient[:, size:].any()


@pytest.mark.parametrize("case", ["svd-zero", "svd-moved", "lora-zero", "lora-frozen-a"])
def test_model_is_left_as_it_was(build_model, rollouts, case):
    """No .grad is written or cleared, no flag, mode or hook stays changed: even after an error."""
    coordinates = make(build_model, "qwen3", case)
    coordinates.model.train()
    coordinates.model.get_submodule(f"base_model.model.{next(iter(coordinates.sizes))}").eval()
    marked = coordinates.parameters()[0]
    marked.grad = torch.ones_like(marked)

    def state():
        return (
            [p.requires_grad for p in coordinates.model.parameters()],
            [p.grad is not None for p in coordinates.model.parameters()],
            [(m.training, len(m._forward_hooks)) for m in coordinates.model.modules()],
        )

    before, batch = state(), make_batch(*rollouts, pad_id=2)
    per_sample_gradients(coordinates, batch)
    assert state() == before
    with pytest.raises(RuntimeError):
        per_sample_gradients(coordinates, batch.to("meta"))
    assert state() == before, "an error left the model changed"
    assert torch.equal(marked.grad, torch.ones_like(marked))


def test_adapter_at_zero_costs_no_forward(build_model, rollouts):
    """At 0 the base forward is untouched: even a ruined frame U (0 x NaN = NaN) cannot reach the log-probabilities."""
    coordinates = make(build_model, "qwen3", "svd-zero")
    for module in coordinates.sizes:
        coordinates.layer(module).U.fill_(torch.nan)
    found = per_sample_gradients(coordinates, make_batch(*rollouts, pad_id=2))
    assert found.nll.isfinite().all(), "the adapter took part in the forward"


@pytest.mark.parametrize("case", ["svd-moved", "lora-moved"])
def test_layer_used_twice_adds_up(build_model, rollouts, case):
    """A block that the model runs twice gets the sum of both uses, as autograd gives it."""
    coordinates = make(build_model, "qwen3", case)
    layers = coordinates.model.get_base_model().base_model.layers
    layers[1] = layers[0]
    for module in [module for module in coordinates.sizes if ".layers.1." in module]:
        del coordinates.layers[module], coordinates.sizes[module]
    ones = [[1.0] * len(completion) for completion in rollouts[1]]
    found = per_sample_gradients(coordinates, make_batch(*rollouts, pad_id=2)).gradients
    assert_close(found, reference(coordinates, *rollouts, ones), 1e-8, "one of the two uses was lost")


def test_unused_layer_has_gradient_zero(build_model, rollouts):
    """A block that the model skips does not change the loss."""
    coordinates = make(build_model, "qwen3", "svd-zero")
    coordinates.model.get_base_model().config.num_hidden_layers = 1
    for module, gradient in per_sample_gradients(coordinates, make_batch(*rollouts, pad_id=2)).gradients.items():
        assert gradient.shape == (5, coordinates.sizes[module])
        assert gradient.any() == (".layers.0." in module), module


def test_works_inside_no_grad(build_model, rollouts):
    """A caller that measures under no_grad gets the same gradients."""
    coordinates = make(build_model, "gpt2", "svd-zero")
    batch = make_batch(*rollouts, pad_id=2)
    with torch.no_grad():
        found = per_sample_gradients(coordinates, batch).gradients
    assert_close(found, per_sample_gradients(coordinates, batch).gradients, 1e-12, "no_grad changes the result")


def test_bf16_model_reduces_in_float32(build_model, rollouts):
    """bf16 forward and backward, float32 reductions: the direction agrees with the float32 copy of the same weights."""
    batch = make_batch(*rollouts, pad_id=2)
    half = make(build_model, "qwen3", "svd-zero", torch.bfloat16)
    model = build_model("qwen3", torch.bfloat16).float()
    full = attach(model, basis="svd", model_id="tiny", cache_dir=None)
    found, expected = (per_sample_gradients(c, batch).gradients for c in (half, full))
    for module in found:
        assert found[module].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(found[module], expected[module], dim=1)
        assert cosine.min() > 0.95, f"{module}: {cosine}"


def test_wrong_arguments(build_model, rollouts):
    """Weights of another shape and an empty micro-batch are named."""
    coordinates = make(build_model, "qwen3", "svd-zero")
    batch = make_batch(*rollouts, pad_id=2)
    with pytest.raises(InputError, match="token_weights"):
        per_sample_gradients(coordinates, batch, token_weights=torch.ones(5, 3))
    with pytest.raises(InputError, match="micro_batch"):
        per_sample_gradients(coordinates, batch, micro_batch=0)
