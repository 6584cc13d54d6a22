"""The split of per-sample gradients over tokens, against one autograd call a token."""

import pytest
import torch
from adapted import sampled, token_logprobs

from extraction.batch import make_batch


def token_by_token(coordinates, prompt, completion, weights, direction):
    """(tokens,): the adapter's own autograd at one position at a time, from the x and dL/dy of an ordinary backward."""
    held = {}

    def watch(module):
        def hook(_layer, inputs, output):
            output.register_hook(lambda gradient: held.__setitem__(module, (inputs[0].detach(), gradient.detach())))

        return hook

    handles = [layer.register_forward_hook(watch(module)) for module, layer in coordinates.layers.items()]
    (-(torch.tensor(weights) * token_logprobs(coordinates.model, prompt, completion)).sum()).backward()
    for handle in handles:
        handle.remove()
    coordinates.model.zero_grad()
    dots = torch.zeros(len(prompt) + len(completion), dtype=torch.float64)
    for module, (x, gradient) in ((module, held[module]) for module in direction):
        for t in range(len(dots)):
            y = coordinates.layers[module](x[:, t : t + 1])
            parts = torch.autograd.grad(y, coordinates.trainable(module), gradient[:, t : t + 1])
            dots[t] += torch.cat([part.flatten() for part in parts]) @ direction[module]
    return dots


@pytest.mark.parametrize(
    ("architecture", "case"), [("qwen3", "svd-zero"), ("qwen3", "lora-moved"), ("gpt2", "svd-moved")]
)
def test_token_dots_equal_one_autograd_call_a_token(make_coordinates, rollouts, architecture, case):
    """Ragged samples, uneven token weights, both bases at 0 and elsewhere; packed and split into passes.

    A module without a direction has no share, and asking changes no gradient, bit for bit.
    """
    coordinates, generator = make_coordinates(architecture, case), torch.Generator().manual_seed(5)
    prompts, completions = (part[:3] for part in rollouts)
    batch = make_batch(prompts, completions, pad_id=2)
    sizes = [*coordinates.sizes.items()][1:]
    direction = {m: torch.randn(size, generator=generator, dtype=torch.float64) for m, size in sizes}
    rows = [torch.linspace(-1, 2, len(completion)).tolist() for completion in completions]
    weights = torch.zeros(batch.ids.shape)
    weights[batch.completion_mask] = torch.tensor([weight for row in rows for weight in row])
    for budget in (None, 12):
        plain = sampled(coordinates, batch, token_weights=weights, tokens_per_batch=budget).gradients
        found = sampled(coordinates, batch, token_weights=weights, direction=direction, tokens_per_batch=budget)
        assert found.token_dots is not None
        for i, (prompt, completion, row) in enumerate(zip(prompts, completions, rows)):
            expected = token_by_token(coordinates, prompt, completion, row, direction)
            own = found.token_dots[i, : len(expected)]
            torch.testing.assert_close(own, expected, atol=1e-9, rtol=1e-9, msg="a share lies at another position")
            assert not found.token_dots[i, len(expected) :].any(), "padding has a share"
        assert all(torch.equal(plain[m], g) for m, g in found.gradients.items())
