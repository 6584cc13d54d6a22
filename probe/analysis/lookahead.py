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


def plain_arm(arm: str, arms: Iterable[str]) -> str | None:
    """Return the arm without projection in the basis of `arm`; None if `arm` is that arm."""
    plain = (name for name in arms if not (ARMS[name].projects or ARMS[name].at_deployment))
    return next((name for name in plain if ARMS[name].basis == ARMS[arm].basis and name != arm), None)


def moves(records: Sequence[LookaheadRecord]) -> list[Estimate]:
    """Return each arm's gain by measure, nats; for a projecting arm also its difference from the plain arm."""
    rows = []
    arms = [*dict.fromkeys(row.arm for row in records)]
    for arm, measure in dict.fromkeys((row.arm, row.measure) for row in records):
        gained, plain = by_prompt(records, arm, measure), plain_arm(arm, arms)
        rows.append(mean_of(measure, gained, "prompt", arm=arm))
        if plain is not None and (others := by_prompt(records, plain, measure)):
            less = difference(rows[-1], mean_of(measure, others, "prompt", arm=plain))
            rows.append(replace(less, name=f"{measure}, minus {plain}"))
    return rows
