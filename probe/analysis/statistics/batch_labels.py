"""Statistics of a batch that depend on its labels, and the null N4, which permutes those labels within prompts.

Labels of a sample: its advantage (for cos_in) and whether it hacked (for the AUROC and the within-prompt difference,
both among the paid samples, A > 0). The directions stay as they are under N4; the nulls that draw directions are in
`probe.analysis.statistics.permutation`.

Shapes: B draws, S samples of a run, P paid samples (A > 0), T steps, G samples of a step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from probe.analysis.statistics.geometry import Axes, cosines
from probe.analysis.statistics.gram import Array
from probe.analysis.statistics.intervals import cluster_numbers, prompt_weights
from probe.analysis.statistics.run_gradients import Linked


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLabels:
    """The paid samples (A > 0) of a run and their labels."""

    rows: NDArray[np.intp]  # (P,) indices among the S samples
    hacked: NDArray[np.bool_]  # (P,)
    prompts: NDArray[np.intp]  # (P,) number of the prompt

    @property
    def both_sides(self) -> bool:
        """Whether there are hacked and clean samples to compare."""
        return bool(self.hacked.any() and not self.hacked.all())


def paid_labels(linked: Linked) -> PaidLabels:
    """The paid samples that have a gradient and labels that are sure."""
    rows = []
    for i, sample in enumerate(linked.samples):
        if sample.advantage > 0 and sample.cos_S_nll is not None and sample.sure:
            rows.append(i)
    return PaidLabels(
        rows=np.array(rows, dtype=np.intp),
        hacked=np.array([linked.samples[i].hacked for i in rows], dtype=bool),
        prompts=cluster_numbers([linked.samples[i].problem_id for i in rows]),
    )


def mean_cosine(linked: Linked, axes: Axes) -> Array:
    """(B,) mean over prompts of the cosines of the steps' gradients."""
    return cosines(axes, linked.totals) @ prompt_weights([step.record.problem_id for step in linked.steps])


def areas(scores: Array, hacked: NDArray[np.bool_]) -> Array:
    """(B,) `intervals.auroc` of every row of scores (B, P) for hacked (P,); NaN where a row has no numbers."""
    ranks = stats.rankdata(scores, axis=1, nan_policy="propagate")
    n1 = int(hacked.sum())
    return (ranks[:, hacked].sum(1) - n1 * (n1 + 1) / 2) / (n1 * (len(hacked) - n1))


def difference_weights(hacked: NDArray[np.bool_], prompts: NDArray[np.intp]) -> Array:
    """Weights w (B, P) with which a sum over samples is the mean within-prompt difference, hacked minus clean.

    scores @ w[b] = mean over the prompts that hold both labels of (mean of its hacked - mean of its clean scores). A
    matrix product gives the difference for B labelings, or B directions, at once.

    Args:
        hacked: (B, P) B labelings of the samples.
        prompts: (P,) number of each sample's prompt.
    """
    onto = np.eye(int(prompts.max()) + 1)[prompts]  # (P, prompts) indicator
    num_hacked = hacked @ onto  # (B, prompts)
    num_clean = (~hacked) @ onto
    both = (num_hacked > 0) & (num_clean > 0)
    num_prompts = np.maximum(both.sum(1, keepdims=True), 1)
    hacked_share = np.where(both, 1.0 / np.maximum(num_hacked, 1) / num_prompts, 0.0) @ onto.T
    clean_share = np.where(both, 1.0 / np.maximum(num_clean, 1) / num_prompts, 0.0) @ onto.T
    return np.where(hacked, hacked_share, -clean_share)


def batch_label_nulls(
    linked: Linked, truth: Axes, labels: PaidLabels, num_draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Draw the null N4.

    Args:
        linked: records and inner products of one arm.
        truth: the axes of v_hack, as a single draw.
        labels: the paid samples of `linked`.
        num_draws: B.
        rng: is advanced; the statistics draw from it in the order below.

    Returns:
        {statistic: (B,)} of those that the run can measure: cos_in, auroc, hack_difference.
    """
    nulls = {}
    # (S,) <u, g_i> / sqrt(M). Dots add up over samples where cosines do not; a zero gradient has no cosine, and dot 0.
    dots = np.nan_to_num(cosines(truth, linked.gradients)[0]) * linked.gradients.norm
    if linked.steps:
        by_step = [_permuted_advantages(linked, i, dots, num_draws, rng) for i in range(len(linked.steps))]
        weights = prompt_weights([step.record.problem_id for step in linked.steps])
        nulls["cos_in"] = np.stack(by_step, axis=1) @ weights
    if labels.both_sides:
        hacked = _permute_within(labels.hacked, labels.prompts, num_draws, rng)
        scores = cosines(truth, linked.gradients)[0, labels.rows]
        # The scores stay, so they are ranked once: AUROC is linear in the labels given the ranks.
        ranks = stats.rankdata(scores)
        n1 = int(labels.hacked.sum())
        nulls["auroc"] = (hacked @ ranks - n1 * (n1 + 1) / 2) / (n1 * (len(ranks) - n1))
        nulls["hack_difference"] = difference_weights(hacked, labels.prompts) @ scores
    return nulls


def _permuted_advantages(linked: Linked, index: int, dots: Array, num_draws: int, rng: np.random.Generator) -> Array:
    """(B,) cos_in of one step when its advantages are permuted among its samples; the weights w_i stay."""
    step = linked.steps[index]
    rows = [i for i, sample in enumerate(linked.samples) if sample.step == step.record.step]
    advantages = np.array([linked.samples[i].advantage for i in rows])
    weights = rng.permuted(np.tile(advantages, (num_draws, 1)), axis=1) * step.unit_weights
    squared = np.einsum("bi,ij,bj->b", weights, step.gram.samples.sum(0), weights, optimize=True)
    return weights @ dots[rows] / np.sqrt(np.maximum(squared, np.finfo(np.float64).tiny))


def _permute_within(
    hacked: NDArray[np.bool_], prompts: NDArray[np.intp], num_draws: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """(B, P) labels permuted among the samples of each prompt."""
    drawn = np.tile(hacked, (num_draws, 1))
    for prompt in np.unique(prompts):
        columns = np.flatnonzero(prompts == prompt)
        drawn[:, columns] = rng.permuted(drawn[:, columns], axis=1)
    return drawn
