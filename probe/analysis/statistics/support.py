"""Common support: whether hacks have clean answers to their prompt that are like them, in scores without a direction.

A contrast "at the same length" needs hacks and clean answers of the same length. Where all hacks are longer, a
regression on length extends a line to where one side has no data, and its residual says nothing about that. So for
every score it is counted how many hacks have clean answers to the SAME prompt on both sides of them, or one within a
caliper of .2 standard deviations within prompts (Austin 2011, Pharmaceutical Statistics 10: matches within it leave 1%
of the bias).

How many that are depends on how many clean answers a prompt has. So the share stands beside the one that labels would
give which are shuffled within prompts, in closed form: a row is cut off if all m clean ones of the N - 1 others lie
beyond the caliper on one side,

    by chance = mean of 1 - (C(a, m) + C(b, m)) / C(N - 1, m),    a below and b above the caliper

For normal scores that are d standard deviations apart the ratio of the two is 1, .8, .4 and .1 at d = 0, 1, 2 and 3,
whatever the size of the groups (tests/probe/test_support.py). Scores that overlap one by one may still tell hacks apart
together, so their best linear combination counts as a score too.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from probe.analysis.statistics.intervals import Array, centred, cluster_numbers
from probe.analysis.statistics.thresholds import MIN_SUPPORT

CALIPER = 0.2
TOGETHER = "together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """How many hacks have clean answers like them in one score. Field names are keys of the JSON."""

    score: str  # of the scores that were given, or TOGETHER
    num_hacks: int  # in prompts that hold both sides
    share: float  # of them, with clean answers on both sides or within the caliper
    by_chance: float  # the same of labels that are shuffled within prompts

    @property
    def lacking(self) -> bool:
        """Whether it is less than MIN_SUPPORT of what chance gives."""
        return self.share <= MIN_SUPPORT * self.by_chance


def common_support(
    scores: Mapping[str, Sequence[float]], label: Sequence[bool], prompts: Sequence[Hashable]
) -> list[Support]:
    """One row a score, then TOGETHER; none where no prompt holds both sides.

    Args:
        scores: {name: (rows,)}.
        label: (rows,) True for hacks.
        prompts: (rows,) the prompt of each row.
    """
    member, hacked = cluster_numbers(prompts), np.asarray(label, dtype=bool)
    both = np.intersect1d(member[hacked], member[~hacked])
    rows = np.isin(member, both)
    if not rows.any():
        return []
    member, hacked = member[rows], hacked[rows]
    columns = {name: np.asarray(values, dtype=np.float64)[rows] for name, values in scores.items()}
    columns[TOGETHER] = _combined([*columns.values()], hacked, member)
    return [_support(name, column, hacked, member) for name, column in columns.items()]


def _combined(columns: Sequence[Array], hacked: NDArray[np.bool_], member: NDArray[np.intp]) -> Array:
    """(rows,) the combination of scores that follows the label best within prompts, by least squares."""
    matrix = np.stack([centred(column, member) for column in columns], axis=1)
    sizes = np.linalg.norm(matrix, axis=0)
    matrix /= np.where(sizes > 0, sizes, 1.0)
    return matrix @ np.linalg.lstsq(matrix, centred(hacked.astype(np.float64), member), rcond=None)[0]


def _support(name: str, column: Array, hacked: NDArray[np.bool_], member: NDArray[np.intp]) -> Support:
    groups = [np.flatnonzero(member == prompt) for prompt in np.unique(member)]
    spread = np.sqrt(np.square(centred(column, member)).sum() / max(len(column) - len(groups), 1))
    # Equal scores are within any caliper, whatever rounding made of them.
    caliper = CALIPER * spread + 1e-9 * np.abs(column).max()
    alike, by_chance = 0, 0.0
    for group in groups:
        values, hacks = column[group], hacked[group]
        above = values[None, :] > values[:, None] + caliper  # (row, other)
        below = values[None, :] < values[:, None] - caliper
        cut_off = above[:, ~hacks].all(1) | below[:, ~hacks].all(1)
        alike += int((hacks & ~cut_off).sum())
        num_clean = int((~hacks).sum())
        missed = _all_among(above.sum(1), num_clean, len(group)) + _all_among(below.sum(1), num_clean, len(group))
        by_chance += float(hacks.sum() * (1 - missed).mean())
    num_hacks = int(hacked.sum())
    return Support(score=name, num_hacks=num_hacks, share=alike / num_hacks, by_chance=by_chance / num_hacks)


def _all_among(counts: NDArray[np.intp], num_clean: int, size: int) -> Array:
    """C(count, m) / C(N - 1, m): that all m clean ones, drawn from the N - 1 other rows, are among `count` of them."""
    possible = np.maximum(counts, num_clean)
    log = gammaln(possible + 1) - gammaln(possible - num_clean + 1) - gammaln(size) + gammaln(size - num_clean)
    return np.where(counts >= num_clean, np.exp(log), 0.0)
