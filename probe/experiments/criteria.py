"""Judge one preregistered criterion: an estimate with its 95% interval against a bound.

PASS            the whole interval lies above, below or inside the bound
FAIL            the whole interval lies on the other side
INCONCLUSIVE    the interval holds both answers, or there is none
VACUOUS         nothing was compared: both sides are identical, or a cap can never bind

A number that describes the runs that were made (`probe.analysis.measures.describes`) is compared as it is.
"""

from math import inf, nextafter

from probe.analysis.estimate import Estimate
from probe.analysis.measures import describes
from probe.analysis.verdict.verdict import Finding
from probe.experiments.spec import Criterion
from probe.settings.words import Answer


def evaluate(criterion: Criterion, estimate: Estimate, vacuous: str = "") -> Finding:
    """Judge one criterion by its estimate; `vacuous` says why nothing was compared."""
    if vacuous:
        says, text = Answer.VACUOUS, vacuous
    elif estimate.value is None:
        says, text = Answer.INCONCLUSIVE, estimate.why or "not measured"
    else:
        says, why = _says(criterion, estimate, estimate.value)
        text = f"{estimate:+.3g}{f'; {why}' if why else ''}"
    if criterion.role == "mechanism":
        text += "; mechanism: says that the code ran"
    return Finding(
        name=criterion.name,
        question=in_words(criterion),
        says=says,
        text=text + (f". {criterion.why}" if criterion.why else ""),
        number=estimate if estimate.is_bounded and not vacuous else None,
        n=estimate.n,
        unit=estimate.unit,
        role=criterion.role,
    )


def in_words(criterion: Criterion) -> str:
    """Format a criterion, such as `cos_in above 0.05 (vanilla in mixed - random in mixed)`."""
    bounds = {"above": criterion.above, "below": criterion.below}
    bound = next((f"{name} {value:g}" for name, value in bounds.items() if value is not None), "")
    if criterion.inside is not None:
        bound = f"inside [{criterion.inside[0]:g}, {criterion.inside[1]:g}]"
    sides = " - ".join(f"{arm} in {condition}" for condition, arm in criterion.sides)
    return f"{criterion.estimate} {bound} ({sides})"


def _says(criterion: Criterion, estimate: Estimate, value: float) -> tuple[Answer, str]:
    if not describes(criterion.estimate) and estimate.interval is None:
        return Answer.INCONCLUSIVE, f"no interval: {estimate.why}"
    low, high = (value, value) if estimate.interval is None else (estimate.low, estimate.high)
    first, last = criterion.inside or (-inf, inf)
    if criterion.above is not None:  # the bound itself is not above it
        first = nextafter(criterion.above, inf)
    if criterion.below is not None:
        last = nextafter(criterion.below, -inf)
    if first <= low and high <= last:
        return Answer.PASS, ""
    if high < first or low > last:
        return Answer.FAIL, ""
    return Answer.INCONCLUSIVE, "the interval holds both answers"
