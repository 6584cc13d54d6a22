"""Labels of the batch: the statistics that they enter, and the null N4 that permutes them within prompts.

Shapes: B draws, S samples of a run, P paid samples (A > 0), T steps, G samples of a step.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from probe.analysis.statistics.geometry import Axes, cosines
from probe.analysis.statistics.gram import Array
from probe.analysis.statistics.intervals import prompt_weights
from probe.analysis.statistics.run_gradients import Linked


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLabels:
    """The paid samples (A > 0) of a run, with what their labels weigh in the statistics."""

    rows: NDArray[np.intp]  # (P,) indices among the S samples
    hacked: NDArray[np.bool_]  # (P,)
    prompts: NDArray[np.intp]  # (P,) number of the prompt


def paid_labels(linked: Linked) -> PaidLabels:
    """The paid samples that have a gradient and labels to rely on."""
    rows = [i for i, s in enumerate(linked.samples) if s.advantage > 0 and s.cos_S_nll is not None and not s.flaky]
    return PaidLabels(
        rows=np.array(rows, dtype=np.intp),
        hacked=np.array([linked.samples[i].hacked for i in rows], dtype=bool),
        prompts=_numbers([linked.samples[i].problem_id for i in rows]),
    )


def _numbers(names: Sequence[Hashable]) -> NDArray[np.intp]:
    """Each name's place in order of first appearance."""
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([place[name] for name in names], dtype=np.intp)


def mean_cosine(linked: Linked, axes: Axes) -> Array:
    """(B,) mean over prompts of the cosines of the steps' gradients."""
    return cosines(axes, linked.totals) @ prompt_weights([step.record.problem_id for step in linked.steps])


def areas(scores: Array, hacked: NDArray[np.bool_]) -> Array:
    """(B,) AUROC of every row of scores (B, P); NaN where a row has no numbers."""
    ranks = stats.rankdata(scores, axis=1, nan_policy="propagate")
    n1 = int(hacked.sum())
    return (ranks[:, hacked].sum(1) - n1 * (n1 + 1) / 2) / (n1 * (len(hacked) - n1))


def batch_label_nulls(
    linked: Linked, truth: Axes, labels: PaidLabels, num_draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """{statistic: (B,)} under N4: the direction stays, labels move within prompts."""
    found = {}
    # (S,) <u, g_i> / sqrt(M), linear in g_i; a zero gradient has no cosine, and the dot 0
    dots = np.nan_to_num(cosines(truth, linked.gradients)[0]) * linked.gradients.norm
    if linked.steps:
        moved = np.stack(
            [_permuted_advantages(linked, i, dots, num_draws, rng) for i in range(len(linked.steps))], axis=1
        )
        found["cos_in"] = moved @ prompt_weights([step.record.problem_id for step in linked.steps])
    if labels.hacked.any() and not labels.hacked.all():
        hacked = _permute_within(labels.hacked, labels.prompts, num_draws, rng)
        scores = cosines(truth, linked.gradients)[0, labels.rows]
        ranks = stats.rankdata(scores)
        n1 = int(labels.hacked.sum())
        found["auroc"] = (hacked @ ranks - n1 * (n1 + 1) / 2) / (n1 * (len(ranks) - n1))
        found["hack_difference"] = difference_weights(hacked, labels.prompts) @ scores
    return found


def _permuted_advantages(linked: Linked, index: int, dots: Array, num_draws: int, rng: np.random.Generator) -> Array:
    """(B,) cos_in of one step when its advantages are permuted among its samples; the normalisers stay."""
    step = linked.steps[index]
    own = [i for i, s in enumerate(linked.samples) if s.step == step.record.step]
    advantages = np.array([linked.samples[i].advantage for i in own])
    weights = rng.permuted(np.tile(advantages, (num_draws, 1)), axis=1) * step.unit_weights
    squared = np.einsum("bi,ij,bj->b", weights, step.gram.samples.sum(0), weights, optimize=True)
    return weights @ dots[own] / np.sqrt(np.maximum(squared, np.finfo(np.float64).tiny))


def _permute_within(
    hacked: NDArray[np.bool_], prompts: NDArray[np.intp], num_draws: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """(B, P) labels permuted among the samples of each prompt."""
    drawn = np.tile(hacked, (num_draws, 1))
    for prompt in np.unique(prompts):
        columns = np.flatnonzero(prompts == prompt)
        drawn[:, columns] = rng.permuted(drawn[:, columns], axis=1)
    return drawn


def difference_weights(hacked: NDArray[np.bool_], prompts: NDArray[np.intp]) -> Array:
    """(B, P) weights w with scores @ w = mean over prompts, which hold both labels, of mean hacked - mean clean."""
    onto = np.eye(int(prompts.max()) + 1)[prompts]  # (P, prompts)
    positive = hacked @ onto
    negative = (~hacked) @ onto
    both = (positive > 0) & (negative > 0)
    count = np.maximum(both.sum(1, keepdims=True), 1)
    share = [np.where(both, 1.0 / np.maximum(n, 1) / count, 0.0) @ onto.T for n in (positive, negative)]
    return np.where(hacked, share[0], -share[1])
