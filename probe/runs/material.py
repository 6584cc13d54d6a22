"""Material of detectors (`probe.analysis.detectors`) for stored rollouts: measured in one pass, saved and loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extraction.adapters.frames import Frames
from extraction.pairs import Pair
from extraction.words import Basis
from probe.analysis.detectors import ARRAYS, GRADIENT_FIELDS, SAME_WEIGHTS, Material, PairMaterial, mean_logprobs
from probe.runs.assemble import configured_frames, configured_policy
from probe.runs.meter import Meter, mean_scores
from probe.settings.run import ReplayConfig
from probe.step.bases import Bases
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_tensors, write_tensors
from replay_pools.rollout import Rollout

OF_PAIRS = ("states", "similarities", "fingerprints")


def measure(
    rollouts: Sequence[Rollout],
    config: ReplayConfig,
    pairs: Sequence[Pair] | None,
    sampled_by: Mapping[str, Any],
    *,
    basis: Basis | None,
    reference: str | None,
    cache: Path,
    say: Callable[[str], None],
) -> tuple[Material, list[str]]:
    """Return the material of the rollouts, and cautions about the weights.

    Args:
        config: its model, loss normaliser, settings of the extraction, and seed matter.
        sampled_by: the policy that sampled, as in a pool's manifest; empty: not recorded.
        basis: of the gradients; None: no gradients.
        reference: name of the reference model; None: the model without its adapter.

    Raises:
        InputError: no such model; a fault of the pairs; weights or ids that cannot be scored.
    """
    model, before = config.model, None
    frames: dict[Basis, Frames] = {}
    if reference is not None or model.adapter is not None:
        other = replace(model, name=reference or model.name, adapter=None)
        before = mean_scores(configured_policy(other, cache), rollouts)
    policy = configured_policy(model, cache)
    if basis is not None:
        frames = {basis: configured_frames(policy, basis, model, cache)}
        if (adapted := frames[basis].adapted) is not None and adapted.caution:
            say(adapted.caution)
    bases = Bases(model=policy.model, frames=frames, tokens_per_batch=config.intervention.extraction.tokens_per_batch)
    material = Meter(policy, bases, pairs, config, cache)(rollouts)
    logprobs, recorded, missing = material.logprobs, mean_logprobs(rollouts), dict(material.missing)
    assert logprobs is not None
    if pairs is None:
        missing |= dict.fromkeys(("pairs", "similarities", "cosines"), "needs pairs (--pairs)")
    if basis is None:
        missing |= dict.fromkeys(GRADIENT_FIELDS, "needs gradients (run without --no-gradients)")
    gap = None if recorded is None else float(np.abs(recorded - logprobs).mean())
    is_sampler = None if gap is None else gap < SAME_WEIGHTS
    if sampled_by.get("base_model") is not None:
        weights = sampled_by.get("base_weights_sha256") or policy.base_weights_sha
        named = sampled_by["base_model"], sampled_by.get("adapter"), weights
        is_sampler = named == (model.name, model.adapter, policy.base_weights_sha)
    sampled = recorded if is_sampler is False else logprobs
    if sampled is None:
        missing["sampled"] = "the log has no log-probabilities, and other weights sampled"
    if before is None and is_sampler is False and recorded is not None:
        before = logprobs
    # Recorded values differ from scores by the sampler's rounding.
    off = None if sampled is None or sampled is logprobs or before is None else np.abs(sampled - before).mean()
    if off is not None and off < SAME_WEIGHTS:
        before, missing["reference"] = None, "the weights that sampled are the reference weights"
    elif before is None:
        missing["reference"] = "needs the weights before the training (--reference MODEL)"
    material, cautions = replace(material, sampled=sampled, reference=before, missing=missing), []
    better = "gradients and hidden states tell more at the weights that sampled (--model, --adapter)"
    if is_sampler is False:
        off = "" if gap is None else f": recorded log-probabilities are {gap:.2g} nats a token off"
        cautions.append(f"other weights than the model's sampled these rollouts{off}; {better}")
    elif is_sampler is None:
        cautions.append(f"nothing records that the model's weights sampled these rollouts; {better}")
    return material, cautions


def save_material(path: Path, material: Material, cautions: Sequence[str], key: str) -> None:
    """Write everything but the rollouts and their labels, atomically; `key` identifies the inputs."""
    arrays, pairs = {name: getattr(material, name) for name in ARRAYS}, material.pairs
    arrays |= {f"cosines/{kind}": values for kind, values in (material.cosines or {}).items()}
    arrays |= {f"pairs/{name}": getattr(pairs, name, None) for name in OF_PAIRS}
    header = {"missing": dict(material.missing), "cautions": [*cautions], "key": key, "seed": material.seed}
    if pairs is not None:
        header |= {"kinds": [*pairs.kinds], "held_out": pairs.held_out.tolist()}
    write_tensors(path, {name: torch.tensor(values) for name, values in arrays.items() if values is not None}, header)


def load_material(path: Path, rollouts: Sequence[Rollout], key: str) -> tuple[Material, list[str]]:
    """Read a file of `save_material` for the same rollouts; return the material and the cautions.

    Raises:
        InputError: a missing or damaged file, or one of another key.
    """
    tensors, header = read_tensors(path, "np", fix="delete it: it is measured again")
    if header["key"] != key:
        fix = "choose another --name, or delete this folder"
        raise InputError(path.parent, expected="results of the same inputs", found="others", fix=fix)
    pairs = None
    arrays: dict[str, Any] = {name: tensors.get(name) for name in ARRAYS}
    if "kinds" in header:
        of_pairs = {name: tensors.get(f"pairs/{name}") for name in OF_PAIRS}
        pairs = PairMaterial(kinds=header["kinds"], held_out=np.array(header["held_out"], dtype=bool), **of_pairs)
    cosines = {name.removeprefix("cosines/"): tensors[name] for name in tensors if name.startswith("cosines/")}
    arrays |= {"cosines": cosines or None}
    material = Material(rollouts=rollouts, seed=header["seed"], pairs=pairs, missing=header["missing"], **arrays)
    return material, header["cautions"]
