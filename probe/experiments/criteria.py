"""Judge one preregistered criterion: an estimate with its 95% interval against a bound.

PASS            the whole interval lies above, below or inside the bound
FAIL            the whole interval lies on the other side
INCONCLUSIVE    the interval holds both answers, or there is none
VACUOUS         nothing was compared: both sides are identical, or a cap can never bind

A number that describes the runs that were made (`probe.analysis.measures.describes`) is compared as it is.
"""

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
    """Format a criterion, such as `cos_in above 0.05 (vanilla - random in mixed)`."""
    sides = ((criterion.arm, criterion.versus_arm), (criterion.condition, criterion.versus_condition))
    # A difference names both sides; a single side omits its default.
    named = [f"{name or 'default'} - {versus}" if versus else name or "" for name, versus in sides]
    place = " in ".join(filter(None, named))
    if criterion.inside is not None:
        bound = f"inside [{criterion.inside[0]:g}, {criterion.inside[1]:g}]"
    else:
        bound = f"above {criterion.above:g}" if criterion.above is not None else f"below {criterion.below:g}"
    return f"{criterion.estimate} {bound}{f' ({place})' if place else ''}"


def _says(criterion: Criterion, estimate: Estimate, value: float) -> tuple[Answer, str]:
    if not describes(criterion.estimate) and estimate.interval is None:
        return Answer.INCONCLUSIVE, f"no interval: {estimate.why}"
    low, high = (value, value) if estimate.interval is None else (estimate.low, estimate.high)
    if criterion.inside is not None:
        first, last = criterion.inside
        holds, fails = first <= low and high <= last, high < first or low > last
    elif criterion.above is not None:
        holds, fails = low > criterion.above, high <= criterion.above
    else:
        assert criterion.below is not None
        holds, fails = high < criterion.below, low >= criterion.below
    if holds or fails:
        return Answer.PASS if holds else Answer.FAIL, ""
    return Answer.INCONCLUSIVE, "the interval holds both answers"
