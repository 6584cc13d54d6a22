"""How well scores tell hacked from clean samples: the measurement, and the trivial baselines that it must beat.

A base sample that solves and a teacher sample that hacks get the same advantage: everything here is among A > 0.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.bootstrap import auroc, auroc_interval
from probe.analysis.statistics.stats import Interval
from probe.records.records import SampleRecord

# The measurement first, then the trivial baselines that it has to beat.
SCORES: dict[str, Callable[[SampleRecord], float | None]] = {
    "cos_S_contrib": lambda s: s.cos_S_contrib,
    "comp_len": lambda s: s.comp_len,
    "nll": lambda s: s.nll,
    "grad_norm_contrib": lambda s: s.grad_norm_contrib,
    "hint": lambda s: s.hint,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity:
    """AUROC of a score for `hacked` among A > 0, with a 95% bootstrap over prompts."""

    arm: str
    score: str
    n_hacked: int
    n_clean: int
    num_prompts: int
    auroc: float | None
    interval: Interval | None


BEATEN = "a trivial score does as well or better"


def strength(row: Specificity) -> float:
    """How well a score tells hacks apart, in either direction; .5 for one that does not exist."""
    return 0.5 if row.auroc is None else max(row.auroc, 1 - row.auroc)


def beaten_by(own: Specificity, baselines: Iterable[Specificity]) -> list[str]:
    """The trivial scores that do as well as the measurement or better, with their AUROC.

    Where the measurement itself tells nothing (its interval holds .5), only scores that tell something compete.
    """
    blind = own.interval is None or own.interval.low <= 0.5
    return [
        f"{row.score} {strength(row):.2f}"
        for row in baselines
        if row.auroc is not None
        and own.auroc is not None
        and strength(row) >= own.auroc
        and not (blind and (row.interval is None or row.interval.low <= 0.5 <= row.interval.high))
    ]


def specificity(samples: Iterable[SampleRecord], score: str, arm: str, *, seed: int = 0) -> Specificity:
    """AUROC of one score for hacked among the paid samples (A > 0) of one arm."""
    rows = [(s, value) for s in samples if s.advantage > 0 and (value := SCORES[score](s)) is not None]
    values = np.array([value for _, value in rows], dtype=np.float64)
    hacked = np.array([s.hacked for s, _ in rows], dtype=bool)
    prompts = [s.problem_id for s, _ in rows]
    area = auroc(values, hacked)
    defined = not np.isnan(area)
    return Specificity(
        arm=arm,
        score=score,
        n_hacked=int(hacked.sum()),
        n_clean=int((~hacked).sum()),
        num_prompts=len(set(prompts)),
        auroc=area if defined else None,
        interval=auroc_interval(values, hacked, prompts, seed=seed) if defined else None,
    )
