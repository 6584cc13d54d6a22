"""The table of metrics, {MetricKey: Estimate}, and its arithmetic: means over units, differences, merged tables.

    table[MetricKey("cos_in", "prompt", "random")].interval     95% interval of cos_in over prompts in the arm random
    difference(table[...], table[...])                          of two arms, paired by prompt

`probe.analysis.metrics` makes the table of one run; the criteria of a spec are evaluated from merged tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from probe.analysis.statistics.intervals import Interval, outcomes_interval, share_interval
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.significance import mean_interval, mean_test, welch_interval, welch_test


class MetricKey(NamedTuple):
    """Which estimate: a metric, the unit that its n counts, and where it was measured."""

    metric: str
    unit: str  # prompt, problem, seed, run, step, sample, pair or module
    arm: str | None = None  # None: the arm that stands for vanilla
    condition: str | None = None  # None: the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One metric over n units. A field is None where the number does not exist."""

    value: float | None  # mean over units, or the statistic
    n: int
    unit: str
    interval: Interval | None = None  # 95%
    interval_90: Interval | None = None
    p: float | None = None  # two-sided, against zero
    minimum: float | None = None
    maximum: float | None = None
    nulls: Mapping[str, NullTest] = field(default_factory=dict)  # by the names of a criterion's `null`
    beaten_by: Sequence[str] | None = None  # trivial scores that do as well: null "baselines"; None: none was measured
    by_unit: Mapping[str, float] = field(default_factory=dict)  # {unit: its value}
    trials: Mapping[str, int] = field(default_factory=dict)  # of a rate: {unit: outcomes that its share is of}
    vacuous: str | None = None  # why the number could not have come out otherwise


Metrics = Mapping[MetricKey, Estimate]


def estimate(
    by_unit: Mapping[str, float],
    unit: str,
    *,
    nulls: Mapping[str, NullTest] | None = None,
    trials: Mapping[str, int] | None = None,
) -> Estimate:
    """The mean of one value a unit.

    Args:
        by_unit: {name of the unit: value}.
        unit: what a unit is. Samples of one prompt resemble one another, so that a mean over samples gets no p.
        nulls: tests of the same mean against directions or labels without signal.
        trials: of a rate, {unit: outcomes that its share is of}.

    Returns:
        Mean, 95% and 90% intervals (of a rate those of `shares`), two-sided sign-flip p against zero, extremes. Units
        that are all equal, and no rate, show no variance and have no interval.
    """
    summary = _summary(tuple(by_unit.values()), tuple((trials or {}).values()), tested=unit != "sample")
    return replace(summary, unit=unit, nulls=nulls or {}, by_unit=by_unit, trials=trials or {})


# Rewards, labels and sample cosines are the same numbers in every arm and condition of a replay.
@lru_cache(maxsize=512)
def _summary(values: tuple[float, ...], outcomes: tuple[int, ...], *, tested: bool) -> Estimate:
    """`estimate` of the values alone."""

    def interval(level: float) -> Interval | None:
        return share_interval(values, outcomes, level=level) if outcomes else mean_interval(values, level=level)

    return Estimate(
        value=float(np.mean(values)) if values else None,
        n=len(values),
        unit="",
        interval=interval(0.95),
        interval_90=interval(0.9),
        p=mean_test(values).p if tested else None,
        minimum=min(values, default=None),
        maximum=max(values, default=None),
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b, paired by the units that both have."""
    both = [name for name in a.by_unit if name in b.by_unit]
    paired = estimate({name: a.by_unit[name] - b.by_unit[name] for name in both}, a.unit)
    # Problems that differ alike are evidence of that; seeds are too few, and the runs of one seed are not one run.
    if a.unit == "problem" and paired.interval is not None:
        return paired
    return _as_wide_as_outcomes(paired, a, b, both, both)


def unpaired_difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b as means of independent samples: Welch's intervals and p; n is that of the smaller side."""
    x, y = list(a.by_unit.values()), list(b.by_unit.values())
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(value=None, n=0, unit=a.unit)
    test = welch_test(x, y)
    unpaired = Estimate(
        value=float(np.mean(x) - np.mean(y)),
        n=n,
        unit=a.unit,
        interval=welch_interval(x, y),
        interval_90=welch_interval(x, y, level=0.9),
        p=None if test is None else test[1],
    )
    return _as_wide_as_outcomes(unpaired, a, b, list(a.by_unit), list(b.by_unit))


def _as_wide_as_outcomes(
    compared: Estimate, a: Estimate, b: Estimate, of_a: Sequence[str], of_b: Sequence[str]
) -> Estimate:
    """A difference of rates whose intervals span at least what drawing outcomes alone leaves open.

    Seeds may have equal rates by chance: the difference then shows no variance, or next to none. Below two units a side
    there is still no interval, and of what is no rate the difference stays as it is.
    """
    if not a.trials or not b.trials or min(len(of_a), len(of_b)) < 2:
        return compared
    shares = [np.array([side.by_unit[name] for name in names]) for side, names in ((a, of_a), (b, of_b))]
    trials = [np.array([side.trials[name] for name in names]) for side, names in ((a, of_a), (b, of_b))]
    return replace(
        compared,
        interval=_hull(compared.interval, outcomes_interval(*shares, *trials)),
        interval_90=_hull(compared.interval_90, outcomes_interval(*shares, *trials, level=0.9)),
    )


def _hull(interval: Interval | None, other: Interval) -> Interval:
    """The smallest interval that holds both."""
    if interval is None:
        return other
    return Interval(low=min(interval.low, other.low), high=max(interval.high, other.high))


def mean_by_unit(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """{unit: mean of its values in the tables that have it}."""
    values_of: dict[str, list[float]] = {}
    for table in tables:
        for unit, value in table.items():
            values_of.setdefault(unit, []).append(value)
    return {unit: float(np.mean(values)) for unit, values in values_of.items()}


def by_condition(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """{condition: metrics} as one table; the first condition also stands under `condition=None`, its default."""
    first = next(iter(tables.values()), {})
    merged: dict[MetricKey, Estimate] = dict(first)
    for condition, metrics in tables.items():
        for key, estimated in metrics.items():
            merged[key._replace(condition=condition)] = estimated
    return merged
