"""Judge one preregistered criterion against the metrics of a sweep.

PASS            the statistic satisfies the comparison; for a mean, the whole 95% interval does (`value` is the mean
                of the measured units and is not generalised)
FAIL            the whole interval violates the comparison, or a trivial baseline scores as high
INCONCLUSIVE    the data allow both, the metric was not measured, or the units have no variance and so no interval
VACUOUS         the criterion holds but would hold without signal: the statistic lies within its null, or both sides
                of the comparison are identical
"""

import operator
from collections.abc import Callable
from dataclasses import replace

from probe.analysis.estimate import Estimate as Measured
from probe.analysis.metrics import Estimate, MetricKey, Metrics, difference, unpaired_difference
from probe.analysis.statistics.thresholds import ALPHA
from probe.analysis.verdict.verdict import Finding
from probe.experiments.spec import Criterion
from probe.settings.words import Word

SEPARATE = ("seed", "problem")  # for these units, the two sides are separate runs
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
Judged = tuple[Word, str]
PASS, FAIL, INCONCLUSIVE, VACUOUS = Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.VACUOUS


def evaluate(criterion: Criterion, metrics: Metrics, p_holm: float | None = None) -> Finding:
    """Judge one criterion.

    Args:
        p_holm: the criterion's p-value, Holm-adjusted over all criteria; None without a p-value, or if it is the only
            one.
    """
    measured = _estimate(criterion, metrics)
    value, number, n = "", None, 0
    if isinstance(measured, str):
        says, why = INCONCLUSIVE, measured
    else:
        n = measured.n
        if measured.value is not None:
            value = f"{measured.value:+.3g}"
            if measured.interval is not None:
                value += f" {measured.interval:+.3f}"
                number = Measured(name=criterion.metric, value=measured.value, interval=measured.interval)
        says, why = (VACUOUS, measured.vacuous) if measured.vacuous is not None else _judged(criterion, measured)
    if p_holm is not None:
        why += f"; Holm-adjusted p {p_holm:.2g}"
        # A result that is significant only before adjustment is neither shown nor refuted.
        if says is PASS and isinstance(criterion.threshold, float) and p_holm >= criterion.threshold:
            says = INCONCLUSIVE
    if criterion.why:
        why += f". {criterion.why}"
    if criterion.reported:
        why += f"; reported: {criterion.reported}"
    return Finding(
        name=criterion.name,
        question=in_words(criterion),
        says=says,
        text=f"{value}; {why}" if value else why,
        number=number,
        n=n,
        unit=criterion.unit,
        role=criterion.role,
    )


def in_words(criterion: Criterion) -> str:
    """Format a criterion, such as `lower95 of cos_in > 0.05 (vanilla - random in mixed; null N2)`."""
    sides = ((criterion.arm, criterion.versus_arm), (criterion.condition, criterion.versus_condition))
    # A difference names both sides; a single side omits its default.
    named = [f"{name or 'default'} - {versus}" if versus else name or "" for name, versus in sides]
    null = "" if criterion.null == "none" else f"null {criterion.null}"
    notes = "; ".join(filter(None, [" in ".join(filter(None, named)), null]))
    threshold = list(criterion.threshold) if isinstance(criterion.threshold, tuple) else f"{criterion.threshold:g}"
    text = f"{criterion.statistic} of {criterion.metric} {criterion.comparison} {threshold}"
    return f"{text} ({notes})" if notes else text


def _judged(criterion: Criterion, measured: Estimate) -> Judged:
    says, why = _compare(criterion, measured)
    if criterion.null == "baselines":
        # A score that a trivial baseline reaches shows nothing, however large it is.
        if measured.beaten_by:
            says, why = FAIL, f"a trivial score does as well or better: {', '.join(measured.beaten_by)}; {why}"
        elif measured.beaten_by is None:
            says, why = INCONCLUSIVE if says is PASS else says, f"{why}; no trivial baseline was measured"
        else:
            why += "; no trivial score does as well"
    elif says is PASS and criterion.null != "none":
        # A statistic within its null would pass without signal.
        test = measured.nulls.get(criterion.null)
        numbers = "" if test is None else f"{criterion.null} p {test.p:.2g}, 95th percentile {test.parts['q95']:.3g}"
        if test is None:
            says, why = INCONCLUSIVE, f"{why}; its null {criterion.null} was not measured"
        elif test.p is not None and test.p < ALPHA:
            why += f"; {numbers}"
        else:
            says, why = VACUOUS, f"{why}, and so does its null: {numbers}"
    if criterion.role == "mechanism":
        why = f"{why}; mechanism: says that the code ran"
    return says, why


def p_of(criterion: Criterion, metrics: Metrics) -> float | None:
    """Return the p-value that a criterion compares; None for another statistic or an unmeasured metric."""
    measured = _estimate(criterion, metrics) if criterion.statistic == "p" else ""
    return None if isinstance(measured, str) else _statistic(criterion, measured)


def _estimate(criterion: Criterion, metrics: Metrics) -> Estimate | str:
    """Return the criterion's estimate (a difference if it has a `versus_*`), or the reason that there is none."""
    key = MetricKey(criterion.metric, criterion.unit, criterion.arm, criterion.condition)
    left = metrics.get(key)
    if left is None:
        return f"{_name(key)} was not measured"
    if criterion.versus_arm is None and criterion.versus_condition is None:
        return left
    rival = MetricKey(
        criterion.metric,
        criterion.unit,
        criterion.versus_arm or criterion.arm,
        criterion.versus_condition or criterion.condition,
    )
    right = metrics.get(rival)
    if right is None:
        return f"{_name(rival)} was not measured"
    measured = (difference if criterion.paired else unpaired_difference)(left, right)
    if measured.n == 0:
        return f"{_name(key)} and {_name(rival)} share no {criterion.unit}"
    # Rates of separate trainings may be equal by chance (`probe.experiments.verdict` compares their records); equal
    # measures of one replay mean that nothing differs.
    if criterion.role != "mechanism" and criterion.unit not in SEPARATE and left.by_unit == right.by_unit:
        why = f"{_name(key)} and {_name(rival)} are identical in every {criterion.unit}: nothing was compared"
        return replace(measured, vacuous=why)
    return measured


def _compare(criterion: Criterion, measured: Estimate) -> Judged:
    """Compare a statistic with its threshold, before any null."""
    threshold = criterion.threshold
    if isinstance(threshold, tuple):
        return _inside(measured, *threshold)
    value = _statistic(criterion, measured)
    if value is None:
        return INCONCLUSIVE, _no_interval(criterion.statistic, measured)
    holds = _COMPARE[criterion.comparison]
    why = f"{criterion.statistic} {value:.3g} {criterion.comparison} {threshold:g}"
    if criterion.statistic == "p":
        return (PASS, why) if holds(value, threshold) else (INCONCLUSIVE, f"not {why}: absence is not shown")
    if criterion.statistic in ("value", "min", "max", "n"):
        return (PASS, why) if holds(value, threshold) else (FAIL, f"not {why}")
    if measured.interval is None:
        return INCONCLUSIVE, f"{why}, but {_no_interval('95% interval', measured)}"
    low, high = holds(measured.interval.low, threshold), holds(measured.interval.high, threshold)
    if (low and high) or (criterion.statistic != "mean" and holds(value, threshold)):
        return PASS, why
    if not low and not high:
        return FAIL, f"not {why}: the whole 95% interval is beyond it"
    return INCONCLUSIVE, f"not decided: {why}, with the 95% interval on both sides"


def _inside(measured: Estimate, low: float, high: float) -> Judged:
    """Test equivalence: the 90% interval lies inside the band (two one-sided tests at 5%)."""
    interval = measured.interval_90
    if interval is None:
        return INCONCLUSIVE, _no_interval("90% interval", measured)
    why = f"90% interval {interval:+.3f} against [{low:+g}, {high:+g}]"
    if low < interval.low and interval.high < high:
        return PASS, f"{why}: inside"
    if interval.high <= low or interval.low >= high:
        return FAIL, f"{why}: outside"
    return INCONCLUSIVE, f"{why}: across an edge"


def _no_interval(statistic: str, measured: Estimate) -> str:
    """Return why the statistic is missing. Equal values of all units do not imply a zero-width interval."""
    missing_from = f"no {statistic} from {measured.n} {measured.unit}s"
    if measured.n < 2 or len(set(measured.by_unit.values())) != 1:
        return missing_from
    return f"{missing_from}: all read {measured.value:.3g} and show no variance (`min` and `max` ask about these alone)"


def _statistic(criterion: Criterion, measured: Estimate) -> float | None:
    """Return the number to compare. An AUROC has no sign-flip p, so its p comes from the criterion's null."""
    ends, test = measured.interval, measured.nulls.get(criterion.null)
    return {
        "mean": measured.value,
        "value": measured.value,
        "lower95": ends.low if ends else None,
        "upper95": ends.high if ends else None,
        "p": measured.p if measured.p is not None or test is None else test.p,
        "min": measured.minimum,
        "max": measured.maximum,
        "n": float(measured.n),
    }[criterion.statistic]


def _name(key: MetricKey) -> str:
    place = [f"arm {key.arm}" if key.arm else "", f"condition {key.condition}" if key.condition else ""]
    return " ".join([key.metric, f"by {key.unit}", *(part for part in place if part)])
