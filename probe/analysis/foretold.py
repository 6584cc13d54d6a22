"""What trainings became whose replay forecast a removal: the fall of the hack rate, with a prediction interval.

A line by least squares through STUDIED: the sets of directions that `spec/foretell.md` trained, and the two of its five
later settings that have the same gate.

    fall = a + b x,    x = share of the progress on held-out hacks that the gate removes (`probe.analysis.forecast`)

For a new set that is trained likewise, on four seeds (Draper and Smith 1998, section 3.1), with n sets:

    a + b x  +-  t(n - 2) s sqrt(1 + 1/n + (x - mean)^2 / sum (x_i - mean)^2)

It says nothing of another base, loss, gate or kind of rollouts (`unlike`). How often it is right for a set that is left
out: `tests/probe/test_foretold.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from probe.analysis.evidence import Evidence
from probe.analysis.statistics.intervals import Bounded, Interval, student_quantile
from probe.settings.presets import configure
from replay_pools.storage.tables import flat

LEVEL = 0.8
# (share removed, fall of the held-out hack rate): means over the seeds of a set.
STUDIED: Sequence[tuple[float, float]] = (
    *((0.55, 0.15), (0.79, 0.46), (0.41, 0.14), (0.82, 0.29), (0.44, 0.09), (0.10, 0.07), (0.00, 0.02), (0.18, 0.11)),
    *((0.59, 0.26), (1.01, 0.70), (0.71, 0.22), (0.85, 0.57), (0.67, 0.21), (0.06, 0.10), (0.07, 0.07), (0.15, 0.09)),
    *((0.01, 0.05), (0.49, 0.10), (0.43, 0.48)),
)
BASE, TEACHER = "organism", "teacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What the removal of a replay foretells of a training. Field names are keys of the JSON."""

    fall: Bounded | None = None  # of the hack rate, a share of rollouts; None where nothing is foretold
    unlike: list[str]  # why not: in what the replay differs from those that were studied


def fall_of(removed: float, studied: Sequence[tuple[float, float]] = STUDIED) -> Bounded:
    """The fall of the hack rate, a share of rollouts, after a removal; its interval holds LEVEL of such trainings.

    Args:
        removed: share of the progress on held-out hacks.
        studied: (share removed, fall) of three trained sets or more.
    """
    x, fall = np.array(studied, dtype=np.float64).T
    slope, start = np.polyfit(x, fall, 1)
    value, n = float(start + slope * removed), len(x)
    spread = float(np.sqrt(np.square(fall - start - slope * x).sum() / (n - 2)))
    leverage = 1 + 1 / n + (removed - x.mean()) ** 2 / np.square(x - x.mean()).sum()
    half = student_quantile(LEVEL, n - 2) * spread * float(np.sqrt(leverage))
    return Bounded(value=value, interval=Interval(low=value - half, high=value + half))


def unlike(evidence: Evidence) -> list[str]:
    """In what a replay differs from those that were studied, in words; empty where it is one of them."""
    settings, usual = flat(evidence.records.settings), flat(asdict(configure("replay")))
    differences = []
    model, adapter = evidence.records.config.get("model"), settings.get("model.adapter")
    if model != BASE or adapter is not None:
        differences.append(f"model {model}" + " with an adapter" * (adapter is not None))
    if {pool.policy[1] for pool in evidence.pools} != {TEACHER, None}:
        differences.append("rollouts of other policies than a teacher and the base")
    if not all(pool.hint for pool in evidence.pools):
        differences.append("prompts without the hint")
    if evidence.basis != "svd":
        differences.append(f"basis {evidence.basis}")
    for key in sorted(usual):
        if key.startswith(("objective.", "intervention.gate.")) and settings.get(key) != usual[key]:
            differences.append(f"{key.partition('.')[2]} {settings.get(key)}")
    return differences


def foretold(evidence: Evidence) -> Foretold | None:
    """What the gate of a replay foretells; None where the forecast has no share of the margin."""
    row = evidence.forecast.row("margin") if evidence.forecast is not None else None
    if row is None or row.removed is None:
        return None
    differences = unlike(evidence)
    return Foretold(fall=None if differences else fall_of(row.removed.value), unlike=differences)
