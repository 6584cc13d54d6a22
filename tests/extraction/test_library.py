"""Pair gradients through the engine: how many passes, and what they hold."""

import copy

import pytest
import torch
from adapted import framed

from extraction.library import DirectionLibrary, measure_pair_gradients
from extraction.pairs import builtin_pairs, write_pairs
from extraction.words import ExtractionSettings
from replay_pools.policy.load import load_policy


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The organism in the SVD basis, and six pairs."""
    policy = load_policy("organism")
    frames = framed(policy.model, basis="svd", model_id="organism", cache_dir=None)
    return policy, frames, builtin_pairs("run_tests")[:6]


def test_pairs_take_as_few_passes_as_their_tokens(adapted):
    """ceil(tokens / budget) calls of the model for both completions of all pairs, and the same gradients each time."""
    policy, frames, pairs = adapted
    prompts = [policy.render(pair.messages)[1] for pair in pairs]
    completions = [[policy.completion_ids(text) for text in (pair.hack, pair.clean)] for pair in pairs]
    total = sum(2 * len(p) + len(h) + len(c) for p, (h, c) in zip(prompts, completions))
    expected = measure_pair_gradients(policy, frames, pairs)
    calls = []
    handle = policy.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    for passes in (1, 3):
        calls.clear()
        budget = int(1.1 * total / passes)
        found = measure_pair_gradients(policy, frames, pairs, tokens_per_batch=budget)
        assert len(calls) == passes, f"{len(calls)} passes for {total} tokens, {budget} at a time"
        for module in frames.sizes:
            torch.testing.assert_close(found.hack[module], expected.hack[module], rtol=1e-3, atol=1e-6)
            torch.testing.assert_close(found.clean[module], expected.clean[module], rtol=1e-3, atol=1e-6)
    handle.remove()


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
        frames = framed(loaded.model, basis="svd", model_id=name, cache_dir=tmp_path, targets=["attention"])
        settings = ExtractionSettings(pairs=str(tmp_path / "pairs.jsonl"))
        libraries.append(DirectionLibrary(loaded, frames, settings, cache_dir=str(tmp_path)))
    fingerprints = [library.frames.fingerprint["weights_sha256"] for library in libraries]
    gradients = [library.pair_gradients for library in libraries]
    assert fingerprints[0] == fingerprints[1]
    assert any(not torch.equal(gradients[0].hack[module], gradients[1].hack[module]) for module in gradients[0].hack)
