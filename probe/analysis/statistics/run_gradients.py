"""Records and inner products of one run together: what every offline null starts from.

Shapes: S samples of the run, T steps with a policy gradient, M modules, N pair gradients, B draws.
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
    unit_weights: Array  # (G,) w_i


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The samples and steps of one arm with their gradients in the span of the pairs."""

    pairs: PairGram
    samples: list[SampleRecord]  # (S,)
    gradients: Gradients  # (S,) unit gradients of the samples
    steps: list[LinkedStep]  # (T,)
    totals: Gradients  # (T,) policy gradients of the steps
    error: float  # largest |offline - record| over cos_in and cos_S_nll


def link(run: Run, samples: Sequence[SampleRecord], steps: Sequence[StepRecord]) -> Linked:
    """Read the inner products of a run and join them to the records of one arm that uses v_hack.

    Args:
        samples: all samples of the arm.
        steps: its step records; those without a policy gradient give no total.
    """
    pairs = read_pairs(run)
    by_step: dict[int, list[SampleRecord]] = {}
    for sample in samples:
        by_step.setdefault(sample.step, []).append(sample)
    grams = {step: read_step(run, step) for step in by_step}
    ordered = [s for step in by_step for s in sorted(by_step[step], key=lambda s: s.sample_id)]
    linked = [
        _linked_step(step, grams[step.step], [s for s in ordered if s.step == step.step])
        for step in steps
        if step.cos_in is not None and step.step in grams
    ]
    gradients = stack([samples_of(grams[step]) for step in by_step])
    totals = stack([weighted(step.gram, step.weights[None, :]) for step in linked]) if linked else _none(pairs)
    return Linked(
        pairs=pairs,
        samples=ordered,
        gradients=gradients,
        steps=linked,
        totals=totals,
        error=_error(pairs, ordered, gradients, linked, totals),
    )


def _linked_step(record: StepRecord, gram: StepGram, samples: Sequence[SampleRecord]) -> LinkedStep:
    """Weights from what the records say: |A_i w_i| = grad_norm_contrib / norm(g_i)."""
    norms = samples_of(gram).norm
    advantages = np.array([s.advantage for s in samples])
    contributions = np.array([s.grad_norm_contrib for s in samples])
    weights = np.sign(advantages) * np.where(norms > 0, contributions / np.where(norms > 0, norms, 1.0), 0.0)
    return LinkedStep(
        record=record, gram=gram, weights=weights, unit_weights=_unit_weights(record, samples, weights, advantages)
    )


def _unit_weights(record: StepRecord, samples: Sequence[SampleRecord], weights: Array, advantages: Array) -> Array:
    """w_i; where A_i = 0 hides it, from the others: proportional to 1 / length under `grpo`, equal otherwise."""
    known = weights != 0
    if not known.any():  # the gradient is that of a penalty alone
        return np.zeros(len(samples))
    lengths = np.array([max(s.comp_len, 1) for s in samples], dtype=np.float64)
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
    """How far v_hack made from inner products is from the one that the run measured with."""
    axes = svd_axes(pairs, *true_labels(pairs.held_out), pairs.extraction)
    recorded = [s.cos_S_nll for s in samples] + [step.record.cos_in for step in steps]
    offline = np.concatenate([cosines(axes, gradients)[0], cosines(axes, totals)[0]])
    present = np.array([value is not None for value in recorded])
    expected = np.array([value for value in recorded if value is not None], dtype=np.float64)
    missed = np.abs(offline[present] - expected)
    # A gradient that is 0 by the inner products, and is not by the records, is missed whole.
    return float(np.max(np.nan_to_num(missed, nan=1.0), initial=0.0))


def _none(pairs: PairGram) -> Gradients:
    num_modules, num_rows = pairs.pairs.shape[:2]
    return Gradients(inner=np.zeros((num_modules, 0, num_rows)), norms=np.zeros((num_modules, 0)))
