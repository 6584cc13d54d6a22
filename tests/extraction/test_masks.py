"""Completions with holes: every layout against the loss of transformers, whose labels are -100 in the holes."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from adapted import sampled, token_logprobs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY

from extraction.batch import make_batch
from extraction.passes import score

PROMPTS = ([5, 6, 7], [8])  # samples share them at random
completions = st.lists(st.tuples(st.integers(3, VOCABULARY - 1), st.booleans()), min_size=1, max_size=6)
samples = st.tuples(st.sampled_from(PROMPTS), completions.filter(lambda ids: any(is_scored for _, is_scored in ids)))


def reference(coordinates, ids, mask, weights):
    """Call transformers once a scored token: log-probabilities (T,), and {module: gradient} of the weighted sum."""
    logprobs, total = torch.zeros(len(ids), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for t in mask.nonzero().flatten().tolist():
        labels = torch.full_like(ids, -100).index_fill(0, torch.tensor(t), ids[t])[None]
        loss = coordinates.model(input_ids=ids[None], labels=labels).loss
        logprobs[t], total = -loss.detach(), total + weights[t] * loss
    parts = torch.autograd.grad(total, coordinates.parameters())
    return logprobs, {m: part.flatten() for m, part in zip(coordinates.sizes, parts, strict=True)}


def token_by_token(coordinates, ids, weights, direction):
    """(T,): the adapter's own autograd at one position at a time, from the x and dL/dy of an ordinary backward."""
    held, dots = {}, torch.zeros(len(ids), dtype=torch.float64)

    def hook(module, _layer, inputs, output):
        output.register_hook(lambda gradient: held.__setitem__(module, (inputs[0].detach(), gradient.detach())))

    with ExitStack() as hooks:
        for module in direction:
            hooks.enter_context(coordinates.layers[module].register_forward_hook(partial(hook, module)))
        first, *rest = ids.tolist()
        (-(weights[1:] * token_logprobs(coordinates.model, [first], rest)).sum()).backward()
    coordinates.model.zero_grad()
    for module, (x, gradient) in held.items():
        for t in range(len(ids)):
            y = coordinates.layers[module](x[:, t : t + 1])
            parts = torch.autograd.grad(y, coordinates.trainable(module), gradient[:, t : t + 1])
            dots[t] += torch.cat([part.flatten() for part in parts]) @ direction[module]
    return dots


@pytest.fixture(
    scope="module",
    params=[
        "gpt2 svd-moved",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("gpt2 lora-moved", "qwen3 svd7-moved")),
    ],
)
def coordinates(request, make_coordinates):
    return make_coordinates(*request.param.split())


@settings(deadline=None, max_examples=12, derandomize=True, phases=[Phase.generate])  # to shrink takes minutes
@given(
    drawn=st.lists(samples, min_size=1, max_size=4),
    layout=st.sampled_from(["packed", "shared", "padded"]),
    budget=st.sampled_from([None, 12]),
    seed=st.integers(0, 9),
)
def test_any_mask_in_any_layout_is_the_loss_of_transformers(coordinates, drawn, layout, budget, seed):
    """log p of every scored token, sum_t -w_t grad log p_t of every sample, and its split over tokens along u.

    The loss of transformers is in float32. Shared, the samples of a prompt come as their sum. A module without a
    direction has no share.
    """
    prompts = [prompt for prompt, _ in drawn]
    ids, masks = ([[part[i] for part in completion] for _, completion in drawn] for i in (0, 1))
    batch = make_batch(prompts, ids, 0, masks)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(batch.ids.shape, generator=generator, dtype=torch.float64)
    sizes = [*coordinates.sizes.items()][1:]
    direction = {m: torch.randn(r, generator=generator, dtype=torch.float64) for m, r in sizes}
    expected = [
        reference(coordinates, row[:length], mask[:length], row_weights)
        for row, mask, length, row_weights in zip(batch.ids, batch.completion_mask, batch.lengths, weights)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if layout == "padded":
            patch.setattr("extraction.passes.packs", lambda _: False)
        found = sampled(
            coordinates,
            batch,
            token_weights=weights,
            tokens_per_batch=budget,
            direction=None if layout == "shared" else direction,
            share=layout == "shared",
        )
        scores = score(coordinates.model, batch, tokens_per_batch=budget)
    for i, (wanted, _) in enumerate(expected):
        for logprobs in (found.token_logprobs[i], scores[i]):
            torch.testing.assert_close(logprobs[: len(wanted)], wanted, rtol=1e-6, atol=1e-6)
            assert not logprobs[len(wanted) :].any()
    for module, gradient in found.gradients.items():
        wanted = torch.stack([gradients[module] for _, gradients in expected])
        if layout == "shared":
            gradient, wanted = gradient.sum(0), wanted.sum(0)
        assert (gradient - wanted).norm() < 1e-6 * max(float(wanted.norm()), 1e-3), module
    for i, length in enumerate(batch.lengths if found.token_dots is not None else ()):
        own_weights = (weights * batch.completion_mask)[i, :length]
        expected_dots = token_by_token(coordinates, batch.ids[i, :length], own_weights, direction)
        torch.testing.assert_close(found.token_dots[i, :length], expected_dots, rtol=1e-9, atol=1e-9)
        assert not found.token_dots[i, length:].any(), "padding has a share"
