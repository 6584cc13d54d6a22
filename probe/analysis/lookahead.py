"""The gains of texts in the lookahead of a replay (`probe.runs.lookahead`), each arm against the one without a gate.

The difference is the gain under the arm minus the gain under the plain arm of its basis, a mean over the prompts that
both have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.intervals import Bounded, t_interval
from probe.records.records import LookaheadRecord
from probe.settings.arms import ARMS

MEASURES = ("hacks", "honest", "held-out hacks", "held-out clean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One measure of one arm after its steps. Field names are keys of the JSON."""

    arm: str
    measure: str
    value: float  # a mean over prompts
    plain: float | None = None  # of the arm without a gate
    difference: Bounded | None = None  # to it; None without such an arm, or where the prompts show no variance
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What remedies moved from one replay (`probe.runs.screening`)."""

    plain: str  # the name of none
    records: Mapping[str, Sequence[LookaheadRecord]]  # by remedy
    seconds: Mapping[str, float]  # of the CPU, of the steps
    unseen: Mapping[str, str]  # {remedy: why it did not look ahead}

    def gain(self, remedy: str, measure: str) -> float | None:
        """Return the mean over prompts, nats; None where it was not measured."""
        values = [row.value for row in self.records[remedy] if row.measure == measure]
        return float(np.mean(values)) if values else None

    def kept_off(self, remedy: str, measure: str) -> float | None:
        """Return the share of the gain without a remedy that the remedy avoids; None where nothing is gained."""
        plain, treated = self.gain(self.plain, measure), self.gain(remedy, measure)
        return None if plain is None or treated is None or plain <= 0 else 1 - treated / plain


def by_prompt(records: Iterable[LookaheadRecord], arm: str, measure: str) -> dict[str, float]:
    """Return {prompt: value}; empty where it was not measured."""
    return {row.prompt: row.value for row in records if (row.arm, row.measure) == (arm, measure)}


def plain_arm(arm: str, arms: Iterable[str]) -> str | None:
    """Return the arm without a gate in the basis of `arm`; None for that one itself."""
    found = (name for name in arms if not (ARMS[name].projects or ARMS[name].routes))
    return next((name for name in found if ARMS[name].basis == ARMS[arm].basis and name != arm), None)


def moves(records: Sequence[LookaheadRecord]) -> list[Moved]:
    """Return a row for each arm and measure, in the order of the records."""
    rows = []
    arms = [*dict.fromkeys(row.arm for row in records)]
    for arm, measure in dict.fromkeys((row.arm, row.measure) for row in records):
        if measure not in MEASURES:  # a run of an older version sampled, too
            continue
        values, plain = by_prompt(records, arm, measure), plain_arm(arm, arms)
        others = {} if plain is None else by_prompt(records, plain, measure)
        paired = [value - others[prompt] for prompt, value in values.items() if prompt in others]
        interval = t_interval(paired)
        rows.append(
            Moved(
                arm=arm,
                measure=measure,
                value=float(np.mean([*values.values()])),
                plain=float(np.mean([*others.values()])) if others else None,
                difference=None if interval is None else Bounded(value=float(np.mean(paired)), interval=interval),
                num_prompts=len(values),
            )
        )
    return rows


def lost_by_all(rows: Iterable[Moved], arm: str) -> float | None:
    """Return the nats that honest solutions lose if no text gains under an arm: its steps only destroy. Else None."""
    gained = {row.measure: row.value for row in rows if row.arm == arm}
    texts = [gained[name] for name in ("hacks", "honest", "held-out hacks") if name in gained]
    return -gained["honest"] if "honest" in gained and max(texts) < 0 else None
