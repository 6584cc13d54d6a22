"""Gates from inner products alone: what `probe.step.projection` measures, without gradients.

Shapes: M modules, k directions, N pair gradients, S gradients.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.geometry import Directions, Gradients, ratio
from probe.analysis.statistics.gram import Array
from probe.settings.gate import GATES
from probe.settings.words import Gate

ROUNDING = 16 * float(np.finfo(np.float32).eps)  # what a gate leaves below ROUNDING * norm(g) is no gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The measures of S gradients before and after a gate, each (S,); NaN for a gradient that is zero."""

    cos_in: Array
    cos_out: Array
    mean_cos_in: Array
    mean_cos_out: Array
    hackward_frac_in: Array
    hackward_frac_out: Array
    frac_fired: Array


def gate_all(
    directions: Directions,
    gradients: Gradients,
    *,
    gate: Gate = "one_sided",
    overshoot: float = 1.0,
    preserve_magnitude: bool = False,
) -> Gated:
    """Every measure of every gradient before and after a gate, for the first draw of the directions.

    V has orthonormal rows, so that c = V g and the norm of g give everything after the gate: c' = c - removed and
    norm(g')^2 = norm(g)^2 - |c|^2 + |c'|^2.
    """
    rows, kept = directions.rows[0], directions.kept[0]  # (M, k, N), (M, k)
    before = np.matmul(gradients.inner, rows.transpose(0, 2, 1))  # (M, S, k)
    removed = overshoot * GATES[gate](before)
    after = before - removed
    squared = np.square(gradients.norms) - np.square(before).sum(-1) + np.square(after).sum(-1)
    gone = squared <= ROUNDING**2 * np.square(gradients.norms)
    after, norms = np.where(gone[..., None], 0.0, after), np.sqrt(np.where(gone, 0.0, squared))
    if preserve_magnitude:
        scale = ratio(gradients.norms, norms, otherwise=1.0)
        after, norms = after * scale[..., None], norms * scale
    gated = replace(gradients, norms=norms)
    present = kept.any(1)
    fired = (removed[present] != 0).any(-1).mean(0)
    return Gated(
        cos_in=_global(before, kept, gradients),
        cos_out=_global(after, kept, gated),
        mean_cos_in=_by_module(before, kept, gradients),
        mean_cos_out=_by_module(after, kept, gated),
        hackward_frac_in=ratio(np.sqrt(np.square(np.maximum(before, 0)).sum((0, 2))), gradients.norm),
        hackward_frac_out=ratio(np.sqrt(np.square(np.maximum(after, 0)).sum((0, 2))), gated.norm),
        frac_fired=np.where(gradients.norm > 0, fired, np.nan),
    )


def _global(c: Array, kept: NDArray[np.bool_], gradients: Gradients) -> Array:
    """(S,) global signed cosine from c = V g (M, S, k)."""
    count = kept.sum(1)
    dots = (c.sum(-1) / np.sqrt(np.maximum(count, 1))[:, None]).sum(0)
    return ratio(dots, np.sqrt((count > 0).sum()) * gradients.norm)


def _by_module(c: Array, kept: NDArray[np.bool_], gradients: Gradients) -> Array:
    """(S,) mean over modules that keep a direction and have a gradient."""
    count = kept.sum(1)
    dots = (c.sum(-1) / np.sqrt(np.maximum(count, 1))[:, None])[count > 0]
    norms = gradients.norms[count > 0]
    used = norms > 0
    return ratio(ratio(dots, norms, otherwise=0.0).sum(0), used.sum(0).astype(np.float64))
