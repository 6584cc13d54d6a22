"""Decisions that no evidence can reach, before any data: requirements that exclude one another, or an earlier decision.

A decision is a box: for every name that it requires, the verdicts that it allows. It is reached where some verdicts lie
in its box and in none of the boxes before it, because the first decision that holds is taken. Not every combination of
verdicts exists: a criterion has only those of `possible_verdicts`, and what two criteria of one statistic say of it has
to fit together,

    min <= mean <= max,   lower95 <= mean <= upper95,   PASS of "mean > t" is lower95 > t, FAIL is upper95 <= t
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

from probe.experiments.spec.prereg import allowed
from probe.experiments.spec.types import WORDS, Criterion, Spec, SpecDecision
from replay_pools.errors import InputError

Box = Mapping[str, frozenset[str]]  # {criterion, `verdict` or `outcome`: words}
Bound = tuple[str, str, float]  # statistic, comparison, threshold

UNDECIDED = frozenset({"INCONCLUSIVE", "VACUOUS"})  # say nothing of the statistic
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_NEVER_ABOVE = {("min", "mean"), ("mean", "max"), ("lower95", "mean"), ("mean", "upper95"), ("lower95", "upper95")}


def unreachable_decisions(spec: Spec, never_pass: frozenset[str]) -> Iterator[InputError]:
    """Every decision but the last that can never be taken.

    Args:
        never_pass: criteria that are VACUOUS at best.
    """
    verdicts = _verdicts(spec, never_pass)
    boxes = [_box(decision, verdicts) for decision in spec.decisions]
    for number, decision in enumerate(spec.decisions[:-1]):
        where, box = f"{spec.path} decisions.{decision.name}.requires", boxes[number]
        if impossible := _impossible(decision, verdicts):
            name, wanted = impossible
            can_be = ", ".join(sorted(verdicts[name]))
            fix = f"require what {name} can be, or change the criterion"
            yield InputError(where, expected=f"{name} to be one of {can_be}", found=wanted, fix=fix)
        elif not _consistent(spec, box):
            fix = "no data give both: change a threshold, or drop one of the requirements"
            yield InputError(where, expected="requirements that can hold together", found=_conflict(spec, box), fix=fix)
        elif not _escapes(spec, verdicts, box, boxes[:number]):
            yield _shadowed(spec, number, boxes, where)


def possible_verdicts(criterion: Criterion, *, can_pass: bool = True) -> frozenset[str]:
    """The verdicts that `criteria.evaluate` can give. A p above its level shows no absence: it is never FAIL."""
    verdicts = {"PASS", "FAIL", *UNDECIDED}
    if criterion.statistic == "p" and criterion.null != "baselines":
        verdicts -= {"FAIL"}
    return frozenset(verdicts if can_pass else verdicts - {"PASS"})


def _verdicts(spec: Spec, never_pass: frozenset[str]) -> Box:
    """What every name that a decision may require can be."""
    verdicts = {name: frozenset(words) for name, words in WORDS.items()}
    for criterion in spec.criteria:
        verdicts[criterion.name] = possible_verdicts(criterion, can_pass=criterion.name not in never_pass)
    return verdicts


def _box(decision: SpecDecision, verdicts: Box) -> Box:
    """The words that a decision allows of every name that it requires, as far as it can be one of them."""
    return {name: verdicts[name].intersection(allowed(decision, name)) for name in decision.requires}


def _impossible(decision: SpecDecision, verdicts: Box) -> tuple[str, str] | None:
    """A name, and the words required of it, none of which it can be."""
    for name in decision.requires:
        if verdicts[name].isdisjoint(allowed(decision, name)):
            return name, " or ".join(allowed(decision, name))
    return None


def _escapes(spec: Spec, verdicts: Box, box: Box, earlier: Sequence[Box]) -> bool:
    """Whether some verdicts in a box are in none of the earlier ones."""
    if not _consistent(spec, box):
        return False
    if not earlier:
        return True
    first, *later = earlier
    for name, words in first.items():
        outside = box.get(name, verdicts[name]) - words
        if outside and _escapes(spec, verdicts, {**box, name: outside}, later):
            return True
    return False


def _shadowed(spec: Spec, number: int, boxes: Sequence[Box], where: str) -> InputError:
    """The error of a decision before which another one always holds: the one that asks for less, where one does."""
    box = boxes[number]
    for earlier, other in zip(spec.decisions[:number], boxes[:number], strict=True):
        if all(name in box and box[name] <= words for name, words in other.items()):
            return InputError(
                where,
                expected="a decision that some evidence reaches first",
                found=f"{earlier.name} before it, which requires less and is taken whenever this one holds",
                fix=f"put it before {earlier.name}",
            )
    return InputError(
        where,
        expected="a decision that some evidence reaches first",
        found="earlier decisions that together hold whenever this one does",
        fix="put it before them, or drop it",
    )


def _consistent(spec: Spec, box: Box) -> bool:
    """Whether data exist that give one of the allowed verdicts to every criterion."""
    decided = []
    for criterion in spec.criteria:
        words = box.get(criterion.name, UNDECIDED)
        if not words & UNDECIDED:
            decided.append([(criterion, word) for word in sorted(words)])
    return any(_fits(spec, choice) for choice in product(*decided))


def _conflict(spec: Spec, box: Box) -> str:
    """The two requirements that exclude one another, or all where no two of them do."""
    criteria = {criterion.name: criterion for criterion in spec.criteria}
    for left, right in combinations([name for name in box if name in criteria], 2):
        if not _consistent(spec, {left: box[left], right: box[right]}):
            return " and ".join(_words(criteria[name], box[name]) for name in (left, right))
    return ", ".join(_words(criteria[name], box[name]) for name in box if name in criteria)


def _words(criterion: Criterion, verdicts: frozenset[str]) -> str:
    threshold = list(criterion.threshold) if isinstance(criterion.threshold, tuple) else f"{criterion.threshold:g}"
    asked = f"{criterion.statistic} of {criterion.metric} {criterion.comparison} {threshold}"
    return f"{criterion.name} {' or '.join(sorted(verdicts))} ({asked})"


def _fits(spec: Spec, choice: Sequence[tuple[Criterion, str]]) -> bool:
    """Whether the bounds that these verdicts put on every statistic leave a number."""
    bounds: dict[tuple[object, ...], list[Bound]] = {}
    for criterion, verdict in choice:
        bounds.setdefault(_measured(spec, criterion), []).extend(_bounds(criterion, verdict))
    return all(_leave_a_number(rows) for rows in bounds.values())


def _measured(spec: Spec, criterion: Criterion) -> tuple[object, ...]:
    """What two criteria have in common that are about one estimate."""
    versus = (criterion.versus_arm, criterion.versus_condition)
    compared = versus != (None, None)
    # Without a rival there is nothing to pair.
    paired = criterion.paired or not compared
    return criterion.metric, criterion.unit, *spec.side_of(criterion), *versus, paired


def _bounds(criterion: Criterion, verdict: str) -> list[Bound]:
    """What a verdict says of the statistics of its estimate."""
    if verdict == "FAIL" and criterion.null == "baselines":
        return []  # beaten by a trivial score, whatever its size
    if isinstance(criterion.threshold, tuple):
        low, high = criterion.threshold
        # FAIL of an interval is one side or the other: no bound of its own.
        return [("mean", ">", low), ("mean", "<", high)] if verdict == "PASS" else []
    holds = criterion.comparison if verdict == "PASS" else _OPPOSITE[criterion.comparison]
    statistic = "mean" if criterion.statistic == "value" else criterion.statistic
    # A mean passes and fails with its whole interval, an end of the interval fails with the whole of it.
    if criterion.statistic == "mean" or (verdict == "FAIL" and criterion.statistic in ("lower95", "upper95")):
        statistic = "lower95" if holds in (">", ">=") else "upper95"
    return [(statistic, holds, criterion.threshold)]


def _leave_a_number(bounds: Sequence[Bound]) -> bool:
    """Whether no lower bound of a statistic is above an upper bound of one that is never below it."""
    for low_statistic, above, low in bounds:
        for high_statistic, below, high in bounds:
            ordered = low_statistic == high_statistic or (low_statistic, high_statistic) in _NEVER_ABOVE
            if not ordered or above not in (">", ">=") or below not in ("<", "<="):
                continue
            if low > high or (math.isclose(low, high) and (above, below) != (">=", "<=")):
                return False
    return True
