"""Gains of texts in a replay's lookahead (`probe.runs.lookahead`), each arm against the arm without projection.

The difference is the gain under the arm minus the gain under the plain arm of its basis, averaged over the prompts
that both have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from probe.analysis.estimate import Estimate, difference, mean_of
from probe.records.records import LookaheadRecord
from probe.settings.arms import ARMS

PLAIN = "plain"  # the lookahead without a remedy


class Looked(NamedTuple):
    """The lookahead of one remedy (`probe.runs.lookahead`)."""

    records: Sequence[LookaheadRecord]
    seconds: float  # CPU time of the steps


def gain(looked: Looked, measure: str) -> float | None:
    """Return the mean over prompts, nats; None if it was not measured."""
    values = [row.value for row in looked.records if row.measure == measure]
    return float(np.mean(values)) if values else None


def by_prompt(records: Iterable[LookaheadRecord], arm: str, measure: str) -> dict[str, float]:
    """Return {prompt: value}; empty if it was not measured."""
    return {row.prompt: row.value for row in records if (row.arm, row.measure) == (arm, measure)}


def moves(records: Sequence[LookaheadRecord]) -> list[Estimate]:
    """Return each arm's gain by measure, nats; for a projecting arm also its difference from the plain arm."""
    rows, arms = [], reversed([*dict.fromkeys(row.arm for row in records)])  # the first plain arm of a basis counts
    plain = {ARMS[arm].basis: arm for arm in arms if not (ARMS[arm].projects or ARMS[arm].at_deployment)}
    for arm, measure in dict.fromkeys((row.arm, row.measure) for row in records):
        rows.append(mean_of(measure, by_prompt(records, arm, measure), "prompt", arm=arm))
        other = plain.get(ARMS[arm].basis, arm)
        if other != arm and (gained := by_prompt(records, other, measure)):
            less = difference(rows[-1], mean_of(measure, gained, "prompt", arm=other))
            rows.append(replace(less, name=f"{measure}, minus {other}"))
    return rows
