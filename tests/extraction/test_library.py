"""Pair gradients through the engine: how many passes, and what they hold."""

import copy

import pytest
import torch

from extraction.adapters.coordinates import attach
from extraction.library import DirectionLibrary, measure_pair_gradients
from extraction.pairs import builtin_pairs, write_pairs
from extraction.words import ExtractionSettings
from replay_pools.policy.load import load_policy


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The organism in the SVD basis, and six pairs."""
    policy = load_policy("organism")
    coordinates = attach(policy.model, basis="svd", model_id="organism", cache_dir=None)
    return policy, coordinates, builtin_pairs("run_tests")[:6]


def test_pairs_take_as_few_passes_as_their_tokens(adapted):
    """ceil(tokens / budget) calls of the model for both completions of all pairs, and the same gradients each time."""
    policy, coordinates, pairs = adapted
    prompts = [policy.render(pair.messages)[1] for pair in pairs]
    completions = [[policy.completion_ids(text) for text in (pair.hack, pair.clean)] for pair in pairs]
    total = sum(2 * len(p) + len(h) + len(c) for p, (h, c) in zip(prompts, completions))
    expected = measure_pair_gradients(policy, coordinates, pairs)
    calls = []
    handle = policy.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    for passes in (1, 3):
        calls.clear()
        budget = int(1.1 * total / passes)
        found = measure_pair_gradients(policy, coordinates, pairs, tokens_per_batch=budget)
        assert len(calls) == passes, f"{len(calls)} passes for {total} tokens, {budget} at a time"
        for module in coordinates.sizes:
            torch.testing.assert_close(found.hack[module], expected.hack[module], rtol=1e-3, atol=1e-6)
            torch.testing.assert_close(found.clean[module], expected.clean[module], rtol=1e-3, atol=1e-6)
    handle.remove()


def test_unit_sides_are_the_mean_sides_at_norm_one(adapted):
    """g / norm(g) over all modules, whatever the loss weighs a completion by; computed here from the mean sides."""
    policy, coordinates, pairs = adapted
    mean, unit = (measure_pair_gradients(policy, coordinates, pairs, sides=sides) for sides in ("mean", "unit"))
    for side in ("hack", "clean"):
        gradients = getattr(mean, side)
        norms = torch.stack([g.double().square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        assert norms.max() / norms.min() > 1.5, "the two kinds would be alike"
        for module, g in gradients.items():
            expected = g.double() / norms[:, None]
            torch.testing.assert_close(getattr(unit, side)[module].double(), expected, rtol=1e-5, atol=1e-9)
    assert (mean.metadata["sides"], unit.metadata["sides"]) == ("mean", "unit")


def test_policies_that_differ_in_other_weights_alone_share_no_cached_gradients(tmp_path):
    """Attention is adapted and the same in both; gradients flow through the embeddings, which are not."""
    policy = load_policy("organism")
    model = copy.deepcopy(policy.model)  # loaded models share their memory
    model.get_input_embeddings().weight.data.mul_(1.5)
    model.save_pretrained(tmp_path / "other")
    policy.tokenizer.save_pretrained(tmp_path / "other")
    write_pairs(tmp_path / "pairs.jsonl", builtin_pairs("run_tests")[:2])
    libraries = []
    for name in ("organism", str(tmp_path / "other")):
        loaded = load_policy(name)
        coordinates = attach(loaded.model, basis="svd", model_id=name, cache_dir=tmp_path, targets=["attention"])
        settings = ExtractionSettings(pairs=str(tmp_path / "pairs.jsonl"))
        libraries.append(DirectionLibrary(loaded, coordinates, settings, cache_dir=str(tmp_path)))
    fingerprints = [library.coordinates.fingerprint()["weights_sha256"] for library in libraries]
    gradients = [library.pair_gradients for library in libraries]
    assert fingerprints[0] == fingerprints[1]
    assert any(not torch.equal(gradients[0].hack[module], gradients[1].hack[module]) for module in gradients[0].hack)
