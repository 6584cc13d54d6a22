import pytest
import torch

from extraction import passes
from extraction.passes import FEWEST, MOST, checkpointed, tokens_that_fit


@pytest.mark.parametrize(("total", "expected"), [(0, FEWEST), (10**7, 512), (7 * 10**7, 4096), (10**15, MOST)])
def test_tokens_follow_the_memory(build_model, monkeypatch, total, expected):
    """A power of two between the bounds; the Linears of the tiny model have 720 inputs and outputs in float32."""
    monkeypatch.setattr(passes, "total_bytes", lambda _: total)
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
