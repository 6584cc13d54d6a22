"""Pair gradients through the engine: how many passes, and what they hold."""

import copy
import itertools
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import framed
from torch import nn

import probe
from extraction.library import DirectionLibrary, measure_pair_gradients, pair_batch
from extraction.pairs import builtin_pairs, write_pairs
from extraction.words import ExtractionSettings, Normaliser
from replay_pools.base.errors import InputError
from replay_pools.policy.load import ORGANISM_WEIGHTS, load_policy
from replay_pools.rollout import runs_of


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
    expected = measure_pair_gradients(policy, frames, pairs, Normaliser())
    calls = []
    handle = policy.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    for passes in (1, 3):
        calls.clear()
        budget = int(1.1 * total / passes)
        found = measure_pair_gradients(policy, frames, pairs, Normaliser(), tokens_per_batch=budget)
        assert len(calls) == passes, f"{len(calls)} passes for {total} tokens, {budget} at a time"
        for module in frames.sizes:
            torch.testing.assert_close(found.hack[module], expected.hack[module], rtol=1e-3, atol=1e-6)
            torch.testing.assert_close(found.clean[module], expected.clean[module], rtol=1e-3, atol=1e-6)
    handle.remove()


def test_a_conversation_has_loss_where_the_policy_wrote(adapted):
    """Rendered messages and the ids of a stored rollout make the same sample."""
    policy, _, pairs = adapted
    turns = [{"role": role, "content": text} for role, text in (("assistant", "x"), ("tool", "no"), ("assistant", "y"))]
    rendered = policy.render_turns(pairs[0].messages, turns)
    spans = [
        {"role": "other" if i % 2 else "assistant", "content": "", "ids": rendered.ids[start:stop]}
        for i, (start, stop) in enumerate(runs_of(rendered.mask))
    ]
    batch = pair_batch(policy, [replace(pairs[0], hack=turns, clean=spans), replace(pairs[0], clean=turns)])
    for place in (0, 2, 3):  # the hack of the first pair, and both clean sides
        assert batch.ids[place][batch.attention_mask[place]].tolist() == rendered.prompt_ids + rendered.ids
        scored = batch.ids[place][batch.completion_mask[place]].tolist()
        assert scored == [*itertools.compress(rendered.ids, rendered.mask)]
    with pytest.raises(InputError, match="end-of-turn token"):
        pair_batch(policy, [replace(pairs[0], hack=[{**turns[0], "content": "a<|im_end|>b"}, *turns[1:]])])


def test_unit_sides_are_the_mean_sides_at_norm_one(adapted):
    """g / norm(g) over all modules, whatever the loss weighs a completion by; computed here from the mean sides."""
    policy, frames, pairs = adapted
    mean, unit = (
        measure_pair_gradients(policy, frames, pairs, Normaliser(), sides=sides) for sides in ("mean", "unit")
    )
    for side in ("hack", "clean"):
        gradients = getattr(mean, side)
        norms = torch.stack([g.double().square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        assert norms.max() / norms.min() > 1.5, "the two kinds would be alike"
        for module, g in gradients.items():
            expected = g.double() / norms[:, None]
            torch.testing.assert_close(getattr(unit, side)[module].double(), expected, rtol=1e-5, atol=1e-9)


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


def edited(folder: Path, **changes: dict[str, Any]) -> str:
    """The organism with changes of its JSON files, {stem: {key: value}}."""
    shutil.copytree(ORGANISM_WEIGHTS, folder, ignore=shutil.ignore_patterns("teacher"))
    for stem, values in changes.items():
        path = folder / f"{stem}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return str(folder)


CHANGES = {
    "rope": {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}},
    "norm": {"config": {"rms_norm_eps": 0.01}},
    "token_ids": {"tokenizer": {"normalizer": {"type": "Lowercase"}}},  # the vocabulary stays
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_with_other_files_beside_its_weights_shares_no_cached_gradients(tmp_path, change):
    """Weights, vocabulary, template and pairs are the same; each file of the model makes an entry of its own."""
    write_pairs(tmp_path / "pairs.jsonl", builtin_pairs("run_tests")[:2])
    settings = ExtractionSettings(pairs=str(tmp_path / "pairs.jsonl"))
    gradients = []
    for name in (edited(tmp_path / "before"), edited(tmp_path / "after", **CHANGES[change]), str(tmp_path / "before")):
        policy = load_policy(name)
        frames = framed(policy.model, "lora", model_id=name, rank=2, targets=["attention"])
        gradients.append(DirectionLibrary(policy, frames, settings, cache_dir=tmp_path).pair_gradients)
    before, after, again = (next(iter(found.hack.values())) for found in gradients)
    assert not torch.allclose(before, after, rtol=1e-2)
    assert torch.equal(before, again)
    assert len([*(tmp_path / "pair_gradients").iterdir()]) == 2


def test_versions_kernels_and_names_in_the_key(tmp_path, monkeypatch):
    """What computes is in the key; where the model lies is not."""
    write_pairs(tmp_path / "pairs.jsonl", builtin_pairs("run_tests")[:2])
    settings = ExtractionSettings(pairs=str(tmp_path / "pairs.jsonl"))

    def num_cached(name: str) -> int:
        policy = load_policy(name)
        frames = framed(policy.model, "lora", model_id=name, rank=2, targets=["attention"])
        assert DirectionLibrary(policy, frames, settings, cache_dir=tmp_path).pair_gradients.hack
        return len([*(tmp_path / "pair_gradients").iterdir()])

    assert num_cached("organism") == num_cached(edited(tmp_path / "elsewhere")) == 1
    monkeypatch.setattr("transformers.__version__", "5.0.0")
    assert num_cached("organism") == 2


def test_a_model_given_in_memory_has_no_cache(tmp_path):
    """A hook between two extractions acts in the second; no gradients of pairs are kept."""
    policy, pairs = load_policy("organism"), tmp_path / "pairs.jsonl"
    write_pairs(pairs, builtin_pairs("run_tests")[:6])
    norms = []
    for factor in (1.0, 1.5):
        handle = policy.model.base_model.register_forward_hook(partial(scaled, factor))
        found = probe.extract(policy, pairs=pairs, k=1, basis="lora", out=tmp_path, say=lambda text: None)
        handle.remove()
        assert found.pairs is not None
        norms.append(sum(float(part.norm()) for part in found.pairs.hack.values()))
    assert norms[0] != pytest.approx(norms[1], rel=1e-2)
    assert not (tmp_path / "cache" / "pair_gradients").exists()


def scaled(factor: float, module: nn.Module, given: Any, output: Any) -> Any:
    """A hook."""
    output.last_hidden_state = output.last_hidden_state * factor
    return output
