"""Criteria that no data can pass: a p-value that cannot be small enough, an interval of one unit.

    sign flips of n differences         2 / 2^n up to n = 16, then 1 / (B + 1) of B sampled patterns
    a null of B draws                   1 / (B + 1)
    Welch's test                        0

Criteria of statistic `p` are adjusted together (Holm), so that m of them need a smallest p of a level / m.
"""

from collections.abc import Iterator
from pathlib import Path

from probe.analysis.statistics.permutation import NUM_DRAWS as NULL_DRAWS
from probe.analysis.statistics.significance import EXACT_SIGN_FLIPS, NUM_DRAWS, holm
from probe.experiments.spec.stored import stored_if_readable
from probe.experiments.spec.types import Criterion, ResolvedCondition, Spec
from probe.settings.run import TrainConfig
from replay_pools.errors import InputError

INTERVALS = ("mean", "lower95", "upper95", "interval90")  # statistics that are judged by an interval
# Estimates that are no mean over units: they have the p of a null, or none.
NO_MEAN = ("auroc", "cos_in_mean", "pair_sign")


def unpassable_criteria(spec: Spec, out_dir: Path) -> Iterator[InputError]:
    """Every criterion that is never PASS, whatever the data."""
    floors: dict[str, float] = {}
    for criterion in spec.criteria:
        where, units = f"{spec.path} criteria.{criterion.name}", _num_units(spec, criterion, out_dir)
        if criterion.statistic in INTERVALS and units == 1 and not criterion.metric.startswith(NO_MEAN):
            expected = f"at least 2 {criterion.unit}s, for an interval"
            yield InputError(where, expected=expected, found="1", fix=f"more {criterion.unit}s, or the statistic value")
        if criterion.statistic != "p":
            continue
        floor = smallest_p(criterion, units)
        if floor is None:
            text = f"a null (null = ...), because {criterion.metric} by {criterion.unit} has no p of its own"
            yield InputError(f"{where}.statistic", expected=text, found="none")
            continue
        floors[criterion.name] = floor
    yield from _above_their_level(spec, floors, out_dir)


def smallest_p(criterion: Criterion, units: int | None) -> float | None:
    """The smallest p that a criterion can read; None where it has none at all.

    Args:
        units: that it is tested over; None: not known, and taken as many.
    """
    if criterion.unit == "sample" or criterion.metric.startswith(NO_MEAN):
        return None if criterion.null in ("none", "baselines") else 1 / (NULL_DRAWS + 1)
    compared = criterion.versus_arm is not None or criterion.versus_condition is not None
    if compared and not criterion.paired:
        return 0.0 if units is None or units > 1 else 1.0
    return sign_flip_floor(units)


def sign_flip_floor(units: int | None) -> float:
    """The smallest two-sided p of sign flips of so many differences."""
    if units is None or units > EXACT_SIGN_FLIPS:
        return 1 / (NUM_DRAWS + 1)
    return 2 / 2**units


def _above_their_level(spec: Spec, floors: dict[str, float], out_dir: Path) -> Iterator[InputError]:
    """Criteria whose smallest p, or its Holm adjustment in the family of the spec, is not below their level."""
    # Holm's adjusted p only falls with every p: at their floors all are as small as they can be.
    adjusted = holm(floors)
    for criterion in spec.criteria:
        if criterion.name not in floors or isinstance(criterion.threshold, tuple):
            continue
        floor, level, units = floors[criterion.name], criterion.threshold, _num_units(spec, criterion, out_dir)
        where = f"{spec.path} criteria.{criterion.name}.threshold"
        of = f"{units} {criterion.unit}s" if units is not None else f"its {criterion.unit}s"
        if floor > level or (floor == level and criterion.comparison == "<"):
            fix = f"more {criterion.unit}s, or the statistic lower95 or upper95"
            expected = f"a level above {floor:.3g}, the smallest p of {of}"
            yield InputError(where, expected=expected, found=f"{level:g}", fix=fix)
        elif len(floors) > 1 and adjusted[criterion.name] >= level:
            expected = f"a level above {adjusted[criterion.name]:.3g}, the smallest p of {of} after Holm"
            fix = f"more {criterion.unit}s, or fewer than {len(floors)} criteria of statistic p"
            yield InputError(where, expected=expected, found=f"{level:g}", fix=fix)


def num_units(spec: Spec, condition: ResolvedCondition, unit: str, out_dir: Path) -> int | None:
    """How many units of a kind the runs of a condition have at most; None where that is not known before they ran."""
    if unit == "seed":
        return len(spec.seeds)
    if unit == "problem" and isinstance(condition.config, TrainConfig):
        return condition.config.evaluation.num_problems
    if unit == "prompt" and condition.frozen:
        groups = stored_if_readable(condition, out_dir)
        return None if groups is None else groups.num_prompts
    return None


def _num_units(spec: Spec, criterion: Criterion, out_dir: Path) -> int | None:
    """Units of the side of a criterion that has fewer."""
    names = {spec.condition_of(criterion).name, criterion.versus_condition} - {None}
    counts = [num_units(spec, spec.resolved[str(name)], criterion.unit, out_dir) for name in names]
    known = [count for count in counts if count is not None]
    return min(known, default=None)
