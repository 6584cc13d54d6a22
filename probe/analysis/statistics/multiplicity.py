"""Many tests at once: max-T over modules, Holm over a registered family."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.thresholds import ALPHA

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxT:
    """z and the family-wise p of every statistic of a family."""

    z: Array  # (M,)
    p: Array  # (M,)
    critical: float  # p < ALPHA exactly where |z| > critical; infinite for too few draws


def max_t(observed: Array, draws: Array) -> MaxT:
    """Single-step max-T (Westfall and Young 1993): p_m = (1 + draws whose largest |z| reaches |z_m|) / (B + 1).

    z divides by the standard deviation of each statistic under the null, and the draws keep the dependence between the
    statistics, so that correlated modules cost less than Bonferroni's M.

    Args:
        observed: (M,) statistics with null mean 0.
        draws: (B, M) the same under the null.
    """
    sd = np.sqrt(np.square(draws).mean(0))
    scale = np.where(sd > 0, sd, np.inf)
    z = observed / scale
    largest = np.abs(draws / scale).max(1)
    above = math.ceil(ALPHA * (len(draws) + 1)) - 2  # p < ALPHA leaves so many draws at least as large as |z|, or fewer
    critical = float(np.sort(largest)[::-1][above]) if 0 <= above < len(draws) else math.inf
    count = (largest[:, None] >= np.abs(z) * (1 - 1e-12)).sum(0)
    return MaxT(z=z, p=(1 + count) / (len(draws) + 1), critical=critical)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values (1979): the i-th smallest of m times m - i + 1, never decreasing."""
    adjusted, largest = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - place)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
