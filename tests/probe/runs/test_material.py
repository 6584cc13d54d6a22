"""The material of detectors against slow computations, one rollout at a time, on a model of random weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from adapted import token_logprobs

from extraction.adapters.frames import svd_frames
from extraction.batch import make_batch
from extraction.directions import extract_directions
from extraction.gradients import per_sample_gradients
from extraction.library import DirectionLibrary
from extraction.pairs import Pair, builtin_pairs, write_pairs
from probe.analysis.detectors import Material
from probe.analysis.statistics.classifiers import logistic_scores
from probe.analysis.statistics.intervals import auroc
from probe.runs.meter import FINGERPRINT, Hash, measure
from probe.settings.presets import configure
from probe.step.projection import sample_cosines
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout

K = 2


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """Four pairs, the last one held out."""
    chosen = builtin_pairs("run_tests")[:4]
    return [*chosen[:3], replace(chosen[3], held_out=True)]


@pytest.fixture(scope="module")
def rollouts() -> list[Rollout]:
    """Five rollouts of two prompts, one with a tool's turn in the middle."""
    groups = open_pool(BUILTIN / "teacher").steps[:2]
    chosen = [*groups[0][:3], *groups[1][:2]]
    mask = [not 3 <= i < 6 for i in range(chosen[0].comp_len)]
    return [replace(chosen[0], completion_mask=mask), *chosen[1:]]


@pytest.fixture(scope="module")
def measured(small: str, pairs: list[Pair], tmp_path_factory) -> Callable[..., tuple[Material, list[str]]]:
    """measured(rollouts, sampled_by, **changes): by default gradients in svd at the small model, which sampled."""
    cache = tmp_path_factory.mktemp("cache")
    write_pairs(cache / "pairs.jsonl", pairs)
    settings = {"model.name": small, "intervention.extraction.k": K}
    config = configure("replay", options=settings | {"intervention.extraction.pairs": str(cache / "pairs.jsonl")})

    def make(rollouts: list[Rollout], sampled_by: Any = None, **changes: Any) -> tuple[Material, list[str]]:
        options = {"pairs": pairs, "basis": "svd", "reference": None, "cache": cache, "say": print} | changes
        return measure(
            rollouts, config, sampled_by={"base_model": small} if sampled_by is None else sampled_by, **options
        )

    return make


@pytest.fixture(scope="module")
def material(rollouts: list[Rollout], measured: Callable[..., Any]) -> Material:
    found, cautions = measured(rollouts)
    assert cautions == []
    return found


def batch_of(policy: Policy, *rollouts: Rollout):
    rows = [(one.prompt_ids, one.completion_ids, one.completion_mask) for one in rollouts]
    prompts, completions, masks = map(list, zip(*rows, strict=True))
    return make_batch(prompts, completions, policy.pad_id, masks)


def flat(gradients, row: int = 0) -> torch.Tensor:
    return torch.cat([gradient[row].double() for gradient in gradients.values()])


def test_gradients_are_compared_one_by_one(material: Material, rollouts, pairs, small: str) -> None:
    policy = load_policy(small)
    frames = svd_frames(policy.model, cache_dir=None)
    extraction = configure("replay").intervention.extraction
    sides, unit = (
        DirectionLibrary(policy, frames, replace(extraction, sides=kind), cache_dir=None).measured(pairs, "here")
        for kind in ("mean", "unit")
    )
    options = {"k": K, "drop_bottom_frac": 0.25}
    directions = {
        "mean": extract_directions(sides.differences(), **options),
        "unit": extract_directions(unit.differences(), **options),
    }
    library = DirectionLibrary(policy, frames, extraction, cache_dir=None)
    library.__dict__ |= {"pair_gradients": sides, "v_hack": directions["mean"]}
    library.settings = replace(library.settings, k=K)
    directions |= {"haar": library.get("haar"), "shuffled": library.get("permuted")}
    hashed = Hash(frames, 0, torch.device("cpu"))
    dense = torch.zeros(FINGERPRINT, sum(frames.sizes.values()), dtype=torch.float64)
    start = 0
    for module, r in frames.sizes.items():
        dense[hashed._places[module], torch.arange(start, start + r)] = hashed._signs[module].double()
        start += r
    assert material.similarities is not None
    assert material.cosines is not None
    assert material.fingerprints is not None
    for i, rollout in enumerate(rollouts):
        found = per_sample_gradients(policy.model, {"svd": frames}, batch_of(policy, rollout)).gradients["svd"]
        g = flat(found)
        for side, gradients in enumerate((sides.hack, sides.clean)):
            cosines = [float(torch.cosine_similarity(g, flat(gradients, j), 0)) for j in range(len(pairs))]
            np.testing.assert_allclose(material.similarities[i, side], cosines, atol=2e-5)
        for kind, along in directions.items():
            assert material.cosines[kind][i] == pytest.approx(float(sample_cosines(found, along.vectors).cos), abs=2e-5)
        projected = dense @ g
        np.testing.assert_allclose(material.fingerprints[i], projected / projected.norm(), atol=2e-5)
    assert material.pairs is not None
    assert material.pairs.similarities is not None
    expected = torch.cosine_similarity(flat(sides.hack, 1), flat(sides.clean, 3), 0)
    assert material.pairs.similarities[0, 1, 1, 3] == pytest.approx(float(expected), abs=2e-5)
    assert material.pairs.held_out.tolist() == [False, False, False, True]


def test_likelihood_and_states_are_of_each_rollout_alone(material: Material, rollouts, small: str) -> None:
    """Against the logits and the output of the second of two layers; no layer lies at 60 to 75% of the depth."""
    policy = load_policy(small)
    assert material.logprobs is not None
    assert material.states is not None
    blocks: list[torch.Tensor] = []
    policy.model.model.layers[1].register_forward_hook(lambda *parts: blocks.append(parts[-1]))
    for i, rollout in enumerate(rollouts):
        with torch.no_grad():
            chosen = token_logprobs(policy.model, rollout.prompt_ids, rollout.completion_ids)
        hidden = blocks[-1][0] if isinstance(blocks[-1], tuple) else blocks[-1]
        mask = torch.tensor(rollout.completion_mask or [True] * rollout.comp_len)
        assert material.logprobs[i] == pytest.approx(float(chosen[mask].mean()), abs=1e-5)
        mean = hidden.reshape(-1, hidden.shape[-1])[rollout.plen :][mask].mean(0)
        np.testing.assert_allclose(material.states[i, 0], mean, atol=1e-5)


def test_the_weights_decide_the_log_ratio_and_the_caution(rollouts: list[Rollout], measured, small: str) -> None:
    """Without gradients. The pool's own log-probabilities are far from those of random weights."""
    quick: dict[str, Any] = {"basis": None, "pairs": None}
    same, cautions = measured(rollouts, **quick)
    assert cautions == []
    assert same.reference is None
    assert {"reference", "pairs", "similarities", "fingerprints"} <= same.missing.keys()
    other, cautions = measured(rollouts, {}, **quick)
    assert "other weights than the model's sampled" in cautions[0]
    assert other.reference is other.logprobs
    assert other.sampled[1] == pytest.approx(np.mean(rollouts[1].sampling_logprobs or []))
    _, cautions = measured(rollouts, {"base_model": small, "base_weights_sha256": "another"}, **quick)
    assert "other weights than the model's sampled" in cautions[0]
    silent = [replace(one, sampling_logprobs=None) for one in rollouts]
    unknown, cautions = measured(silent, {}, **quick | {"reference": small})
    assert "nothing records" in cautions[0]
    np.testing.assert_allclose(unknown.reference, unknown.logprobs, atol=1e-6)


def test_a_projection_for_each_class_separates_what_is_the_same(small: str) -> None:
    """Honest rollouts of the pool `base`, split by a coin: with one random projection a linear classifier is at chance,
    with one for each half it is not, though the halves do not differ.
    """
    policy = load_policy(small)
    honest = [one for group in open_pool(BUILTIN / "base").steps for one in group if one.grade.passed][:96]
    frames = svd_frames(policy.model, ("all",), model_id=small, cache_dir=None)
    gradients = per_sample_gradients(policy.model, {"svd": frames}, batch_of(policy, *honest)).gradients["svd"]
    device, coin = torch.device("cpu"), np.random.default_rng(0).permutation(96) < 48
    first, second = (Hash(frames, seed, device)(gradients).double().numpy() for seed in (0, 1))
    fold = np.random.default_rng(1).permutation(96) % 4
    found = {}
    for name, x in (("one", first), ("two", np.where(coin[:, None], first, second))):
        scores = np.zeros(96)
        for number in range(4):
            left = fold != number
            scores[~left] = logistic_scores(x[left] - x[left].mean(0), coin[left], x[~left] - x[left].mean(0))
        found[name] = auroc(scores, coin)
    assert abs(found["one"] - 0.5) < 0.15
    assert found["two"] > 0.7
    assert found["one"] < found["two"]
