"""What the run would have measured with another k (number of directions per module), computed offline.

    settings(linked)                one row per k: the cosines and the AUROC along v_hack of that k
    gate_all(directions, gradients) measures of `probe.step.projection` before and after the one-sided gate

Both work on the inner products of a run, without gradients. The rows show whether the conclusions hang on the choice of
k; picking k by them would use up the data that the conclusions rest on.
Shapes: M modules, k directions, N pair gradients, S gradients.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.batch_labels import paid_labels
from probe.analysis.statistics.geometry import Axes, DirectionDraws, Gradients, concatenated, extract, ratio
from probe.analysis.statistics.gram import Array, PairGram
from probe.analysis.statistics.intervals import auroc, prompt_weights
from probe.analysis.statistics.nulls import true_labels
from probe.analysis.statistics.run_gradients import Linked
from probe.settings.gate import GATES

# Values of k to try.
GRID = (1, 2, 4, 8, 16)
# A remainder below ROUNDING * norm(g) is rounding and no gradient: the same bound as in `probe.step.projection`.
ROUNDING = 16 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherK:
    """Measures for one k, with the tau and noise floor of the run: means over prompts, None without a measurement."""

    k: int
    chosen: bool  # the k of the run
    num_directions: int  # kept over all modules
    cos_in: float | None
    cos_out: float | None
    hackward_frac_in: float | None
    auroc: float | None  # of cos_S_contrib for hacked among A > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """Measures of S gradients before (in) and after (out) the gate, each (S,); NaN for a gradient that is zero."""

    cos_in: Array
    cos_out: Array
    hackward_frac_in: Array


def settings(linked: Linked) -> list[OtherK]:
    """One row per k of GRID that the pairs, their modules and the method allow, and one for the run's k."""
    labels = paid_labels(linked)
    extracted, axes = _extracted(linked.pairs)
    scores = linked.sample_cosines(axes, labels.rows)
    rows = []
    for (k, directions), k_scores in zip(extracted.items(), scores, strict=True):
        rows.append(_setting(linked, k, directions, auroc(k_scores, labels.hacked)))
    return rows


@lru_cache(maxsize=1)
def _extracted(pairs: PairGram) -> tuple[dict[int, DirectionDraws], Axes]:
    """({k: v_hack of that k}, the axes of all k as if they were draws: one pass over the samples does for all)."""
    ks = sorted({k for k in GRID if k <= pairs.most_directions} | {pairs.extraction.k})
    labels = true_labels(pairs.held_out)
    extracted = {k: extract(pairs, *labels, replace(pairs.extraction, k=k)) for k in ks}
    return extracted, concatenated([directions.axes() for directions in extracted.values()])


def _setting(linked: Linked, k: int, directions: DirectionDraws, area: float) -> OtherK:
    """Measure the steps along v_hack of another k before and after a one-sided gate; area: the samples' AUROC."""
    gated = gate_all(directions, linked.totals)
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    return OtherK(
        k=k,
        chosen=k == linked.pairs.extraction.k,
        num_directions=int(directions.kept.sum()),
        cos_in=_prompt_mean(gated.cos_in, weights),
        cos_out=_prompt_mean(gated.cos_out, weights),
        hackward_frac_in=_prompt_mean(gated.hackward_frac_in, weights),
        auroc=None if np.isnan(area) else area,
    )


def _prompt_mean(values: Array, weights: Array) -> float | None:
    """Mean over prompts of values (T,), with the `prompt_weights` of the T steps; None without steps."""
    return float(values @ weights) if len(weights) else None


def gate_all(directions: DirectionDraws, gradients: Gradients) -> Gated:
    """The measures of every gradient before and after the one-sided gate, for the first draw of the directions.

    V has orthonormal rows, so c = V g and the norm of g are enough to know what is left after the gate: per module,
    c' = c - relu(c) and norm(g')^2 = norm(g)^2 - |c|^2 + |c'|^2.

    Args:
        directions: V of every module; only draw 0 is used.
        gradients: what the gate is applied to.
    """
    rows, kept = directions.rows[0], directions.kept[0]  # (M, k, N), (M, k)
    before = np.matmul(gradients.inner, rows.transpose(0, 2, 1))  # (M, S, k)
    hackward = GATES["one_sided"](before)
    after = before - hackward
    squared = np.square(gradients.norms) - np.square(before).sum(-1) + np.square(after).sum(-1)
    gone = squared <= ROUNDING**2 * np.square(gradients.norms)
    after = np.where(gone[..., None], 0.0, after)
    gated = replace(gradients, norms=np.sqrt(np.where(gone, 0.0, squared)))
    return Gated(
        cos_in=_global(before, kept, gradients),
        cos_out=_global(after, kept, gated),
        hackward_frac_in=ratio(np.sqrt(np.square(hackward).sum((0, 2))), gradients.norm),
    )


def _global(c: Array, kept: NDArray[np.bool_], gradients: Gradients) -> Array:
    """(S,) global signed cosine from c = V g (M, S, k)."""
    count = kept.sum(1)
    dots = (c.sum(-1) / np.sqrt(np.maximum(count, 1))[:, None]).sum(0)
    return ratio(dots, np.sqrt((count > 0).sum()) * gradients.norm)
