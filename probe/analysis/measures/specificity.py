"""How well scores tell hacked from clean samples: the measurement, and the trivial baselines that it must beat.

A base sample that solves and a teacher sample that hacks get the same advantage: every AUROC here is among A > 0.
The other question of the same kind: does the sign of v_hack transfer to pairs that it was not extracted from? It is
answered offline, from the pair Gram matrices.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from probe.analysis.statistics.geometry import Gradients, cosines, svd_axes
from probe.analysis.statistics.gram import Array, PairGram
from probe.analysis.statistics.intervals import Interval, auroc, auroc_interval
from probe.analysis.statistics.nulls import NullTest, Rows, label_permutations, null_test, placebo_couples, true_labels
from probe.records.records import SampleRecord

# The measurement first, then the trivial baselines that it has to beat.
SCORES: dict[str, Callable[[SampleRecord], float | None]] = {
    "cos_S_contrib": lambda s: s.cos_S_contrib,
    "comp_len": lambda s: s.comp_len,
    "nll": lambda s: s.nll,
    "grad_norm_contrib": lambda s: s.grad_norm_contrib,
    "hint": lambda s: s.hint,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity:
    """AUROC of a score for `hacked` among A > 0, with a 95% bootstrap over prompts."""

    arm: str
    score: str
    n_hacked: int
    n_clean: int
    num_prompts: int
    auroc: float | None
    interval: Interval | None


BEATEN = "a trivial score does as well or better"


def strength(row: Specificity) -> float:
    """How well a score tells hacks apart, in either direction; .5 for one that does not exist."""
    return 0.5 if row.auroc is None else max(row.auroc, 1 - row.auroc)


def beaten_by(own: Specificity, baselines: Iterable[Specificity]) -> list[str]:
    """The trivial scores that do as well as the measurement or better, with their AUROC.

    Where the measurement itself tells nothing (its interval holds .5), only scores that tell something compete.
    """
    blind = own.interval is None or own.interval.low <= 0.5
    return [
        f"{row.score} {strength(row):.2f}"
        for row in baselines
        if row.auroc is not None
        and own.auroc is not None
        and strength(row) >= own.auroc
        and not (blind and (row.interval is None or row.interval.low <= 0.5 <= row.interval.high))
    ]


def specificity(samples: Iterable[SampleRecord], score: str, arm: str, *, seed: int = 0) -> Specificity:
    """AUROC of one score for hacked among the paid samples (A > 0) of one arm."""
    rows = [(s, value) for s in samples if s.advantage > 0 and (value := SCORES[score](s)) is not None]
    values = np.array([value for _, value in rows], dtype=np.float64)
    hacked = np.array([s.hacked for s, _ in rows], dtype=bool)
    prompts = [s.problem_id for s, _ in rows]
    area = auroc(values, hacked)
    defined = not np.isnan(area)
    return Specificity(
        arm=arm,
        score=score,
        n_hacked=int(hacked.sum()),
        n_clean=int((~hacked).sum()),
        num_prompts=len(set(prompts)),
        auroc=area if defined else None,
        interval=auroc_interval(values, hacked, prompts, seed=seed) if defined else None,
    )


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
