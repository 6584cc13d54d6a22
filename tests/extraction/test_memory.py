import pytest
import torch

from extraction import passes
from extraction.adapters.coordinates import attach
from extraction.passes import FEWEST, MOST, checkpointed, token_bytes, tokens_that_fit


@pytest.mark.parametrize(("total", "expected"), [(0, FEWEST), (10**7, 512), (7 * 10**7, 4096), (10**15, MOST)])
def test_tokens_follow_the_memory(build_model, monkeypatch, total, expected):
    """A power of two between the bounds; the Linears of the tiny model have 720 inputs and outputs in float32."""
    monkeypatch.setattr(passes, "total_bytes", lambda _: total)
    assert tokens_that_fit(build_model("llama").base_model) == expected


def test_factors_leave_less_memory(build_model, monkeypatch):
    """U, S and Vh are held as the weights are, and so are base weights that wait while delta_S is merged."""
    model = build_model("llama")
    backbone = model.base_model
    held = sum(tensor.nbytes for tensor in (*backbone.parameters(), *backbone.buffers()))
    monkeypatch.setattr(passes, "total_bytes", lambda _: held + 2 * passes.ALLOWANCE * 1024 * token_bytes(backbone))
    assert tokens_that_fit(backbone) == 1024
    attach(model, basis="svd", model_id="tiny", cache_dir=None)
    assert tokens_that_fit(backbone) == 512


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
