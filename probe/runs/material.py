"""Measure the material of detectors (`probe.analysis.detectors`) on stored rollouts, in one pass over them.

    forward             log-probabilities and mean hidden states, at the weights given and at the reference weights
    forward, backward   per-sample gradients, each reduced to its cosines and its fingerprint before the next ones

The cost is linear in the rollouts, and so is the memory, without the pairs' gradients. Shapes: n rollouts, m pairs,
L layers of size d, s dimensions of a fingerprint, r coordinates of a module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from extraction.adapters.frames import Frames
from extraction.batch import Batch, make_batch
from extraction.controls import haar_directions, permuted_differences
from extraction.directions import Directions, PairGradients, extract_directions
from extraction.gradients import per_sample_gradients
from extraction.library import DirectionLibrary, pair_batch
from extraction.logprobs import split_model
from extraction.pairs import Pair
from extraction.passes import score
from extraction.selection import selected_pairs
from extraction.words import Basis, ExtractionSettings, kind_of
from probe.analysis.detectors import SAME_WEIGHTS, Material, PairMaterial, mean_logprobs
from probe.runs.activations import scored_states
from probe.runs.assemble import configured_frames, configured_policy
from probe.settings.run import ReplayConfig, normaliser
from probe.step.distributed import transformer_blocks
from probe.step.projection import sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.tensors import read_tensors, write_tensors
from replay_pools.base.terminal import report
from replay_pools.policy.load import Policy
from replay_pools.rollout import Rollout

CHUNK = 64  # rollouts in memory at once
CHUNK_FLOATS = 2**28  # of their gradients
DEPTHS = 0.6, 0.75  # layers that the hidden states are read from, as shares of the depth (Wu and Tang 2026)
FINGERPRINT = 1024  # dimensions, as GRIFT's
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
    model = wanted.config.model
    missing: dict[str, str] = {}
    if not wanted.has_pairs:
        missing |= dict.fromkeys(("pairs", "similarities", "cosines"), NO_PAIRS)
    if wanted.basis is None:
        missing |= dict.fromkeys(("similarities", "cosines", "fingerprints"), NO_GRADIENTS)
    reference = None
    if wanted.reference is not None or model.adapter is not None:
        other = replace(model, name=wanted.reference or model.name, adapter=None)
        policy = configured_policy(other, wanted.out / "cache")
        parts = [_means(score(policy.model, batch), batch) for batch in _chunks(policy, rollouts)]
        reference = np.concatenate(parts)
        del policy
    policy = configured_policy(model, wanted.out / "cache")
    layers = _layers(policy, missing)
    logprobs, states = _forward(policy, rollouts, layers)
    pairs = _pairs(policy, selected_pairs(wanted.config.intervention.extraction), layers) if wanted.has_pairs else None
    recorded = mean_logprobs(rollouts)
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
    if reference is None:
        missing["reference"] = "needs the weights before the training (--reference MODEL)"
    material = Material(
        rollouts=rollouts,
        seed=wanted.config.seed,
        logprobs=logprobs,
        sampled=sampled,
        reference=reference,
        states=states,
        pairs=pairs,
        missing=missing,
    )
    if wanted.basis is not None:
        material = _with_gradients(policy, material, wanted, wanted.basis, say)
    return material, _cautions(is_sampler, gap)


def _cautions(is_sampler: bool | None, gap: float | None) -> list[str]:
    """Return a sentence if the weights did not sample the rollouts, or may not have."""
    better = "gradients and hidden states tell more at the weights that sampled (--model, --adapter)"
    if is_sampler is False:
        off = "" if gap is None else f": recorded log-probabilities are {gap:.2g} nats a token off"
        return [f"other weights than the model's sampled these rollouts{off}; {better}"]
    if is_sampler is None:
        return [f"nothing records that the model's weights sampled these rollouts; {better}"]
    return []


def _chunks(policy: Policy, rollouts: Sequence[Rollout], size: int = CHUNK) -> Iterator[Batch]:
    """Yield batches of consecutive rollouts."""
    for start in range(0, len(rollouts), size):
        part = rollouts[start : start + size]
        batch = make_batch(
            [one.prompt_ids for one in part],
            [one.completion_ids for one in part],
            policy.pad_id,
            [one.completion_mask for one in part],
        )
        yield batch.to(policy.device)
        report("rollouts measured", start + len(part), len(rollouts))


def _means(logprobs: Tensor, batch: Batch) -> np.ndarray:
    """Return nats per scored token, (G,)."""
    return (logprobs.double().sum(1) / batch.completion_lengths).cpu().numpy()


def _layers(policy: Policy, missing: dict[str, str]) -> dict[int, nn.Module]:
    """Return the decoder layers to read; empty, with a reason in `missing`, if the architecture is not known."""
    try:
        blocks = transformer_blocks(split_model(policy.model)[0], "hidden states")
    except InputError as error:
        missing["states"] = str(error)
        return {}
    low, high = DEPTHS
    numbers = [i for i in range(len(blocks)) if low <= (i + 1) / len(blocks) <= high] or [len(blocks) // 2]
    return {i: blocks[i] for i in numbers}


def _forward(
    policy: Policy, rollouts: Sequence[Rollout], layers: Mapping[int, nn.Module]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (n,) nats per token and (n, L, d) mean hidden states; None without layers."""
    logprobs, states = [], []
    for batch in _chunks(policy, rollouts):
        found, means = scored_states(policy.model, batch, layers)
        logprobs.append(_means(found, batch))
        if layers:
            states.append(torch.stack([means[number] for number in layers], 1).float().cpu().numpy())
    return np.concatenate(logprobs), np.concatenate(states) if layers else None


def _pairs(policy: Policy, pairs: Sequence[Pair], layers: Mapping[int, nn.Module]) -> PairMaterial:
    """Return the pairs' kinds and hidden states."""
    states = None
    if layers:
        _, means = scored_states(policy.model, pair_batch(policy, pairs), layers)
        stacked = torch.stack([means[number] for number in layers], 1).float().cpu().numpy()
        states = stacked.reshape(2, len(pairs), *stacked.shape[1:])
    held_out = np.array([pair.held_out for pair in pairs])
    return PairMaterial(kinds=[kind_of(pair.flavour) for pair in pairs], held_out=held_out, states=states)


def _with_gradients(
    policy: Policy, material: Material, wanted: Wanted, basis: Basis, say: Callable[[str], None]
) -> Material:
    """Return the material with everything that comes from gradients."""
    config, cache = wanted.config, wanted.out / "cache"
    extraction = replace(config.intervention.extraction, sides="mean")
    frames = configured_frames(policy, basis, config.model, cache)
    if frames.adapted is not None and frames.adapted.caution:
        say(frames.adapted.caution)
    hashed = Hash(frames, config.seed, policy.device)
    sides, directions, pairs = None, dict[str, Directions](), material.pairs
    if pairs is not None:
        library = DirectionLibrary(
            policy, frames, extraction, normaliser(config.objective), cache_dir=cache, seed=config.seed
        )
        directions = _directions(library, extraction)
        directions = {kind: found.to(policy.device) for kind, found in directions.items()}
        sides = Sides(library.pair_gradients, policy.device)
        fingerprints = hashed(sides.gradients).cpu().numpy()
        gram = sides.cosines(sides.gradients).cpu().numpy()
        m = len(pairs.kinds)
        pairs = replace(pairs, fingerprints=fingerprints.reshape(2, m, -1), similarities=gram.reshape(2, m, 2, m))
    cosines: dict[str, list[np.ndarray]] = {kind: [] for kind in directions}
    similarities, fingerprints = [], []
    size = max(1, min(CHUNK, CHUNK_FLOATS // sum(frames.sizes.values())))
    for batch in _chunks(policy, material.rollouts, size):
        found = per_sample_gradients(
            policy.model, {basis: frames}, batch, tokens_per_batch=extraction.tokens_per_batch
        ).gradients[basis]
        fingerprints.append(hashed(found).cpu().numpy())
        for kind, along in directions.items():
            cosines[kind].append(sample_cosines(found, along.vectors).cos.double().cpu().numpy())
        if sides is not None:
            similarities.append(sides.cosines(found).cpu().numpy())
    num = len(material.rollouts)
    return replace(
        material,
        pairs=pairs,
        fingerprints=np.concatenate(fingerprints),
        cosines={kind: np.concatenate(parts) for kind, parts in cosines.items()} if directions else None,
        similarities=np.concatenate(similarities).reshape(num, 2, -1) if similarities else None,
    )


def _directions(library: DirectionLibrary, extraction: ExtractionSettings) -> dict[str, Directions]:
    """Return the directions by kind: v_hack of both kinds of sides, and the nulls of the first."""
    pairs = library.pair_gradients
    unit = PairGradients(
        hack=_at_norm_1(pairs.hack), clean=_at_norm_1(pairs.clean), held_out=pairs.held_out, metadata=pairs.metadata
    )

    def extracted(differences: Mapping[str, Tensor]) -> Directions:
        return extract_directions(
            differences,
            method=extraction.method,
            k=extraction.k,
            tau=extraction.tau,
            drop_bottom_frac=extraction.drop_bottom_frac,
            metadata=pairs.metadata,
        )

    return {
        "mean": library.v_hack,
        "unit": extracted(unit.differences()),
        "haar": haar_directions(library.v_hack, seed=library.seed),
        "shuffled": extracted(permuted_differences(pairs, seed=library.seed)),
    }


def _at_norm_1(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide each row by its norm over all modules; a row of 0 stays 0."""
    norms = torch.stack([gradient.double().square().sum(1) for gradient in gradients.values()]).sum(0).sqrt()[:, None]
    scale = torch.where(norms > 0, 1 / norms, 0.0)
    return {module: gradient * scale.to(gradient.dtype) for module, gradient in gradients.items()}


class Sides:
    """The 2m sides of the pairs at norm 1, {module: (2m, r)}: all hacks, then all clean ones."""

    def __init__(self, pairs: PairGradients, device: torch.device) -> None:
        both = {module: torch.cat([pairs.hack[module], pairs.clean[module]]) for module in pairs.hack}
        self.gradients = {module: gradient.to(device) for module, gradient in _at_norm_1(both).items()}

    def cosines(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return (G, 2m) cosines over all modules, float32; NaN for a gradient of 0."""
        dots, squares = [], []
        for module, sides in self.gradients.items():
            gradient = gradients[module].to(sides.dtype)
            dots.append(gradient @ sides.T)
            squares.append(gradient.square().sum(1))
        norms = torch.stack(squares).sum(0).sqrt()[:, None]
        return torch.where(norms > 0, torch.stack(dots).sum(0) / norms, torch.nan)


class Hash:
    """A random projection of gradients to FINGERPRINT dimensions, the same for every rollout and pair.

    Every coordinate is added with a random sign to one random dimension (a count sketch: a sparse Rademacher matrix
    with one entry a column), so that the cost is linear in the coordinates.
    """

    def __init__(self, frames: Frames, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._places, self._signs = {}, {}
        for module, r in frames.sizes.items():
            self._places[module] = torch.randint(FINGERPRINT, (r,), generator=generator).to(device)
            self._signs[module] = (2 * torch.randint(2, (r,), generator=generator) - 1).to(device, torch.float32)

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return (G, FINGERPRINT) at norm 1, float32; NaN for a gradient of 0."""
        total: Tensor | None = None
        for module, places in self._places.items():
            signed = gradients[module].float() * self._signs[module]
            total = signed.new_zeros(len(signed), FINGERPRINT) if total is None else total
            total.index_add_(1, places, signed)
        assert total is not None
        norms = total.norm(dim=1, keepdim=True)
        return torch.where(norms > 0, total / norms, torch.nan)


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
