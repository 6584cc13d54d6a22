"""Compare the statistics of one run with their distribution under the nulls N2, N3 and N4.

    cos_in           mean over prompts of the global signed cosine of the policy gradient
    hack_difference  mean within-prompt difference of cos_S_contrib, hacked minus clean, among the paid (A > 0)
    auroc            AUROC of cos_S_contrib for hacked among the paid

N2 and N3 relabel the pair gradients and extract new DIRECTIONS in every draw: N2 permutes the labels across all pairs,
N3 takes couples of clean completions. N4 keeps the directions and permutes the labels of the batch within prompts:
the advantages for cos_in, `hacked` for the other two. For those it is a null. For cos_in it is a DIAGNOSTIC, what is
left of the cosine when rewards fall on other samples, and no null: where being paid has an axis of its own, a third to
two thirds of runs leave it without anything hack-ward (the level is 5%).

To add a statistic: compute it in `_statistics` (and in `_batch_label_nulls` if the batch's labels enter it) and give
the centre of its null in CENTRES. To add a null: draw its axes in `probe.analysis.statistics.nulls`.

Shapes: B draws, S samples of a run, P paid samples, T steps, G samples of a step, M modules.
"""

import copy
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.geometry import (
    Axes,
    along,
    along_modules,
    mean_module_unit,
    mean_unit,
)
from probe.analysis.statistics.intervals import Array, auroc, cluster_numbers, prompt_weights
from probe.analysis.statistics.nulls import NullTest, null_axes, null_test, true_axes
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.statistics.significance import max_t

NUM_DRAWS = 999
CHUNK = 1 << 20  # how many scores are ranked at once
# One entry: axes are B x M x N numbers, and the runs that are analysed together mostly share their pairs.
_null_axes = lru_cache(maxsize=1)(null_axes)
# Where the null of each statistic is symmetric: both tails of its test are measured from there.
CENTRES = {"cos_in": 0.0, "hack_difference": 0.0, "auroc": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class NullRow:
    """One observed statistic and its test under one null."""

    metric: str  # a key of CENTRES
    null: str  # N2 | N3 | N4
    value: float
    test: NullTest

    @property
    def diagnostic(self) -> bool:
        """Whether this is no null of the statistic: rewards permuted under a cosine of the update."""
        return (self.metric, self.null) == ("cos_in", "N4")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """Mean over prompts of the policy gradient's cosine in one module, against N2."""

    module: str
    mean_cos: float
    z: float
    p_max_t: float  # adjusted for all modules (max-T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """The permutation nulls of one arm of a run."""

    rows: list[NullRow]
    modules: list[ModuleRow]
    modules_critical_z: float | None  # |z| beyond it has p_max_t < .05; None: no modules, or too few draws

    def get(self, metric: str, null: str) -> NullTest | None:
        """The test of a statistic under a null; None where the run cannot measure it."""
        return next((row.test for row in self.rows if (row.metric, row.null) == (metric, null)), None)


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


def permutation_nulls(linked: Linked, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Permutation:
    """Evaluate every null of one arm that measures along v_hack.

    Args:
        linked: records and inner products.
        num_draws: B of each null.
        seed: of all draws.
    """
    labels, axes, truth = paid_labels(linked), _null_axes(linked.pairs, num_draws, seed), true_axes(linked.pairs)
    observed = _statistics(linked, truth, labels)
    draws = {"N2": _statistics(linked, axes.permuted, labels)}
    if axes.couples is not None:
        draws["N3"] = _statistics(linked, axes.couples, labels)
    draws["N4"] = _batch_label_nulls(linked, labels, num_draws, copy.deepcopy(axes.drawn))
    rows = []
    for null, statistics in draws.items():
        for metric, values in statistics.items():
            if metric in observed:
                value = float(observed[metric][0])
                finite = values[np.isfinite(values)]  # a draw that keeps no direction at all has no statistic
                test = null_test(value, finite, centre=CENTRES[metric])
                rows.append(NullRow(metric=metric, null=null, value=value, test=test))
    modules, critical = _module_rows(linked, truth, axes.permuted)
    return Permutation(rows=rows, modules=modules, modules_critical_z=critical)


def _statistics(linked: Linked, axes: Axes, labels: PaidLabels) -> dict[str, Array]:
    """{statistic: (B,)} along axes drawn B times; statistics that the run cannot measure are left out."""
    statistics = {}
    if linked.steps:
        # The mean over prompts of the cosines of the steps' gradients.
        statistics["cos_in"] = along(axes, mean_unit(linked.totals, prompt_weights(linked.prompts)))
    if labels.both_sides:
        scores = linked.sample_cosines(axes, labels.rows)  # A > 0: cos_S_contrib = cos_S_nll
        parts = np.array_split(scores, 1 + scores.size // CHUNK)
        statistics["auroc"] = np.concatenate([auroc(part, labels.hacked) for part in parts])
        as_hacked, as_clean = _difference_shares(labels.hacked, labels.prompts)
        weights = np.where(labels.hacked, as_hacked, -as_clean)
        if weights.any():
            statistics["hack_difference"] = scores @ weights
    return statistics


def _difference_shares(hacked: NDArray[np.bool_], prompts: NDArray[np.intp]) -> tuple[Array, Array]:
    """(P,) what a sample counts in the mean within-prompt difference if it hacks, and (P,) minus that if it is clean.

    sum over hacked of its scores - sum over clean of theirs, so weighted, is the mean over the prompts that hold both
    labels of (mean of its hacked - mean of its clean scores).
    """
    num_hacked = np.bincount(prompts, weights=hacked)
    num_clean = np.bincount(prompts, weights=~hacked)
    both = (num_hacked > 0) & (num_clean > 0)
    share = both / max(int(both.sum()), 1)
    return (share / np.maximum(num_hacked, 1))[prompts], (share / np.maximum(num_clean, 1))[prompts]


def _batch_label_nulls(
    linked: Linked, labels: PaidLabels, num_draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """N4: {statistic: (B,)} of those that the run can measure; `rng` is advanced in the order below."""
    nulls = {}
    # (S,) <u, g_i> / sqrt(M). Dots add up over samples where cosines do not; a zero gradient has no cosine, and dot 0.
    dots = np.nan_to_num(linked.cosines) * linked.norms
    if linked.steps:
        nulls["cos_in"] = np.zeros(num_draws)
    for step, share in zip(linked.steps, prompt_weights(linked.prompts), strict=True):
        # The advantages of the step are permuted among its samples; the weights w_i stay.
        advantages = np.array([linked.samples[i].advantage for i in step.rows])
        weights = rng.permuted(np.tile(advantages, (num_draws, 1)), axis=1) * step.unit_weights
        squared = np.einsum("bi,bi->b", weights @ step.products, weights)
        cosine = weights @ dots[step.rows] / np.sqrt(np.maximum(squared, np.finfo(np.float64).tiny))
        nulls["cos_in"] += share * cosine
    if labels.both_sides:
        hacked = np.tile(labels.hacked, (num_draws, 1))
        for prompt in np.unique(labels.prompts):
            columns = np.flatnonzero(labels.prompts == prompt)
            hacked[:, columns] = rng.permuted(hacked[:, columns], axis=1)
        scores = linked.cosines[labels.rows]
        nulls["auroc"] = auroc(scores, hacked)
        # As many samples of a prompt hack in every draw, so that the two weights of its samples stay as well.
        as_hacked, as_clean = _difference_shares(labels.hacked, labels.prompts)
        nulls["hack_difference"] = hacked @ ((as_hacked + as_clean) * scores) - as_clean @ scores
    return nulls


def _module_rows(linked: Linked, truth: Axes, permuted: Axes) -> tuple[list[ModuleRow], float | None]:
    """One row per module that keeps a direction, and the critical |z| of max-T; ([], None) without steps or modules."""
    kept = np.flatnonzero(truth.kept[0])
    if not linked.steps or not len(kept):
        return [], None
    # Mean over prompts of each module's gradient; a step without a gradient there counts as 0.
    means = mean_module_unit(linked.totals, prompt_weights(linked.prompts))
    observed = along_modules(truth, means)[0, kept]
    z, p, critical = max_t(observed, along_modules(permuted, means)[:, kept])
    rows = []
    for i, m in enumerate(kept):
        name = linked.pairs.modules[m]
        rows.append(ModuleRow(module=name, mean_cos=float(observed[i]), z=float(z[i]), p_max_t=float(p[i])))
    return rows, critical if math.isfinite(critical) else None
