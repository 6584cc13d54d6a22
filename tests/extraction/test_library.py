"""Pair gradients through the engine: how many passes, and what they hold."""

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
from safetensors.torch import load_file, save_file
from torch import nn

import probe
from extraction.library import DirectionLibrary, check_pairs, pair_batch
from extraction.pairs import builtin_pairs, write_pairs
from extraction.settings import ExtractionSettings
from replay_pools.base.errors import InputError
from replay_pools.policy.load import ORGANISM_WEIGHTS, load_policy
from replay_pools.rollout import runs_of


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The organism in the SVD basis, and six pairs."""
    policy = load_policy("organism")
    frames = framed(policy.model, basis="svd", model_id="organism", cache_dir=None)
    return policy, frames, builtin_pairs("run_tests")[:6]


def measured(policy, frames, pairs, **settings):
    """The gradients of pairs, without a cache."""
    return DirectionLibrary(policy, frames, ExtractionSettings(**settings), cache_dir=None).measured(pairs, "here")


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
    with pytest.raises(InputError, match="different tokens"):
        check_pairs(policy, [replace(pairs[0], hack=turns, clean=spans)], k=1)


def test_unit_sides_are_the_mean_sides_at_norm_one(adapted):
    """g / norm(g) over all modules, whatever the loss weighs a completion by; computed here from the mean sides."""
    policy, frames, pairs = adapted
    mean, unit = (measured(policy, frames, pairs, sides=sides) for sides in ("mean", "unit"))
    for side in ("hack", "clean"):
        gradients = getattr(mean, side)
        norms = torch.stack([g.double().square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        assert norms.max() / norms.min() > 1.5, "the two kinds would be alike"
        for module, g in gradients.items():
            expected = g.double() / norms[:, None]
            torch.testing.assert_close(getattr(unit, side)[module].double(), expected, rtol=1e-5, atol=1e-9)


def edited(folder: Path, **changes: dict[str, Any]) -> str:
    """The organism with changes of its JSON files, {stem: {key: value}}."""
    shutil.copytree(ORGANISM_WEIGHTS, folder, ignore=shutil.ignore_patterns("teacher"))
    for stem, values in changes.items():
        path = folder / f"{stem}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return str(folder)


CHANGES: dict[str, dict[str, Any]] = {
    "rope": {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}},
    "norm": {"config": {"rms_norm_eps": 0.01}},
    "token ids": {"tokenizer": {"normalizer": {"type": "Lowercase"}}},  # the vocabulary stays
    "embeddings": {},
}


def test_what_the_key_of_cached_gradients_sees(tmp_path, monkeypatch):
    """Everything that computes: each file of the model, weights without coordinates, versions; not where it lies."""
    write_pairs(tmp_path / "pairs.jsonl", builtin_pairs("run_tests")[:2])
    settings = ExtractionSettings(pairs=str(tmp_path / "pairs.jsonl"))

    def gradient(name: str, num_cached: int) -> torch.Tensor:
        policy = load_policy(name)
        frames = framed(policy.model, "lora", model_id=name, rank=2, targets=["attention"])
        pairs = DirectionLibrary(policy, frames, settings, cache_dir=tmp_path).pair_gradients
        assert len([*(tmp_path / "pair_gradients").iterdir()]) == num_cached, name
        return next(iter(pairs.hack.values()))

    before = gradient("organism", 1)
    assert torch.equal(gradient(edited(tmp_path / "elsewhere"), 1), before)
    for number, (change, files) in enumerate(CHANGES.items(), 2):
        name = edited(tmp_path / change, **files)
        if change == "embeddings":
            weights = load_file(tmp_path / change / "model.safetensors")
            weights["model.embed_tokens.weight"] *= 1.5
            save_file(weights, tmp_path / change / "model.safetensors", metadata={"format": "pt"})
        assert not torch.allclose(gradient(name, number), before, rtol=1e-2), change
    monkeypatch.setattr("transformers.__version__", "5.0.0")
    assert torch.equal(gradient("organism", len(CHANGES) + 2), before)


@pytest.mark.slow
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
