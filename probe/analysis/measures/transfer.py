"""Does the sign of v_hack transfer to pairs that it was not extracted from? Offline, from the pair Gram matrices."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from probe.analysis.statistics.draws import Rows, label_permutations, placebo_couples, true_labels
from probe.analysis.statistics.geometry import Gradients, cosines, svd_axes
from probe.analysis.statistics.gram import Array, PairGram
from probe.analysis.statistics.nulls import NullTest, null_test
from probe.analysis.statistics.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTransfer:
    """Held-out pairs whose difference points hack-ward, with the exact binomial (Clopper-Pearson) 95% interval."""

    num_pairs: int
    num_right: int
    accuracy: float
    interval: Interval
    mean_cos: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferNull:
    """What directions without signal reach on the same held-out pairs."""

    accuracy: NullTest
    mean_cos: NullTest


def sign_transfer(pairs: PairGram) -> SignTransfer | None:
    """Cosines of the held-out differences with v_hack; None without a held-out pair that has one."""
    scores = _held_out_cosines(pairs, true_labels(pairs.held_out))[0]
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


def transfer_nulls(pairs: PairGram, *, num_draws: int, seed: int = 0) -> dict[str, TransferNull]:
    """`sign_transfer` against N2 (labels permuted across pairs) and N3 (clean-versus-clean couples), by null.

    Empty without a held-out pair that has a cosine; N3 is left out where there are fewer couples than k.
    """
    observed = sign_transfer(pairs)
    if observed is None:
        return {}
    rng = np.random.default_rng(seed)
    drawn = {"N2": label_permutations(pairs.held_out, num_draws, rng)}
    couples = placebo_couples(pairs.held_out, num_draws, rng)
    if couples[0].shape[1] >= pairs.extraction.k:
        drawn["N3"] = couples
    found = {}
    for name, labels in drawn.items():
        scores = _held_out_cosines(pairs, labels)
        scores = scores[~np.isnan(scores).all(1)]  # a draw that keeps no direction has none
        if len(scores) > 1:
            accuracy = (scores > 0).sum(1) / (~np.isnan(scores)).sum(1)
            found[name] = TransferNull(
                accuracy=null_test(observed.accuracy, accuracy, centre=0.5),
                mean_cos=null_test(observed.mean_cos, np.nanmean(scores, axis=1)),
            )
    return found


def _held_out_cosines(pairs: PairGram, labels: tuple[Rows, Rows]) -> Array:
    """(B, h) cosines of the held-out differences with the directions of every draw of the labels."""
    held_out = np.flatnonzero(pairs.held_out)
    differences = pairs.pairs[:, held_out] - pairs.pairs[:, held_out + len(pairs.held_out)]  # (M, h, N)
    own = np.arange(len(held_out))
    squared = differences[:, own, held_out] - differences[:, own, held_out + len(pairs.held_out)]
    gradients = Gradients(inner=differences, norms=np.sqrt(np.maximum(squared, 0.0)))
    return cosines(svd_axes(pairs, *labels, pairs.extraction), gradients)
