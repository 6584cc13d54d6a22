"""What trainings became whose replay forecast a removal: the fall of the hack rate, with a prediction interval.

A line by least squares through STUDIED: the sets of directions that `spec/foretell.md` trained, and the two of its five
later settings that have the same gate.

    fall = a + b x,    x = share of the progress on held-out hacks that the gate removes (`probe.analysis.forecast`)

For a new set that is trained likewise, on four seeds (Draper and Smith 1998, section 3.1), with n sets:

    a + b x  +-  t(n - 2) s sqrt(1 + 1/n + (x - mean)^2 / sum (x_i - mean)^2)

It says nothing of another base, loss, gate or kind of rollouts (`unlike`). How often it is right for a set that is left
out: `tests/probe/test_foretold.py`.

A remedy of any kind is foretold from what it moved in a lookahead (`probe.runs.screening`), by the trainings of
`spec/remedies.md` and `spec/foretell-2.md`, all but the KL penalties, which act once a policy has moved further than a
lookahead lets it:

    fall = h (1 - exp(-x / c)) +- t(n - 1) s,   x = 1 - hacks / hacks of none + 1 - held-out hacks / those of none

h: the hack rate after a training without a remedy; hacks: nats that the replay's paid hacks have gained after the
steps, held-out hacks those of the pairs; c by least squares over n remedies, s their residual standard deviation, both
of the share fall / h.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import curve_fit

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
# (x, fall of the hack rate) of a remedy, and the rate without one: means over four seeds.
AHEAD: Mapping[str, tuple[float, float]] = {
    "projected": (1.12, 0.43),
    "k8": (1.56, 0.50),
    "two-sided": (0.71, 0.36),
    "overshoot-0.5": (0.44, 0.15),
    "overshoot-2": (2.19, 0.52),
    "route": (0.83, 0.39),
    "permuted-dosed": (0.25, 0.21),
    "closed": (4.52, 0.54),
    "penalty-100": (5.49, 0.54),
    "penalty-90": (3.84, 0.54),
    "penalty-70": (2.06, 0.53),
    "penalty-50": (0.96, 0.36),
    "screen-100": (2.64, 0.53),
    "screen-70": (0.71, 0.43),
    "inoculation": (0.27, 0.13),
    "recontextualization": (0.27, 0.31),
    "steering-5": (0.02, 0.00),
    "steering-10": (0.29, 0.17),
    "ablation": (0.34, 0.13),
    "ablation-sampled": (0.34, 0.19),
    "early-stop": (1.62, 0.46),
    "entropy": (-0.62, -0.02),
    "cap-2": (-0.08, -0.06),
    "sepa-cap-2": (-0.15, -0.01),
    "scaled": (-0.18, 0.02),
    "scaled-eps": (-0.17, 0.03),
}
PLAIN_RATE = 0.54
# (x, fall as a share of the rate without one) of the treatments of spec/foretell-2.md: other problems and rate,
# chosen to break forecasts. Without them the interval would hold 9 of these 16.
ELSEWHERE: Sequence[tuple[float, float]] = (
    *((0.55, 0.82), (0.14, 0.19), (0.06, 0.24), (1.07, 0.42), (1.08, 0.66), (0.92, 0.62), (0.13, 0.23), (0.28, 0.39)),
    *((0.52, 0.49), (0.15, 0.28), (0.19, 0.21), (0.80, 0.57), (0.95, 0.53), (0.55, 0.10), (1.38, 0.99), (0.11, 0.06)),
)
STUDIED_AHEAD = (*AHEAD.values(), *((x, PLAIN_RATE * share) for x, share in ELSEWHERE))
AHEAD_STEPS = 20
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


def fall_ahead(x: float, studied: Iterable[tuple[float, float]] = STUDIED_AHEAD, rate: float = PLAIN_RATE) -> Bounded:
    """The fall of the hack rate of a remedy, a share of rollouts; its interval holds LEVEL of such trainings.

    Args:
        x: what it moved, as above.
        studied: (x, fall from PLAIN_RATE) of two remedies or more.
        rate: h.
    """
    moved, falls = np.array([*studied], dtype=np.float64).T
    shares, df = falls / PLAIN_RATE, len(moved) - 1

    def law(x: Any, c: float) -> Any:
        return -np.expm1(-np.maximum(x, 0.0) / c)

    (c,), _ = curve_fit(law, moved, shares, p0=[1.0], bounds=(1e-3, np.inf))
    half = student_quantile(LEVEL, df) * float(np.sqrt(np.square(shares - law(moved, c)).sum() / df))
    value = float(law(x, c))
    ends = Interval(low=rate * (value - half), high=rate * min(value + half, 1.0))
    return Bounded(value=rate * value, interval=ends)


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
