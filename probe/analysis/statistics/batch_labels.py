"""Statistics of a batch that depend on its labels, and N4, which permutes those labels within prompts.

Labels of a sample: its advantage (for cos_in) and whether it hacked (for the AUROC and the within-prompt difference,
both among the paid samples, A > 0). N4 is a null of the latter two and a diagnostic of cos_in: an axis along which paid
samples differ from unpaid ones moves cos_in as well, hack-ward or not. The directions stay as they are under N4; the
nulls that draw directions are in `probe.analysis.statistics.permutation`.

Shapes: B draws, S samples of a run, P paid samples (A > 0), T steps, G samples of a step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from probe.analysis.statistics.geometry import Axes, along, mean_unit
from probe.analysis.statistics.gram import Array
from probe.analysis.statistics.intervals import cluster_numbers, prompt_weights
from probe.analysis.statistics.run_gradients import Linked, LinkedStep

CHUNK = 1 << 20  # how many scores are ranked at once


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
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    return along(axes, mean_unit(linked.totals, weights))


def areas(scores: Array, hacked: NDArray[np.bool_]) -> Array:
    """(B,) `intervals.auroc` of every row of scores (B, P) for hacked (P,); NaN where a row has no numbers."""
    n1 = int(hacked.sum())
    sums = []
    size = max(1, CHUNK // len(hacked))
    for start in range(0, len(scores), size):
        ranks = stats.rankdata(scores[start : start + size], axis=1, nan_policy="propagate")
        sums.append(ranks[:, hacked].sum(1))
    return (np.concatenate(sums) - n1 * (n1 + 1) / 2) / (n1 * (len(hacked) - n1))


def difference_weights(hacked: NDArray[np.bool_], prompts: NDArray[np.intp]) -> Array:
    """Weights w (P,) with which a sum over samples is the mean within-prompt difference, hacked minus clean.

    scores @ w = mean over the prompts that hold both labels of (mean of its hacked - mean of its clean scores).

    Args:
        hacked: (P,) labels of the samples.
        prompts: (P,) number of each sample's prompt.
    """
    as_hacked, as_clean = _difference_shares(hacked, prompts)
    return np.where(hacked, as_hacked, -as_clean)


def _difference_shares(hacked: NDArray[np.bool_], prompts: NDArray[np.intp]) -> tuple[Array, Array]:
    """(P,) what a sample counts in the mean within-prompt difference if it hacks, and (P,) if it is clean."""
    num_hacked = np.bincount(prompts, weights=hacked)
    num_clean = np.bincount(prompts, weights=~hacked)
    both = (num_hacked > 0) & (num_clean > 0)
    share = both / max(int(both.sum()), 1)
    return (share / np.maximum(num_hacked, 1))[prompts], (share / np.maximum(num_clean, 1))[prompts]


def batch_label_nulls(linked: Linked, labels: PaidLabels, num_draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draw N4.

    Args:
        linked: records and inner products of one arm.
        labels: the paid samples of `linked`.
        num_draws: B.
        rng: is advanced; the statistics draw from it in the order below.

    Returns:
        {statistic: (B,)} of those that the run can measure: cos_in, auroc, hack_difference.
    """
    nulls = {}
    # (S,) <u, g_i> / sqrt(M). Dots add up over samples where cosines do not; a zero gradient has no cosine, and dot 0.
    dots = np.nan_to_num(linked.cosines) * linked.norms
    if linked.steps:
        weights = prompt_weights([step.record.problem_id for step in linked.steps])
        nulls["cos_in"] = np.zeros(num_draws)
        for step, weight in zip(linked.steps, weights, strict=True):
            nulls["cos_in"] += weight * _permuted_advantages(linked, step, dots, num_draws, rng)
    if labels.both_sides:
        hacked = _permute_within(labels.hacked, labels.prompts, num_draws, rng)
        scores = linked.cosines[labels.rows]
        # The scores stay, so they are ranked once: AUROC is linear in the labels given the ranks.
        ranks = stats.rankdata(scores)
        n1 = int(labels.hacked.sum())
        nulls["auroc"] = (hacked @ ranks - n1 * (n1 + 1) / 2) / (n1 * (len(ranks) - n1))
        # As many samples of a prompt hack in every draw, so that the two weights of its samples stay as well.
        as_hacked, as_clean = _difference_shares(labels.hacked, labels.prompts)
        nulls["hack_difference"] = hacked @ ((as_hacked + as_clean) * scores) - as_clean @ scores
    return nulls


def _permuted_advantages(
    linked: Linked, step: LinkedStep, dots: Array, num_draws: int, rng: np.random.Generator
) -> Array:
    """(B,) cos_in of one step when its advantages are permuted among its samples; the weights w_i stay."""
    advantages = np.array([linked.samples[i].advantage for i in step.rows])
    weights = rng.permuted(np.tile(advantages, (num_draws, 1)), axis=1) * step.unit_weights
    squared = np.einsum("bi,bi->b", weights @ step.products, weights)
    return weights @ dots[step.rows] / np.sqrt(np.maximum(squared, np.finfo(np.float64).tiny))


def _permute_within(
    hacked: NDArray[np.bool_], prompts: NDArray[np.intp], num_draws: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """(B, P) labels permuted among the samples of each prompt."""
    drawn = np.tile(hacked, (num_draws, 1))
    for prompt in np.unique(prompts):
        columns = np.flatnonzero(prompts == prompt)
        drawn[:, columns] = rng.permuted(drawn[:, columns], axis=1)
    return drawn
