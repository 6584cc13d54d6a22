"""Material of detectors (`probe.analysis.detectors`) for stored rollouts: measured in one pass, saved and loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extraction.adapters.frames import Frames
from extraction.selection import selected_pairs
from extraction.words import Basis
from probe.analysis.detectors import GRADIENT_FIELDS, SAME_WEIGHTS, Material, PairMaterial, mean_logprobs
from probe.runs.assemble import configured_frames, configured_policy
from probe.runs.meter import Meter, mean_scores
from probe.settings.run import ReplayConfig
from probe.step.bases import Bases
from replay_pools.base.tensors import read_tensors, write_tensors
from replay_pools.rollout import Rollout

NO_PAIRS = "needs pairs (--pairs)"
NO_GRADIENTS = "needs gradients (run without --no-gradients)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to measure, at which weights."""

    config: ReplayConfig  # its model, loss normaliser, extraction with the pairs, and seed matter
    is_sampler: bool | None  # True: the model's weights sampled the rollouts; None: not recorded
    weights_sha256: str | None  # of the base that sampled; None: not recorded
    has_pairs: bool
    reference: str | None  # name of the reference model; None: the model without its adapter
    basis: Basis | None  # of the gradients; None: no gradients
    out: Path


def measure(rollouts: Sequence[Rollout], wanted: Wanted, say: Callable[[str], None]) -> tuple[Material, list[str]]:
    """Return the material of the rollouts, and cautions about the weights.

    Raises:
        InputError: no such model; a fault of the pairs; weights or ids that cannot be scored.
    """
    config, cache = wanted.config, wanted.out / "cache"
    model, reference = config.model, None
    frames: dict[Basis, Frames] = {}
    if wanted.reference is not None or model.adapter is not None:
        other = replace(model, name=wanted.reference or model.name, adapter=None)
        reference = mean_scores(configured_policy(other, cache), rollouts)
    policy = configured_policy(model, cache)
    if wanted.basis is not None:
        frames = {wanted.basis: configured_frames(policy, wanted.basis, model, cache)}
        if (adapted := frames[wanted.basis].adapted) is not None and adapted.caution:
            say(adapted.caution)
    bases = Bases(model=policy.model, frames=frames, tokens_per_batch=config.intervention.extraction.tokens_per_batch)
    pairs = selected_pairs(config.intervention.extraction) if wanted.has_pairs else None
    material = Meter(policy, bases, pairs, config, cache)(rollouts)
    logprobs, recorded, missing = material.logprobs, mean_logprobs(rollouts), dict(material.missing)
    assert logprobs is not None
    if not wanted.has_pairs:
        missing |= dict.fromkeys(("pairs", "similarities", "cosines"), NO_PAIRS)
    if wanted.basis is None:
        missing |= dict.fromkeys(GRADIENT_FIELDS, NO_GRADIENTS)
    gap = None if recorded is None else float(np.abs(recorded - logprobs).mean())
    is_sampler = wanted.is_sampler
    if is_sampler and wanted.weights_sha256 not in (None, policy.base_weights_sha):
        is_sampler = False
    if is_sampler is None and gap is not None:
        is_sampler = gap < SAME_WEIGHTS
    sampled = recorded if is_sampler is False else logprobs
    if sampled is None:
        missing["sampled"] = "the log has no log-probabilities, and other weights sampled"
    if reference is None and is_sampler is False and recorded is not None:
        reference = logprobs
    # Recorded values differ from scores by the sampler's rounding.
    off = None if sampled is None or sampled is logprobs or reference is None else np.abs(sampled - reference).mean()
    if off is not None and off < SAME_WEIGHTS:
        reference, missing["reference"] = None, "the weights that sampled are the reference weights"
    elif reference is None:
        missing["reference"] = "needs the weights before the training (--reference MODEL)"
    return replace(material, sampled=sampled, reference=reference, missing=missing), _cautions(is_sampler, gap)


def _cautions(is_sampler: bool | None, gap: float | None) -> list[str]:
    """Return a sentence if the weights did not sample the rollouts, or may not have."""
    better = "gradients and hidden states tell more at the weights that sampled (--model, --adapter)"
    if is_sampler is False:
        off = "" if gap is None else f": recorded log-probabilities are {gap:.2g} nats a token off"
        return [f"other weights than the model's sampled these rollouts{off}; {better}"]
    if is_sampler is None:
        return [f"nothing records that the model's weights sampled these rollouts; {better}"]
    return []


ARRAYS = ("logprobs", "sampled", "reference", "states", "similarities", "fingerprints")
OF_PAIRS = ("states", "similarities", "fingerprints")


def save_material(path: Path, material: Material, cautions: Sequence[str], key: str) -> None:
    """Write everything but the rollouts and their labels, atomically; `key` identifies the inputs."""
    arrays: dict[str, Any] = {name: getattr(material, name) for name in ARRAYS}
    arrays |= {f"cosines/{kind}": values for kind, values in (material.cosines or {}).items()}
    header: dict[str, Any] = {"missing": dict(material.missing), "cautions": [*cautions], "key": key}
    header["seed"] = material.seed
    if (pairs := material.pairs) is not None:
        arrays |= {f"pairs/{name}": getattr(pairs, name) for name in OF_PAIRS}
        header |= {"kinds": [*pairs.kinds], "held_out": pairs.held_out.tolist()}
    tensors = {name: torch.tensor(values) for name, values in arrays.items() if values is not None}
    write_tensors(path, tensors, header)


def load_material(path: Path, rollouts: Sequence[Rollout]) -> tuple[Material, list[str], str]:
    """Read a file of `save_material` for the same rollouts; return the material, the cautions and the key.

    Raises:
        InputError: a missing or damaged file.
    """
    tensors, header = read_tensors(path, "np", fix="delete it: it is measured again")
    pairs = None
    if "kinds" in header:
        of_pairs = {name: tensors.get(f"pairs/{name}") for name in OF_PAIRS}
        pairs = PairMaterial(kinds=header["kinds"], held_out=np.array(header["held_out"], dtype=bool), **of_pairs)
    cosines = {name.partition("/")[2]: values for name, values in tensors.items() if name.startswith("cosines/")}
    arrays: dict[str, Any] = {name: tensors.get(name) for name in ARRAYS}
    material = Material(
        rollouts=rollouts,
        seed=header["seed"],
        cosines=cosines or None,
        pairs=pairs,
        missing=header["missing"],
        **arrays,
    )
    return material, header["cautions"], header["key"]
