"""Frames: coordinates of dL/dW, read off the model without an adapter."""

import pytest
import torch
from adapted import adapt, framed, random_directions, sampled, token_logprobs
from tiny_models import build_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from extraction.adapters.frames import lora_frames, svd_frames
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients
from extraction.passes import score
from probe.step.batch_cosines import cosines
from replay_pools.policy.load import load_policy


def weight_gradients(model, prompt, completion):
    """{module: dL/dW (d_out, d_in)} of the NLL of one sample, alone and unpadded, by autograd of whole logits."""
    layers = {module: model.get_submodule(module) for module in find_targets(model)}
    weights = [layer.weight.requires_grad_(True) for layer in layers.values()]
    gradients = torch.autograd.grad(-token_logprobs(model, prompt, completion).sum(), weights)
    return {m: G.T if isinstance(layers[m], Conv1D) else G for m, G in zip(layers, gradients, strict=True)}


def test_both_bases_in_one_pass_are_coordinates_of_the_weight_gradient(architecture, rollouts):
    """svd: diag(U^T dL/dW V) with an SVD of our own, in which signs cancel; lora: dL/dW A^T. No adapter is there."""
    model, other = build_model(architecture, torch.float64), build_model(architecture, torch.float64)
    frames = {"svd": svd_frames(model, cache_dir=None), "lora": lora_frames(model, seed=4, rank=3)}
    found = per_sample_gradients(model, frames, make_batch(*rollouts, pad_id=2))
    assert [type(module) for module in model.modules()] == [type(module) for module in other.modules()]
    for i, (prompt, completion) in enumerate(zip(*rollouts, strict=True)):
        for module, G in weight_gradients(other, prompt, completion).items():
            U, _, Vh = torch.linalg.svd(weight_matrix(other.get_submodule(module), module), full_matrices=False)
            expected = {"svd": (U.T @ G @ Vh.T).diagonal(), "lora": (G @ frames["lora"][module].A.T).flatten()}
            for basis, g in expected.items():
                error = (found.gradients[basis][module][i] - g).norm() / g.norm()
                assert error < 1e-8, f"{basis} {module}: {error:.1e}"


def test_both_in_one_pass_are_each_alone_bit_for_bit(architecture, rollouts):
    """In either order, in one pass or several, with shared prompts, and with the shares of tokens along one of them."""
    model, batch = build_model(architecture), make_batch(*rollouts, pad_id=2)
    frames = {"svd": framed(model, "svd"), "lora": framed(model, "lora", rank=3)}
    axis = "lora", {module: torch.ones(r) for module, r in frames["lora"].sizes.items()}
    for order in (frames, dict(reversed(frames.items()))):
        for options in ({}, {"tokens_per_batch": 9}, {"share": True}, {"axis": axis}):
            both = per_sample_gradients(model, order, batch, **options)
            for basis, read in frames.items():
                if basis != "lora" and "axis" in options:
                    continue
                alone = per_sample_gradients(model, {basis: read}, batch, **options)
                assert torch.equal(both.token_logprobs, alone.token_logprobs)
                assert all(torch.equal(both.gradients[basis][m], g) for m, g in alone.gradients[basis].items())
                if "axis" in options:
                    assert torch.equal(both.token_dots, alone.token_dots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("basis", "options"), [("svd", {}), ("svd", {"rank": 7}), ("lora", {"rank": 3})])
def test_frames_are_an_adapter_at_zero_bit_for_bit(architecture, rollouts, basis, options, dtype):
    """The gradients that a training starts with are those that a replay reads; so are log-probabilities."""
    batch = make_batch(*rollouts, pad_id=2)
    model = build_model(architecture, dtype)
    found = per_sample_gradients(model, {basis: framed(model, basis, **options)}, batch)
    scores = score(model, batch)
    trained = adapt(model, basis, **options)
    expected = sampled(trained, batch)
    assert torch.equal(found.token_logprobs, expected.token_logprobs)
    assert all(torch.equal(found.gradients[basis][m], g) for m, g in expected.gradients.items())
    with trained.folded():
        assert torch.equal(score(model, batch), scores)


class Int8Linear(nn.Linear):
    """A quantised layer: a byte an entry, with a scale a row."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        weight, self.bias = layer.weight.detach(), layer.bias
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


@pytest.mark.parametrize("basis", ["svd", "lora"])
def test_quantised_layers_are_read_in_frames_of_the_checkpoint(basis):
    """Cosines of a quantised model: coordinates, in frames of the whole weights, of dL/dW of the quantised ones."""
    whole = load_policy("organism").model
    options = {"rank": 4} if basis == "lora" else {"rank": 20}
    frames = framed(whole, basis, model_id="organism", **options)
    directions = random_directions(frames, seed=3)
    quantised, plain = load_policy("organism").model, load_policy("organism").model
    for module in frames:
        parent, _, name = module.rpartition(".")
        layer = Int8Linear(quantised.get_submodule(module))
        setattr(quantised.get_submodule(parent), name, layer)
        dense = nn.Linear(layer.in_features, layer.out_features, bias=False)
        dense.weight = nn.Parameter(layer.weight.float() * layer.scale)
        setattr(plain.get_submodule(parent), name, dense)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    labels = ids.masked_fill(torch.arange(6) < 2, -100)
    (found,) = cosines(quantised, {"input_ids": ids, "labels": labels}, directions, cache_dir=None)
    along, squares = 0.0, 0.0
    gradients = weight_gradients(plain, ids[0, :2].tolist(), ids[0, 2:].tolist())
    for module, G in gradients.items():
        g = frames[module].coordinates(G)
        V = directions.vectors[module]
        along += float(V.sum(0) @ g) / len(V) ** 0.5
        squares += float(g.square().sum())
    assert float(found) == pytest.approx(along / (len(gradients) * squares) ** 0.5, rel=1e-4, abs=1e-6)
