"""Estimates by name: one number over so many units, and what can be done with two of them, or with tables of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.stats import Interval, sign_flip_test, t_interval, welch_interval, welch_test


class MetricKey(NamedTuple):
    """Which estimate."""

    metric: str
    unit: str
    arm: str | None = None  # None: the arm that stands for vanilla
    condition: str | None = None  # None: the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One metric over n units; None where it does not exist."""

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
    by_unit: Mapping[str, float] = field(default_factory=dict)
    vacuous: str | None = None  # why the number could not have come out otherwise


Metrics = Mapping[MetricKey, Estimate]


def estimate(by_unit: Mapping[str, float], unit: str, *, nulls: Mapping[str, NullTest] | None = None) -> Estimate:
    """The mean of one value a unit, with Student's intervals and the sign-flip p (none by sample: a naive unit)."""
    values = list(by_unit.values())
    return Estimate(
        value=float(np.mean(values)) if values else None,
        n=len(values),
        unit=unit,
        interval=t_interval(values),
        interval_90=t_interval(values, level=0.9),
        p=None if unit == "sample" else sign_flip_test(values).p,
        minimum=min(values, default=None),
        maximum=max(values, default=None),
        nulls=nulls or {},
        by_unit=by_unit,
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b, paired by the units that both have."""
    return estimate({name: a.by_unit[name] - b.by_unit[name] for name in a.by_unit if name in b.by_unit}, a.unit)


def unpaired_difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b as means of independent samples: Welch's intervals and p; n of the smaller side."""
    x, y = list(a.by_unit.values()), list(b.by_unit.values())
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(value=None, n=0, unit=a.unit)
    test = welch_test(x, y)
    return Estimate(
        value=float(np.mean(x) - np.mean(y)),
        n=n,
        unit=a.unit,
        interval=welch_interval(x, y),
        interval_90=welch_interval(x, y, level=0.9),
        p=test.p,
    )


def mean_by_unit(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """{unit: mean of its values in the tables that have it}."""
    values: dict[str, list[float]] = {}
    for unit, value in (item for table in tables for item in table.items()):
        values.setdefault(unit, []).append(value)
    return {unit: float(np.mean(several)) for unit, several in values.items()}


def by_condition(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """{condition: metrics} -> one table; the first condition is also the one that a criterion need not name."""
    first = next(iter(tables), None)
    found: dict[MetricKey, Estimate] = dict(tables[first]) if first is not None else {}
    for condition, table in tables.items():
        found |= {key._replace(condition=condition): row for key, row in table.items()}
    return found
