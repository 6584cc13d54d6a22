"""Does v_hack tell hacks from clean solutions? Two answers, on samples and on pairs.

    specificity     AUROC of a sample's cosine for `hacked`, beside trivial scores (length, NLL ...) that it must beat
    sign_transfer   share of held-out pairs, which v_hack was not extracted from, whose difference points hack-ward

The AUROC is among the paid samples (A > 0): a solution by the base model and a hack by the teacher get the same
advantage there, so rewards do not tell them apart. Sign transfer is computed offline, from the pair Gram matrices.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.geometry import cosines, held_out_gradients, svd_axes
from probe.analysis.statistics.gram import PairGram
from probe.analysis.statistics.intervals import Interval, auroc, auroc_interval, clopper_pearson
from probe.analysis.statistics.nulls import NullTest, label_permutations, null_test, placebo_couples
from probe.analysis.statistics.redrawn import true_axes
from probe.records.records import SampleRecord

# The measurement first, then the trivial baselines that it has to beat. To add a baseline: a row here.
SCORES: dict[str, Callable[[SampleRecord], float | None]] = {
    "cos_S_contrib": lambda sample: sample.cos_S_contrib,
    "comp_len": lambda sample: sample.comp_len,
    "nll": lambda sample: sample.nll,
    "grad_norm_contrib": lambda sample: sample.grad_norm_contrib,
    "hint": lambda sample: sample.hint,
}
BEATEN = "a trivial score does as well or better"  # why a specificity claim is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity:
    """AUROC of one score for `hacked` among A > 0, with a 95% interval over prompts."""

    arm: str
    score: str
    n_hacked: int
    n_clean: int
    num_prompts: int
    auroc: float | None
    interval: Interval | None


def strength(row: Specificity) -> float:
    """AUROC in the better of the two directions (below .5, the opposite score is the better one); .5 without AUROC."""
    return 0.5 if row.auroc is None else max(row.auroc, 1 - row.auroc)


def beaten_by(measurement: Specificity, baselines: Iterable[Specificity]) -> list[str]:
    """The trivial scores that do as well as the measurement or better, as texts "name AUROC".

    Where the measurement is not above chance (its interval reaches .5), a baseline counts only if it differs from
    chance itself: between two scores that say nothing, the larger AUROC is noise.
    """
    if measurement.auroc is None:
        return []
    above_chance = measurement.interval is not None and measurement.interval.low > 0.5
    better = []
    for row in baselines:
        if row.auroc is None or strength(row) < measurement.auroc:
            continue
        differs = row.interval is not None and not row.interval.low <= 0.5 <= row.interval.high
        if above_chance or differs:
            better.append(f"{row.score} {strength(row):.2f}")
    return better


def specificity(samples: Iterable[SampleRecord], score: str, arm: str) -> Specificity:
    """AUROC of one score for `hacked` among the paid samples (A > 0) of one arm.

    Args:
        samples: all samples of the arm; those without the score are left out.
        score: a key of SCORES.
        arm: name of the arm, for the result.
    """
    paid: list[SampleRecord] = []
    scores: list[float] = []
    for sample in samples:
        value = SCORES[score](sample)
        if sample.advantage > 0 and value is not None:
            paid.append(sample)
            scores.append(value)
    hacked = np.array([sample.hacked for sample in paid], dtype=bool)
    prompts = [sample.problem_id for sample in paid]
    area = auroc(scores, hacked)
    defined = not np.isnan(area)
    return Specificity(
        arm=arm,
        score=score,
        n_hacked=int(hacked.sum()),
        n_clean=int((~hacked).sum()),
        num_prompts=len(set(prompts)),
        auroc=area if defined else None,
        interval=auroc_interval(scores, hacked, prompts) if defined else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTransfer:
    """How many held-out pairs have a difference that points hack-ward."""

    num_pairs: int
    num_right: int
    accuracy: float  # num_right / num_pairs
    interval: Interval  # 95% of the accuracy, exact binomial (Clopper-Pearson)
    mean_cos: float  # of the differences with v_hack


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferNull:
    """`SignTransfer` against directions without signal on the same held-out pairs."""

    accuracy: NullTest
    mean_cos: NullTest


def sign_transfer(pairs: PairGram) -> SignTransfer | None:
    """How many differences of held-out pairs have a positive cosine with v_hack; None if none has a cosine at all."""
    differences, _, _ = held_out_gradients(pairs)
    scores = cosines(true_axes(pairs), differences)[0]
    scores = scores[~np.isnan(scores)]
    if len(scores) == 0:
        return None
    num_right = int((scores > 0).sum())
    return SignTransfer(
        num_pairs=len(scores),
        num_right=num_right,
        accuracy=num_right / len(scores),
        interval=clopper_pearson(num_right, len(scores)),
        mean_cos=float(scores.mean()),
    )


def transfer_nulls(pairs: PairGram, *, num_draws: int, seed: int = 0) -> dict[str, TransferNull]:
    """Test `sign_transfer` against N2 (labels permuted across pairs) and N3 (clean-versus-clean couples).

    Returns:
        {"N2": ..., "N3": ...}. Empty without a held-out pair that has a cosine; N3 is left out where there are fewer
        couples than k.
    """
    observed = sign_transfer(pairs)
    if observed is None:
        return {}
    differences, _, _ = held_out_gradients(pairs)
    rng = np.random.default_rng(seed)
    drawn = {"N2": label_permutations(pairs.held_out, num_draws, rng)}
    couples = placebo_couples(pairs.held_out, num_draws, rng)
    if couples[0].shape[1] >= pairs.extraction.k:
        drawn["N3"] = couples
    nulls = {}
    for name, labels in drawn.items():
        scores = cosines(svd_axes(pairs, *labels, pairs.extraction), differences)
        scores = scores[~np.isnan(scores).all(1)]  # a draw that keeps no direction has none
        if len(scores) > 1:
            accuracy = (scores > 0).sum(1) / (~np.isnan(scores)).sum(1)
            nulls[name] = TransferNull(
                accuracy=null_test(observed.accuracy, accuracy, centre=0.5),
                mean_cos=null_test(observed.mean_cos, np.nanmean(scores, axis=1)),
            )
    return nulls
