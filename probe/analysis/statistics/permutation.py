"""Compare the statistics of one run with their distribution under N2: directions of pairs with permuted labels.

    cos_in    mean over prompts of the global signed cosine of the policy gradient
    auroc     AUROC of cos_S_contrib for hacked among the rewarded (A > 0)

To add a statistic, compute it in `_statistics` and give the centre of its null in CENTRES.
Shapes: B draws, S samples of a run, P rewarded samples, T steps, G samples of a step, M modules.
"""

import numpy as np
from numpy.typing import NDArray

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.geometry import Axes, along_modules, cosines, mean_module_unit
from probe.analysis.statistics.intervals import Array, auroc, prompt_weights
from probe.analysis.statistics.nulls import NUM_REDRAWN, can_be_halved, null_test, redrawn, true_axes
from probe.analysis.statistics.run_gradients import Linked

CHUNK = 1 << 20  # scores ranked at once
N2 = "permuted pairs"  # appears in the names of estimates
# The null's point of symmetry for each statistic; both tails of its test start there.
CENTRES = {"cos_in": 0.0, "auroc": 0.5}


def rewarded_labels(linked: Linked) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the (P,) indices of the rewarded samples that have a gradient and a reliable label, and who hacks."""
    rows = []
    for i, sample in enumerate(linked.samples):
        if sample.advantage > 0 and sample.cos_S_nll is not None and sample.sure:
            rows.append(i)
    return np.array(rows, dtype=np.intp), np.array([linked.samples[i].hacked for i in rows], dtype=bool)


def _statistics(linked: Linked, axes: Axes) -> dict[str, Array]:
    """Return {statistic: (B,)} along axes drawn B times, without the statistics that the run cannot measure."""
    statistics = {}
    if linked.steps:
        statistics["cos_in"] = cosines(axes, linked.totals) @ prompt_weights(linked.prompts)
    rows, hacked = rewarded_labels(linked)
    if hacked.any() and not hacked.all():
        scores = linked.sample_cosines(axes, rows)  # A > 0: cos_S_contrib = cos_S_nll
        parts = np.array_split(scores, 1 + scores.size // CHUNK)
        statistics["auroc"] = np.concatenate([auroc(part, hacked) for part in parts])
    return statistics


def permutation_nulls(linked: Linked, arm: str, *, seed: int = 0) -> list[Estimate]:
    """Return one estimate per statistic of an arm along v_hack, under B relabelled sets of at least two pairs."""
    if not can_be_halved(linked.pairs):
        return []
    axes = true_axes(linked.pairs), redrawn(linked.pairs, NUM_REDRAWN, seed)[1].axes()
    observed, draws = (_statistics(linked, one) for one in axes)
    rows = []
    for name, values in draws.items():
        # A draw that keeps no direction has no statistic.
        finite = values[np.isfinite(values)]
        rows.append(null_test(f"{name}, {N2}", float(observed[name][0]), finite, centre=CENTRES[name], arm=arm))
    return rows


def module_cosines(linked: Linked, arm: str, *, seed: int = 0) -> list[Estimate]:
    """Return each module's mean cosine over prompts, if it keeps a direction, with z of N2; largest |z| first."""
    truth = true_axes(linked.pairs)
    kept = np.flatnonzero(truth.kept[0])
    if not linked.steps or not len(kept) or not can_be_halved(linked.pairs):
        return []
    permuted = redrawn(linked.pairs, NUM_REDRAWN, seed)[1].axes()
    # Mean over prompts of each module's gradient; a step without a gradient in the module counts as 0.
    means = mean_module_unit(linked.totals, prompt_weights(linked.prompts))
    observed, draws = (along_modules(axes, means)[:, kept] for axes in (truth, permuted))
    sd = np.sqrt(np.square(draws).mean(0))
    z = observed[0] / np.where(sd > 0, sd, np.inf)
    count = len({*linked.prompts})
    rows = []
    for i in np.argsort(-np.abs(z), kind="stable"):
        name, parts = linked.pairs.modules[kept[i]], {"z": float(z[i])}
        rows.append(
            Estimate(name=name, value=float(observed[0, i]), n=count, unit="prompt", arm=arm, null=0.0, parts=parts)
        )
    return rows
