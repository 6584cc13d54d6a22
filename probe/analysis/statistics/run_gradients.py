"""Read the inner products of gradients written by `runs.gram_recorder`, and join them to the records of the run.

    linked = link(run, samples, steps)              records of one arm, and `gram/` files of its basis
    linked.sample_cosines(axes, rows)               cos_S_nll of samples, along any directions
    cosines(axes, linked.totals)                    cos_in of every step, along any directions

The gradient of a sample is g_i = grad of sum_t -logp_it; the policy gradient of a step is sum_i A_i w_i g_i.
The samples' inner products stay on disk and are read step by step; only each sample's cosine with v_hack stays in
memory.
Shapes: S samples of the run, T steps with a policy gradient, G samples of a step, P requested samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from extraction.settings import Basis
from probe.analysis.statistics.geometry import Axes, Gradients, PairGram, StepGram, cosines, samples_of, stack, weighted
from probe.analysis.statistics.intervals import Array
from probe.analysis.statistics.nulls import true_axes
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import CHANGED, Run, gram_dir
from probe.settings.arms import ARMS
from replay_pools.base.files import check_sha256, file_sha256, read_tensors

BATCH = 128  # samples in memory at once, with one matrix product for all draws of an axis
REMEMBERED_STEPS = 64  # cache size: every condition of a run passes over its steps several times


def has_gram(run: Run, basis: Basis) -> bool:
    """Return True if the run stored inner products in a basis."""
    return f"{gram_dir(basis)}/pairs.safetensors" in run.manifest.get("files", {})


def read_pairs(run: Run, basis: Basis) -> PairGram:
    """Read the `pairs.safetensors` of a basis; InputError if it is missing or changed."""
    return _pairs(*_file(run, basis, "pairs"))


def read_step(run: Run, basis: Basis, step: int) -> StepGram:
    """Read the `step_NNN.safetensors` of a basis; InputError if it is missing or changed."""
    return _step(*_file(run, basis, f"step_{step:03d}"))


def _file(run: Run, basis: Basis, name: str) -> tuple[Path, str]:
    """Return the path of a file, and the sha256 of its contents as the manifest lists it."""
    listed = f"{gram_dir(basis)}/{name}.safetensors"
    path = run.path / listed
    actual = file_sha256(path) if path.is_file() else "no such file"
    check_sha256(path, actual, run.manifest["files"].get(listed), CHANGED)
    return path, actual


@lru_cache(maxsize=1)
def _pairs(path: Path, sha256: str) -> PairGram:
    tensors, header = read_tensors(path, "np", fix="repeat the run")
    held_out = tensors["held_out"].astype(bool)  # (N,): the file marks both rows of a pair
    return PairGram(
        modules=tuple(header["modules"]),
        sizes=np.array(header["sizes"]),
        pairs=tensors["pairs"].astype(np.float64),
        held_out=held_out[: len(held_out) // 2],
        flavours=tuple(header["flavours"]),
        texts=tuple(header.get("texts", ())),
        **header["extraction"],
    )


@lru_cache(maxsize=REMEMBERED_STEPS)
def _step(path: Path, sha256: str) -> StepGram:
    tensors, _ = read_tensors(path, "np", fix="repeat the run")
    numbers = {name: tensor.astype(np.float64) for name, tensor in tensors.items() if not name.startswith("along/")}
    inner, samples = numbers.pop("inner"), numbers.pop("samples")
    weights = {name.removeprefix("weights/"): values for name, values in numbers.items()}
    return StepGram(inner=inner, samples=samples, weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedStep:
    """One step with a nonzero policy gradient."""

    record: StepRecord
    rows: NDArray[np.intp]  # (G,) indices of its samples among the S
    weights: Array  # (G,) A_i w_i
    unit_weights: Array  # (G,) w_i: the loss multiplies an advantage of 1 by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The samples and steps of one arm, with gradients given by inner products with the pair gradients."""

    read: Callable[[int], StepGram]  # step number -> inner products of the step
    pairs: PairGram
    samples: list[SampleRecord]  # (S,) step by step, by sample_id
    cosines: Array  # (S,) of the sample gradients g_i with the offline v_hack; NaN for a zero gradient
    steps: list[LinkedStep]  # (T,)
    totals: Gradients  # (T,) policy gradients of the steps
    error: float  # largest |offline - recorded| over cos_in and cos_S_nll
    sample_error: float  # the same over cos_S_nll, which does not depend on loss or advantage

    @property
    def prompts(self) -> list[str]:
        """The (T,) problems of the steps."""
        return [step.record.problem_id for step in self.steps]

    def sample_cosines(self, axes: Axes, rows: Sequence[int] | NDArray[np.intp]) -> Array:
        """Return (B, P) cosines of the sample gradients `rows`, in ascending order, with every draw of the axes."""
        chosen: dict[int, list[int]] = {}
        for row in rows:
            chosen.setdefault(self.samples[row].step, []).append(self.samples[row].sample_id)
        parts, batch = [np.zeros((len(axes.rows), 0))], []
        for number, (step, sample_ids) in enumerate(chosen.items(), 1):
            gradients = samples_of(self.read(step))
            batch.append(Gradients(inner=gradients.inner[:, sample_ids], norms=gradients.norms[:, sample_ids]))
            if sum(part.norms.shape[1] for part in batch) >= BATCH or number == len(chosen):
                parts.append(cosines(axes, stack(batch)))
                batch = []
        return np.concatenate(parts, axis=1)


def link(run: Run, samples: Sequence[SampleRecord], steps: Sequence[StepRecord]) -> Linked:
    """Read the inner products of a run and join them to the records of one arm that measures along v_hack.

    Args:
        run: with inner products in the basis of the arm (`has_gram`).
        samples: all samples of the arm, at least one, under one condition.
        steps: its step records; those without a policy gradient give no total.

    Raises:
        InputError: a file of `gram/` is missing or changed.
    """
    basis, condition = ARMS[samples[0].arm].basis, samples[0].condition
    pairs, read = read_pairs(run, basis), partial(read_step, run, basis)
    axes = true_axes(pairs)
    groups: dict[int, list[SampleRecord]] = {}
    # Row i of the Gram matrices is sample_id i, whatever the order of the records.
    for sample in sorted(samples, key=lambda sample: sample.sample_id):
        groups.setdefault(sample.step, []).append(sample)
    records = {record.step: record for record in steps if record.cos_in is not None}
    ordered: list[SampleRecord] = []
    cosines_of_steps, linked, totals = [], [], []
    for step, group in groups.items():
        gram = read(step)
        unit_weights = gram.weights[condition]
        weights = unit_weights * [sample.advantage for sample in group]
        cosines_of_steps.append(cosines(axes, samples_of(gram))[0])
        if step in records:
            rows = np.arange(len(ordered), len(ordered) + len(group))
            totals.append(weighted(gram, weights[None, :]))
            linked.append(LinkedStep(record=records[step], rows=rows, weights=weights, unit_weights=unit_weights))
        ordered += group
    num_modules, num_rows = pairs.pairs.shape[:2]
    nothing = Gradients(inner=np.zeros((num_modules, 0, num_rows)), norms=np.zeros((num_modules, 0)))
    total = stack([nothing, *totals])
    along_v_hack = np.concatenate(cosines_of_steps)
    sample_error = _error([sample.cos_S_nll for sample in ordered], along_v_hack)
    step_error = _error([step.record.cos_in for step in linked], cosines(axes, total)[0])
    return Linked(
        read=read,
        pairs=pairs,
        samples=ordered,
        cosines=along_v_hack,
        steps=linked,
        totals=total,
        error=max(sample_error, step_error),
        sample_error=sample_error,
    )


def _error(recorded: Sequence[float | None], offline: Array) -> float:
    """Return the largest difference between recorded cosines and offline ones, from inner products."""
    present = np.array([value is not None for value in recorded], dtype=bool)
    errors = np.abs(offline - np.array(recorded, dtype=np.float64))[present]
    # NaN: the inner products give a zero gradient, the records a nonzero one. That is an error of 1.
    return float(np.max(np.nan_to_num(errors, nan=1.0), initial=0.0))
