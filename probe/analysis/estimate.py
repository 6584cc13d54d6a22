"""Estimate: one number with its interval. An analysis is a list of estimates, and all output renders that list."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probe.analysis.statistics.intervals import Interval, student_quantile, t_interval, varies


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One number over n units. Field names are keys of the JSON."""

    name: str
    value: float | None = None  # None: not measured, and `why` gives the reason
    interval: Interval | None = None  # 95%
    n: int = 0
    unit: str = ""  # what n counts: prompt | pair | problem | seed | step | draw
    arm: str | None = None
    null: float | None = None  # expected value without a signal
    p: float | None = None  # against the null
    parts: Mapping[str, Any] = field(default_factory=dict)  # components by name; for a mean, {unit: value}
    why: str = ""  # reason why the value or interval is missing or unreliable

    @property
    def is_bounded(self) -> bool:
        """Return True if the estimate has a value and an interval."""
        return self.value is not None and self.interval is not None

    @property
    def low(self) -> float:
        """Return the lower end of the interval; -infinity without one."""
        return -np.inf if self.interval is None else self.interval.low

    @property
    def high(self) -> float:
        """Return the upper end of the interval; infinity without one."""
        return np.inf if self.interval is None else self.interval.high

    @property
    def span(self) -> tuple[float, float, float]:
        """Return (low, value, high) of a bounded estimate."""
        assert self.value is not None
        return self.low, self.value, self.high

    def __format__(self, form: str) -> str:
        """Return value and interval in a number format: `0.51 [0.17, 1.03]`; `-` without a value."""
        if self.value is None:
            return "-"
        value = f"{self.value:{form or '.2f'}}"
        return value if self.interval is None else f"{value} {self.interval:{form or '.2f'}}"

    def __str__(self) -> str:
        """Return `0.51 [0.17, 1.03]`."""
        return format(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Estimates of one kind: their source and how a table shows them."""

    title: str  # of its table; {arm} is filled in
    make: Callable[[Any], Iterable[Estimate]]  # from an `Analysis`
    names: tuple[str, ...] = ()  # names of its estimates that a criterion of a spec may use
    scoped: bool = False  # a criterion writes FAMILY/NAME, because NAME alone says too little
    form: str = ".2f"  # number format of values and intervals
    parts: Mapping[str, str] = field(default_factory=dict)  # {part shown in the table: its column}


def mean_of(name: str, parts: Mapping[Any, float], unit: str, *, arm: str | None = None) -> Estimate:
    """Return the mean of one value per unit, with Student's interval; `parts` is {unit: value}."""
    values = [*parts.values()]
    if not values:
        return Estimate(name=name, unit=unit, arm=arm, why="not measured")
    mean, interval = float(np.mean(values)), t_interval(values)
    row = Estimate(name=name, value=mean, interval=interval, n=len(values), unit=unit, arm=arm, null=0.0, parts=parts)
    return row if interval else replace(row, why=no_variance(values, unit))


def welch(a: Estimate, b: Estimate) -> Estimate:
    """Return a minus b as means of independent units, with Welch's interval; n is the smaller number of units."""
    sides = [np.array([*side.parts.values()], dtype=np.float64) for side in (a, b)]
    n, arm = min(map(len, sides)), a.arm
    if n == 0:
        return Estimate(name=a.name, unit=a.unit, arm=arm, why="not measured")
    value = float(sides[0].mean() - sides[1].mean())
    row = Estimate(name=a.name, value=value, n=n, unit=a.unit, arm=arm, null=0.0)
    if n == 1 or not any(map(varies, sides)):
        return replace(row, why=no_variance([*a.parts.values()][:n], a.unit))
    parts = [side.var(ddof=1) / len(side) for side in sides]
    error = float(np.sqrt(sum(parts)))
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    half = float(student_quantile(0.95, df)) * error
    return replace(row, interval=Interval(low=value - half, high=value + half))


def no_variance(values: Iterable[float], unit: str) -> str:
    """Return the reason why a single value, or equal values, have no interval."""
    count = len([*values])
    return f"{count} {unit}s show no variance" if count > 1 else f"1 {unit} alone has no interval"


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return a minus b, paired by shared units."""
    both = {unit: value - b.parts[unit] for unit, value in a.parts.items() if unit in b.parts}
    return mean_of(a.name, both, a.unit, arm=a.arm)
