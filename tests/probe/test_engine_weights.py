"""The token weights of probe.ratio and probe.kl through the real per-sample-gradient engine, in float64."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from extraction.adapters import attach
from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from extraction.loss import loss_weights
from probe.kl import entropy_weights, kl_terms
from probe.ratio import surrogate

BETA, ENTROPY_COEF, EPSILON = 0.3, 0.05, 0.2
PROMPTS = [[5, 6, 7], [8, 9], [4, 4, 4, 4]]
COMPLETIONS = [[10, 11, 12, 13], [14, 15], [16, 17, 18]]


@pytest.fixture(scope="module")
def moved():
    """A tiny Qwen3 with delta_S away from 0, and its batch."""
    config = Qwen3Config(
        vocab_size=23,
        hidden_size=12,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).double().eval()
        coordinates = attach(model, basis="svd", model_id="tiny", cache_dir=None)
        coordinates.load_values({m: 0.3 * torch.randn_like(v) for m, v in coordinates.values().items()})
    return coordinates, make_batch(PROMPTS, COMPLETIONS, pad_id=0)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_whole_loss_equals_autograd_sample_by_sample(moved, level):
    """Clipped surrogate + beta k3, as one ordinary loss a sample, against the engine with their token weights.

    The reference scores and differentiates with full logits; the entropy bonus, which has no such loss, is added as
    its definition, a policy gradient whose advantage is the surprisal.
    """
    coordinates, batch = moved
    torch.manual_seed(1)
    A, shape = torch.tensor([1.5, -0.7, 0.9]).double(), batch.ids.shape
    current = per_sample_gradients(coordinates, batch).token_logprobs
    old, ref = (current + 0.4 * torch.randn(shape, dtype=torch.float64) for _ in range(2))
    w = loss_weights(torch.tensor([4, 2, 3]).double(), loss_type="grpo")
    clipped = surrogate(current, old, batch.completion_mask, A, level=level, epsilon=EPSILON)
    weights = clipped.weights + BETA * kl_terms(current, ref, batch.completion_mask, estimator="k3").weights
    weights = w[:, None] * (weights + ENTROPY_COEF * entropy_weights(current, batch.completion_mask))
    found = per_sample_gradients(coordinates, batch, token_weights=weights).gradients
    assert clipped.frac_clip_low + clipped.frac_clip_high > 0, "the example clips nothing"
    for sample, mask in enumerate(batch.completion_mask):
        logits = coordinates.model(batch.ids[[sample]], attention_mask=batch.attention_mask[[sample]]).logits[0]
        logp = logits[:-1].log_softmax(1).gather(1, batch.ids[sample, 1:, None])[:, 0][mask[1:]]
        log_ratio = logp - old[sample][mask]
        ratio = (log_ratio.mean().expand_as(logp) if level == "sequence" else log_ratio).exp()
        gain = torch.min(ratio * A[sample], ratio.clamp(1 - EPSILON, 1 + EPSILON) * A[sample])
        d = ref[sample][mask] - logp
        loss = -gain + BETA * (d.exp() - d - 1) - ENTROPY_COEF * (-logp.detach()) * logp
        parameters = [p for module in coordinates.sizes for p in coordinates.trainable(module)]
        wanted = torch.autograd.grad(w[sample] * loss.sum(), parameters)
        mine = torch.cat([found[module][sample] for module in coordinates.sizes])
        torch.testing.assert_close(mine, torch.cat([g.flatten() for g in wanted]), rtol=1e-8, atol=1e-10)
