"""Measure what detectors read (`probe.analysis.detectors.Material`) at the present weights of a policy.

    meter = Meter(policy, bases, pairs, config, cache, fields={"similarities"})
    material = meter(rollouts)                  forward passes, and per-sample gradients if a field needs them
    measure(rollouts, config, pairs, ...)       once, with cautions about the weights; saved and loaded

Gradients are reduced, a chunk of rollouts at a time, to their cosines and fingerprints. Directions and pairs are those
of the weights at the start of the process. The cost is linear in the rollouts, and so is the memory, without the
pairs' gradients. Shapes: n rollouts, m pairs, G rollouts of a chunk, L layers of size d, s dimensions of a fingerprint,
r coordinates of a module.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from extraction.adapters.frames import Frames
from extraction.batch import Batch, make_batch
from extraction.directions import unit_scale
from extraction.gradients import per_sample_gradients
from extraction.library import DirectionLibrary, pair_batch
from extraction.logprobs import split_model
from extraction.pairs import Pair
from extraction.passes import score
from extraction.settings import Basis, kind_of
from probe.analysis.detectors import ARRAYS, GRADIENT_FIELDS, Material, PairMaterial, mean_logprobs
from probe.analysis.statistics.thresholds import SAME_WEIGHTS
from probe.runs.activations import scored_states
from probe.runs.policies import configured_frames, configured_policy
from probe.settings.verbs import ReplayConfig, StepConfig, normaliser
from probe.step.bases import Bases
from probe.step.distributed import transformer_blocks
from probe.step.projection import sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_tensors, write_tensors
from replay_pools.base.terminal import report
from replay_pools.policy.load import Policy
from replay_pools.rollout import Rollout

CHUNK = 64  # rollouts in memory at once
CHUNK_FLOATS = 2**28  # of their gradients
DEPTHS = 0.6, 0.75  # layers that the hidden states are read from, as shares of the depth (Wu and Tang 2026)
FINGERPRINT = 1024  # dimensions, as GRIFT's
Gradients = Mapping[str, Tensor]  # {module: (G, r)}
OF_PAIRS = ("states", "similarities", "fingerprints")


@final
class Meter:
    """Measures fields of `Material`; what `pairs` and directions need is measured once, at construction.

    Args:
        policy: its model is read at its present weights.
        bases: frames of the model, in one basis; without frames no gradients are taken. If its weights are trained,
            the reference weights are those at coordinates of 0.
        pairs: pairs of hacks; None: none.
        config: extraction, loss normaliser and seed matter.
        cache: folder of pair gradients.
        fields: fields to measure; None: all that can be.
    """

    def __init__(
        self,
        policy: Policy,
        bases: Bases,
        pairs: Sequence[Pair] | None,
        config: StepConfig,
        cache: Path,
        *,
        fields: Collection[str] | None = None,
    ) -> None:
        self._policy, self.bases, self._config, self._fields = policy, bases, config, fields
        self.missing: dict[str, str] = {}  # {field: why it is not measured}
        self._layers = self._states_at() if self._wants("states") else {}
        self.pairs: PairMaterial | None = None
        if pairs is not None:
            kinds, held_out = [kind_of(pair.flavour) for pair in pairs], np.array([pair.held_out for pair in pairs])
            self.pairs = PairMaterial(kinds=kinds, held_out=held_out)
            if self._layers:
                states = _stacked(scored_states(policy.model, pair_batch(policy, pairs), self._layers)[1])
                self.pairs = replace(self.pairs, states=states.reshape(2, len(pairs), *states.shape[1:]))
        # {field, or field/kind: its numbers of each gradient of a chunk, (G, ...)}
        self._readings: dict[str, Callable[[Gradients], Tensor]] = {}
        if bases.frames and self._wants(*GRADIENT_FIELDS):
            (frames,) = bases.frames.values()
            self._prepare(frames, cache)

    def __call__(self, rollouts: Sequence[Rollout]) -> Material:
        """Measure the rollouts at the present weights; labels and the names of pools are left to the caller."""
        measured: dict[str, Any] = {"rollouts": rollouts, "pairs": self.pairs, "missing": dict(self.missing)}
        if self._wants("logprobs", "states", "sampled"):
            with self.bases.read():
                measured["logprobs"], measured["states"] = self._forward(rollouts)
        trained = self.bases.trained
        if trained is not None and self._wants("reference"):
            measured["sampled"] = measured["logprobs"]
            with trained.at_start():
                measured["reference"] = mean_scores(self._policy, rollouts)
        if self._readings:
            measured |= self._read(rollouts)
        return Material(seed=self._config.seed, **measured)

    def _wants(self, *names: str) -> bool:
        return self._fields is None or any(name in self._fields for name in names)

    def _states_at(self) -> dict[int, nn.Module]:
        """Return the decoder layers to read; empty, with a reason in `missing`, if the architecture is not known."""
        try:
            blocks = transformer_blocks(split_model(self._policy.model)[0], "hidden states")
        except InputError as error:
            self.missing["states"] = str(error)
            return {}
        low, high = DEPTHS
        numbers = [i for i in range(len(blocks)) if low <= (i + 1) / len(blocks) <= high] or [len(blocks) // 2]
        return {i: blocks[i] for i in numbers}

    def _forward(self, rollouts: Sequence[Rollout]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (n,) nats per token and (n, L, d) mean hidden states; None without layers."""
        logprobs, states = [], []
        for batch in chunks(self._policy, rollouts, what="rollouts scored"):
            scores, means = scored_states(self._policy.model, batch, self._layers)
            logprobs.append(_means(scores, batch))
            if self._layers:
                states.append(_stacked(means))
        return np.concatenate(logprobs), np.concatenate(states) if self._layers else None

    def _prepare(self, frames: Frames, cache: Path) -> None:
        """Measure the pairs' gradients and their directions, and choose what is read of a gradient."""
        config, device, readings = self._config, self._policy.device, self._readings
        if self._wants("fingerprints"):
            readings["fingerprints"] = Hash(frames, config.seed, device)
        if self.pairs is None:
            return
        extraction, m = replace(config.intervention.extraction, sides="mean"), len(self.pairs.kinds)
        library = DirectionLibrary(
            self._policy, frames, extraction, normaliser(config.objective), cache_dir=cache, seed=config.seed
        )
        pairs = library.pair_gradients
        both = {module: torch.cat([pairs.hack[module], pairs.clean[module]]) for module in pairs.hack}
        scale = unit_scale(both)
        # The sides at norm 1, {module: (2m, r)}: all hacks, then all clean ones.
        sides = {module: (gradient * scale.to(gradient.dtype)).to(device) for module, gradient in both.items()}
        if self._wants("similarities"):
            readings["similarities"] = partial(_cosines, sides)
        arrays = {name: reading(sides).cpu().numpy() for name, reading in readings.items()}
        shapes = {"fingerprints": (2, m, -1), "similarities": (2, m, 2, m)}
        self.pairs = replace(self.pairs, **{name: array.reshape(shapes[name]) for name, array in arrays.items()})
        if not self._wants("cosines"):
            return
        hack, clean = (
            {module: side[half].cpu() for module, side in sides.items()} for half in (slice(m), slice(m, None))
        )
        unit = library.extract(replace(pairs, hack=hack, clean=clean).differences(), pairs.metadata)
        kinds = {"mean": library.v_hack, "unit": unit, "haar": library.get("haar"), "shuffled": library.get("permuted")}
        for kind, directions in kinds.items():
            readings[f"cosines/{kind}"] = partial(_along, directions.to(device).vectors)

    def _read(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Return the fields that come from gradients, (n, ...) each."""
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self._readings}
        with self.bases.read() as frames:
            ((basis, read),) = frames.items()
            size = max(1, min(CHUNK, CHUNK_FLOATS // sum(read.sizes.values())))
            for batch in chunks(self._policy, rollouts, size, what="gradients of rollouts"):
                gradients = per_sample_gradients(
                    self._policy.model, frames, batch, tokens_per_batch=self.bases.tokens_per_batch
                ).gradients[basis]
                for name, reading in self._readings.items():
                    parts[name].append(reading(gradients).cpu().numpy())
        arrays: dict[str, Any] = {name: np.concatenate(part) for name, part in parts.items()}
        if "similarities" in arrays:
            arrays["similarities"] = arrays["similarities"].reshape(len(rollouts), 2, -1)
        kinds = [name for name in arrays if name.startswith("cosines/")]
        cosines = {name.removeprefix("cosines/"): arrays.pop(name) for name in kinds}
        return arrays | {"cosines": cosines or None}


def chunks(policy: Policy, rollouts: Sequence[Rollout], size: int = CHUNK, *, what: str) -> Iterator[Batch]:
    """Yield batches of consecutive rollouts; `what` is the work on them, for reports of progress."""
    for start in range(0, len(rollouts), size):
        part = rollouts[start : start + size]
        ids = [one.prompt_ids for one in part], [one.completion_ids for one in part]
        yield make_batch(*ids, policy.pad_id, [one.completion_mask for one in part]).to(policy.device)
        report(what, start + len(part), len(rollouts))


def mean_scores(policy: Policy, rollouts: Sequence[Rollout]) -> np.ndarray:
    """Return (n,) nats per scored token under the policy's present weights."""
    batches = chunks(policy, rollouts, what="rollouts scored under the reference")
    return np.concatenate([_means(score(policy.model, batch), batch) for batch in batches])


def _means(logprobs: Tensor, batch: Batch) -> np.ndarray:
    """Return nats per scored token, (G,)."""
    return (logprobs.double().sum(1) / batch.completion_lengths).cpu().numpy()


def _stacked(means: Mapping[int, Tensor]) -> np.ndarray:
    """Return (G, L, d) from {layer: (G, d)}."""
    return torch.stack([*means.values()], 1).float().cpu().numpy()


def _along(vectors: Mapping[str, Tensor], gradients: Gradients) -> Tensor:
    """Return (G,) cosines with directions {module: (k, r)}, float64."""
    return sample_cosines(gradients, vectors).cos.double()


def _cosines(sides: Gradients, gradients: Gradients) -> Tensor:
    """Return (G, 2m) cosines with sides over all modules, float32; NaN for a gradient of 0."""
    dots, squares = [], []
    for module, side in sides.items():
        gradient = gradients[module].to(side.dtype)
        dots.append(gradient @ side.T)
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

    def __call__(self, gradients: Gradients) -> Tensor:
        """Return (G, FINGERPRINT) at norm 1, float32; NaN for a gradient of 0."""
        first = next(iter(gradients.values()))
        total = torch.zeros(len(first), FINGERPRINT, device=first.device)
        for module, places in self._places.items():
            total.index_add_(1, places, gradients[module].float() * self._signs[module])
        norms = total.norm(dim=1, keepdim=True)
        return torch.where(norms > 0, total / norms, torch.nan)


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
