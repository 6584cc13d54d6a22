"""Join the records of a run with its stored inner products: the input of every null that is computed offline.

    linked = link(run, samples, steps)              records and `gram/` files of one arm
    cosines(axes, linked.gradients)                 cos_S_nll of every sample, along any directions
    cosines(axes, linked.totals)                    cos_in of every step, along any directions

The gradient of a sample is g_i = grad of sum_t -logp_it; the policy gradient of a step is sum_i A_i w_i g_i.
Shapes: S samples of the run, T steps with a policy gradient, G samples of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.geometry import Gradients, cosines, samples_of, stack, svd_axes, weighted
from probe.analysis.statistics.gram import Array, PairGram, StepGram, read_pairs, read_step
from probe.analysis.statistics.nulls import true_labels
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedStep:
    """One step whose policy gradient is not zero."""

    record: StepRecord
    gram: StepGram
    weights: Array  # (G,) A_i w_i
    unit_weights: Array  # (G,) w_i: what the loss multiplies an advantage of 1 by


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The samples and steps of one arm, with their gradients as inner products with the pair gradients."""

    pairs: PairGram
    samples: list[SampleRecord]  # (S,) by step, then sample_id: the order of `gradients`
    gradients: Gradients  # (S,) sample gradients g_i
    steps: list[LinkedStep]  # (T,)
    totals: Gradients  # (T,) policy gradients of the steps
    error: float  # largest |offline - recorded| over cos_in and cos_S_nll


def link(run: Run, samples: Sequence[SampleRecord], steps: Sequence[StepRecord]) -> Linked:
    """Read the inner products of a run and join them to the records of one arm that measures along v_hack.

    Args:
        run: with files in `gram/` (`probe.analysis.statistics.gram.has_gram`).
        samples: all samples of the arm.
        steps: its step records; those without a policy gradient give no total.

    Raises:
        InputError: a file of `gram/` is missing or changed.
    """
    pairs = read_pairs(run)
    samples_by_step: dict[int, list[SampleRecord]] = {}
    for sample in samples:
        samples_by_step.setdefault(sample.step, []).append(sample)
    grams = {}
    ordered = []
    for step, group in samples_by_step.items():
        # Row i of the Gram matrices is sample_id i, whatever the order of the records.
        group.sort(key=lambda sample: sample.sample_id)
        grams[step] = read_step(run, step)
        ordered += group
    linked_steps = []
    for record in steps:
        if record.cos_in is not None and record.step in grams:
            linked_steps.append(_linked_step(record, grams[record.step], samples_by_step[record.step]))
    gradients = stack([samples_of(gram) for gram in grams.values()])
    if linked_steps:
        totals = stack([weighted(step.gram, step.weights[None, :]) for step in linked_steps])
    else:
        totals = _no_gradients(pairs)
    return Linked(
        pairs=pairs,
        samples=ordered,
        gradients=gradients,
        steps=linked_steps,
        totals=totals,
        error=_error(pairs, ordered, gradients, linked_steps, totals),
    )


def _linked_step(record: StepRecord, gram: StepGram, samples: Sequence[SampleRecord]) -> LinkedStep:
    """Recover the weights of the samples from their records: |A_i w_i| = grad_norm_contrib / norm(g_i)."""
    norms = samples_of(gram).norm
    advantages = np.array([sample.advantage for sample in samples])
    contributions = np.array([sample.grad_norm_contrib for sample in samples])
    weights = np.sign(advantages) * np.where(norms > 0, contributions / np.where(norms > 0, norms, 1.0), 0.0)
    return LinkedStep(
        record=record, gram=gram, weights=weights, unit_weights=_unit_weights(record, samples, weights, advantages)
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


def _error(
    pairs: PairGram,
    samples: Sequence[SampleRecord],
    gradients: Gradients,
    steps: Sequence[LinkedStep],
    totals: Gradients,
) -> float:
    """Largest difference between recorded cosines and those along v_hack as extracted here, from inner products."""
    axes = svd_axes(pairs, *true_labels(pairs.held_out), pairs.extraction)
    recorded = [sample.cos_S_nll for sample in samples] + [step.record.cos_in for step in steps]
    offline = np.concatenate([cosines(axes, gradients)[0], cosines(axes, totals)[0]])
    present = np.array([value is not None for value in recorded])
    expected = np.array([value for value in recorded if value is not None], dtype=np.float64)
    errors = np.abs(offline[present] - expected)
    # NaN: the inner products say that the gradient is 0, the records that it is not. That is an error of 1.
    return float(np.max(np.nan_to_num(errors, nan=1.0), initial=0.0))


def _no_gradients(pairs: PairGram) -> Gradients:
    """Gradients with S = 0."""
    num_modules, num_rows = pairs.pairs.shape[:2]
    return Gradients(inner=np.zeros((num_modules, 0, num_rows)), norms=np.zeros((num_modules, 0)))
