"""Join the records of a run with its stored inner products: the input of every null that is computed offline.

    linked = link(run, samples, steps)              records of one arm, and `gram/` files of its basis
    linked.sample_cosines(axes, rows)               cos_S_nll of samples, along any directions
    cosines(axes, linked.totals)                    cos_in of every step, along any directions

The gradient of a sample is g_i = grad of sum_t -logp_it; the policy gradient of a step is sum_i A_i w_i g_i.
The inner products of the samples stay on disk and are read step by step: of a sample only its norm and its cosine with
v_hack are kept.
Shapes: S samples of the run, T steps with a policy gradient, G samples of a step, P samples that are asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.geometry import Axes, Gradients, cosines, samples_of, stack, weighted
from probe.analysis.statistics.gram import Array, PairGram, StepGram, StepReader, read_pairs
from probe.analysis.statistics.null_axes import true_axes
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run
from probe.settings.arms import ARMS

BATCH = 128  # samples whose inner products are in memory at once: one matrix product for all draws of an axis
REMEMBERED_BATCHES = 32  # some 1 MB each
SampleName: TypeAlias = tuple[int, int]  # (step, sample_id)
Batch: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]  # (step, its sample_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedStep:
    """One step whose policy gradient is not zero."""

    record: StepRecord
    rows: NDArray[np.intp]  # (G,) its samples among the S
    products: Array  # (G, G) of its sample gradients with one another, over all modules
    weights: Array  # (G,) A_i w_i
    unit_weights: Array  # (G,) w_i: what the loss multiplies an advantage of 1 by


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The samples and steps of one arm, with their gradients as inner products with the pair gradients."""

    read: Callable[[int], StepGram]  # the inner products of a step, by its number; equal for all conditions of a run
    pairs: PairGram
    samples: list[SampleRecord]  # (S,) step by step, by sample_id
    norms: Array  # (S,) of the sample gradients g_i
    cosines: Array  # (S,) of g_i with v_hack as extracted here; NaN for a zero gradient
    steps: list[LinkedStep]  # (T,)
    totals: Gradients  # (T,) policy gradients of the steps
    error: float  # largest |offline - recorded| over cos_in and cos_S_nll
    sample_error: float  # the same over cos_S_nll, in which neither loss nor advantage has a part

    def sample_cosines(self, axes: Axes, rows: Sequence[int] | NDArray[np.intp]) -> Array:
        """(B, P) cosines of the sample gradients `rows`, in ascending order, with every draw of the axes."""
        return sample_cosines(self.read, axes, self.names(rows))

    def names(self, rows: Sequence[int] | NDArray[np.intp]) -> tuple[SampleName, ...]:
        """Of the samples `rows`."""
        return tuple((self.samples[row].step, self.samples[row].sample_id) for row in rows)


def sample_cosines(read: Callable[[int], StepGram], axes: Axes, names: Sequence[SampleName]) -> Array:
    """(B, P) `Linked.sample_cosines` of named samples."""
    parts = [np.zeros((len(axes.rows), 0))]
    for batch in _batches(names):
        parts.append(_batch_cosines(read, axes, batch))
    return np.concatenate(parts, axis=1)


def _batches(names: Sequence[SampleName]) -> Iterator[Batch]:
    """The samples of whole steps, about BATCH at a time."""
    batch: dict[int, list[int]] = {}
    for step, sample_id in names:
        if step not in batch and sum(map(len, batch.values())) >= BATCH:
            yield tuple((number, tuple(ids)) for number, ids in batch.items())
            batch = {}
        batch.setdefault(step, []).append(sample_id)
    if batch:
        yield tuple((step, tuple(ids)) for step, ids in batch.items())


# Conditions mostly pay the same samples, and a sample's own gradient does not depend on the condition.
@lru_cache(maxsize=REMEMBERED_BATCHES)
def _batch_cosines(read: Callable[[int], StepGram], axes: Axes, batch: Batch) -> Array:
    """(B, samples of the batch) cosines of their gradients."""
    parts = []
    for step, sample_ids in batch:
        gradients = samples_of(read(step))
        chosen = list(sample_ids)
        parts.append(Gradients(inner=gradients.inner[:, chosen], norms=gradients.norms[:, chosen]))
    return cosines(axes, stack(parts))


def link(run: Run, samples: Sequence[SampleRecord], steps: Sequence[StepRecord]) -> Linked:
    """Read the inner products of a run and join them to the records of one arm that measures along v_hack.

    Args:
        run: with inner products in the basis of the arm (`probe.analysis.statistics.gram.has_gram`).
        samples: all samples of the arm, at least one.
        steps: its step records; those without a policy gradient give no total.

    Raises:
        InputError: a file of `gram/` is missing or changed.
    """
    basis = ARMS[samples[0].arm].basis
    pairs, read = read_pairs(run, basis), StepReader.of(run, basis)
    axes = true_axes(pairs)
    groups: dict[int, list[SampleRecord]] = {}
    for sample in samples:
        groups.setdefault(sample.step, []).append(sample)
    records = {record.step: record for record in steps if record.cos_in is not None}
    ordered: list[SampleRecord] = []
    norms, cosines_of_steps = [], []
    linked: dict[int, LinkedStep] = {}
    totals: dict[int, Gradients] = {}
    for step, group in groups.items():
        # Row i of the Gram matrices is sample_id i, whatever the order of the records.
        group.sort(key=lambda sample: sample.sample_id)
        gram = read(step)
        gradients = samples_of(gram)
        norms.append(gradients.norm)
        cosines_of_steps.append(cosines(axes, gradients)[0])
        if step in records:
            linked[step] = _linked_step(records[step], gram, group, first_row=len(ordered))
            totals[step] = weighted(gram, linked[step].weights[None, :])
        ordered += group
    # In the order of the step records: the draws that permute advantages follow it.
    order = [step for step in records if step in linked]
    total = stack([totals[step] for step in order]) if order else _no_gradients(pairs)
    along_v_hack = np.concatenate(cosines_of_steps)
    sample_error = _error([sample.cos_S_nll for sample in ordered], along_v_hack)
    step_error = _error([records[step].cos_in for step in order], cosines(axes, total)[0])
    return Linked(
        read=read,
        pairs=pairs,
        samples=ordered,
        norms=np.concatenate(norms),
        cosines=along_v_hack,
        steps=[linked[step] for step in order],
        totals=total,
        error=max(sample_error, step_error),
        sample_error=sample_error,
    )


def _linked_step(record: StepRecord, gram: StepGram, samples: Sequence[SampleRecord], *, first_row: int) -> LinkedStep:
    """Recover the weights of the samples from their records: |A_i w_i| = grad_norm_contrib / norm(g_i)."""
    norms = samples_of(gram).norm
    advantages = np.array([sample.advantage for sample in samples])
    contributions = np.array([sample.grad_norm_contrib for sample in samples])
    weights = np.sign(advantages) * np.where(norms > 0, contributions / np.where(norms > 0, norms, 1.0), 0.0)
    return LinkedStep(
        record=record,
        rows=np.arange(first_row, first_row + len(samples)),
        products=gram.samples.sum(0),
        weights=weights,
        unit_weights=_unit_weights(record, samples, weights, advantages),
    )


def _unit_weights(record: StepRecord, samples: Sequence[SampleRecord], weights: Array, advantages: Array) -> Array:
    """w_i = A_i w_i / A_i.

    A sample with A_i = 0 does not show its w_i. It is filled in from the other samples of the step: weights are
    proportional to 1 / length under `grpo`, and all equal under the other losses.
    """
    known = weights != 0
    if not known.any():  # the step's gradient comes from a penalty alone
        return np.zeros(len(samples))
    lengths = np.array([max(sample.comp_len, 1) for sample in samples], dtype=np.float64)
    scale = 1.0 / lengths if record.loss_type == "grpo" else np.ones(len(samples))
    common = float(np.mean((weights[known] / advantages[known]) / scale[known]))
    return np.where(known, weights / np.where(known, advantages, 1.0), common * scale)


def _error(recorded: Sequence[float | None], offline: Array) -> float:
    """Largest difference between recorded cosines and those along v_hack as extracted here, from inner products."""
    present = np.array([value is not None for value in recorded], dtype=bool)
    expected = np.array([value for value in recorded if value is not None], dtype=np.float64)
    errors = np.abs(offline[present] - expected)
    # NaN: the inner products say that the gradient is 0, the records that it is not. That is an error of 1.
    return float(np.max(np.nan_to_num(errors, nan=1.0), initial=0.0))


def _no_gradients(pairs: PairGram) -> Gradients:
    """Gradients with S = 0."""
    num_modules, num_rows = pairs.pairs.shape[:2]
    return Gradients(inner=np.zeros((num_modules, 0, num_rows)), norms=np.zeros((num_modules, 0)))
