"""Does the sign of v_hack transfer to pairs that it was not extracted from? Offline, from the pair Gram matrices."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from probe.analysis.draws import true_labels
from probe.analysis.geometry import Gradients, cosines, svd_axes
from probe.analysis.gram import PairGram
from probe.analysis.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTransfer:
    """Held-out pairs whose difference points hack-ward, with the exact binomial (Clopper-Pearson) 95% interval."""

    num_pairs: int
    num_right: int
    accuracy: float
    interval: Interval
    mean_cos: float


def sign_transfer(pairs: PairGram) -> SignTransfer | None:
    """Cosines of the held-out differences with v_hack; None without a held-out pair that has one."""
    held_out = np.flatnonzero(pairs.held_out)
    differences = pairs.pairs[:, held_out] - pairs.pairs[:, held_out + len(pairs.held_out)]  # (M, h, N)
    own = np.arange(len(held_out))
    squared = differences[:, own, held_out] - differences[:, own, held_out + len(pairs.held_out)]
    gradients = Gradients(inner=differences, norms=np.sqrt(np.maximum(squared, 0.0)))
    scores = cosines(svd_axes(pairs, *true_labels(pairs.held_out), pairs.extraction), gradients)[0]
    scores = scores[~np.isnan(scores)]
    if len(scores) == 0:
        return None
    right = int((scores > 0).sum())
    low, high = stats.binomtest(right, len(scores)).proportion_ci(0.95)
    return SignTransfer(
        num_pairs=len(scores),
        num_right=right,
        accuracy=right / len(scores),
        interval=Interval(low=float(low), high=float(high)),
        mean_cos=float(scores.mean()),
    )
