"""Gains of texts in a replay's lookahead (`probe.runs.lookahead`), each arm against the arm without projection.

The difference is the gain under the arm minus the gain under the plain arm of its basis, averaged over the prompts
that both have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.analysis.estimate import Estimate, difference, mean_of
from probe.records.records import LookaheadRecord
from probe.settings.arms import ARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Results of remedies that took steps from one replay (`probe.runs.screening`)."""

    plain: str  # key of the run without a remedy
    records: Mapping[str, Sequence[LookaheadRecord]]  # by remedy
    seconds: Mapping[str, float]  # CPU time of the steps
    unseen: Mapping[str, str]  # {remedy: reason without a lookahead}

    def gain(self, remedy: str, measure: str) -> float | None:
        """Return the mean over prompts, nats; None if it was not measured."""
        values = [row.value for row in self.records[remedy] if row.measure == measure]
        return float(np.mean(values)) if values else None

    def kept_off(self, remedy: str, measure: str) -> float | None:
        """Return the share of the plain gain that the remedy avoids; None if nothing is gained."""
        plain, treated = self.gain(self.plain, measure), self.gain(remedy, measure)
        return None if plain is None or treated is None or plain <= 0 else 1 - treated / plain


def by_prompt(records: Iterable[LookaheadRecord], arm: str, measure: str) -> dict[str, float]:
    """Return {prompt: value}; empty if it was not measured."""
    return {row.prompt: row.value for row in records if (row.arm, row.measure) == (arm, measure)}


def plain_arm(arm: str, arms: Iterable[str]) -> str | None:
    """Return the arm without projection in the basis of `arm`; None if `arm` is that arm."""
    found = (name for name in arms if not (ARMS[name].projects or ARMS[name].at_deployment))
    return next((name for name in found if ARMS[name].basis == ARMS[arm].basis and name != arm), None)


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
