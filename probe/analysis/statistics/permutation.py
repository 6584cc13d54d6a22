"""The nulls N2, N3 and N4 of one run, each the distribution of the same statistics as those observed.

    cos_in           mean over prompts of the global signed cosine of the policy gradient
    cos_in_mean      the same along the direction of the mean pair difference (its exact null: pair swaps)
    hack_difference  mean within-prompt difference of cos_S_contrib, hacked minus clean, among A > 0
    auroc            AUROC of cos_S_contrib for hacked among A > 0

N2 permutes the labels of the pair gradients, N3 extracts from clean-versus-clean couples, "pair-swap" swaps within
pairs; each draws the DIRECTIONS anew. N4 keeps the direction and permutes the labels of the batch within prompts: the
advantages for cos_in, `hacked` for the other two.

Shapes: B draws, S samples, T steps, M modules, G samples of a step.
"""

import math
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.batch_labels import (
    PaidLabels,
    areas,
    batch_label_nulls,
    difference_weights,
    mean_cosine,
    paid_labels,
)
from probe.analysis.statistics.geometry import Axes, cosines, mean_axes, module_cosines, svd_axes
from probe.analysis.statistics.gram import Array
from probe.analysis.statistics.intervals import prompt_means, prompt_weights
from probe.analysis.statistics.nulls import (
    NullTest,
    label_permutations,
    null_test,
    pair_swaps,
    placebo_couples,
    true_labels,
)
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.statistics.significance import max_t
from probe.analysis.statistics.thresholds import ALPHA

NUM_DRAWS = 999
CENTRES = {"cos_in": 0.0, "cos_in_mean": 0.0, "hack_difference": 0.0, "auroc": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class NullRow:
    """One statistic under one null."""

    metric: str
    null: str  # N2 | N3 | N4 | pair-swap
    value: float
    test: NullTest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """Mean cosine of the policy gradient in one module, over prompts, against N2; `p_max_t` holds over all modules."""

    module: str
    mean_cos: float
    z: float
    p_max_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """All draws of one run, summarised."""

    rows: list[NullRow]
    modules: list[ModuleRow]
    modules_critical_z: float | None  # |z| beyond it has p_max_t < .05; None: no modules, or too few draws
    excess: dict[str, float]  # {prompt: d_p}, cos_in of a prompt minus its mean under N2

    def get(self, metric: str, null: str) -> NullTest | None:
        """The test of a statistic under a null, None where it was not measurable."""
        return next((row.test for row in self.rows if (row.metric, row.null) == (metric, null)), None)


def permutation_nulls(linked: Linked, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Permutation:
    """Evaluate every null of one arm that measures along v_hack.

    Args:
        linked: records and inner products.
        num_draws: B of each null.
        seed: of all draws.
    """
    rng = np.random.default_rng(seed)
    pairs, how = linked.pairs, linked.pairs.extraction
    held_out, labels = pairs.held_out, paid_labels(linked)
    truth = svd_axes(pairs, *true_labels(held_out), how)
    permuted = svd_axes(pairs, *label_permutations(held_out, num_draws, rng), how)
    couples = placebo_couples(held_out, num_draws, rng)
    drawn = {"N2": permuted}
    if couples[0].shape[1] >= how.k:
        drawn["N3"] = svd_axes(pairs, *couples, how)
    observed = _statistics(linked, truth, labels)
    draws = {name: _statistics(linked, axes, labels) for name, axes in drawn.items()}
    draws["N4"] = batch_label_nulls(linked, truth, labels, num_draws, rng)
    by_module, critical = _module_rows(linked, truth, permuted)
    mean_direction = mean_axes(pairs, *true_labels(held_out))
    swapped = mean_axes(pairs, *pair_swaps(held_out, num_draws, rng))
    if linked.steps:
        observed["cos_in_mean"] = mean_cosine(linked, mean_direction)
        draws["pair-swap"] = {"cos_in_mean": mean_cosine(linked, swapped)}
    return Permutation(
        rows=[
            NullRow(metric=name, null=null, value=float(observed[name][0]), test=_test(observed, values, name))
            for null, of_null in draws.items()
            for name, values in of_null.items()
            if name in observed
        ],
        modules=by_module,
        modules_critical_z=critical,
        excess=_excess(linked, truth),
    )


def _test(observed: dict[str, Array], draws: Array, name: str) -> NullTest:
    finite = draws[np.isfinite(draws)]  # a draw that keeps no direction at all has no statistic
    return null_test(float(observed[name][0]), finite, centre=CENTRES[name])


def _statistics(linked: Linked, axes: Axes, labels: PaidLabels) -> dict[str, Array]:
    """{statistic: (B,)} for directions drawn B times; those that the run cannot measure are left out."""
    found = {}
    if linked.steps:
        found["cos_in"] = mean_cosine(linked, axes)
    if labels.hacked.any() and not labels.hacked.all():
        scores = cosines(axes, linked.gradients)[:, labels.rows]  # A > 0: cos_S_contrib = cos_S_nll
        found["auroc"] = areas(scores, labels.hacked)
        weights = difference_weights(labels.hacked[None, :], labels.prompts)[0]
        if weights.any():
            found["hack_difference"] = scores @ weights
    return found


def _module_rows(linked: Linked, truth: Axes, permuted: Axes) -> tuple[list[ModuleRow], float | None]:
    """The map over modules, mean over prompts of the module's cosine against N2, and the critical z of max-T."""
    kept = np.flatnonzero(truth.kept[0])
    if not linked.steps or not len(kept):
        return [], None
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    observed, draws = (
        np.einsum("bsm,s->bm", np.nan_to_num(module_cosines(axes, linked.totals)), weights)[:, kept]
        for axes in (truth, permuted)
    )
    adjusted = max_t(observed[0], draws, alpha=ALPHA)
    rows = [
        ModuleRow(module=linked.pairs.modules[m], mean_cos=float(value), z=float(z), p_max_t=float(p))
        for m, value, z, p in zip(kept, observed[0], adjusted.z, adjusted.p, strict=True)
    ]
    return rows, adjusted.critical if math.isfinite(adjusted.critical) else None


def _excess(linked: Linked, truth: Axes) -> dict[str, float]:
    """{prompt: d_p}: the prompt's cosine minus its mean under N2, which is 0 and needs no draw.

    The permutation that exchanges the two halves of another is as likely, and turns D and with it every oriented
    direction around: the law of every cosine is symmetric. A mean over draws would add their noise to every prompt.
    """
    if not linked.steps:
        return {}
    prompts = [step.record.problem_id for step in linked.steps]
    return {
        str(name): value for name, value in prompt_means(cosines(truth, linked.totals)[0].tolist(), prompts).items()
    }
