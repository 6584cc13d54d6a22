"""What the lookahead of a replay moved (`probe.runs.lookahead`): every arm beside the one without a gate, by prompt.

difference    value of the arm minus that of the plain arm of its basis, a mean over the prompts that both have
share         of the progress on the held-out margin that the gate removes after the arm's steps, sum over prompts
              of what is removed over that of the progress: along the directions of the start, and along new ones
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.analysis.statistics.intervals import Bounded, fieller_interval, mean_covariance, t_interval
from probe.records.records import LookaheadRecord
from probe.settings.arms import ARMS

WHICH = ("old", "new")


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
class Stale:
    """How an arm's directions of the start fare after its steps. Field names are keys of the JSON."""

    arm: str
    overlap: float | None  # with those that are extracted anew: mean squared cosine of the principal angles
    old: Bounded | None  # share of the progress on held-out hacks that the gate removes along the old ones
    new: Bounded | None  # along new ones
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What remedies moved from one replay (`probe.runs.screening`)."""

    plain: str  # the name of none
    steps: int
    records: Mapping[str, Sequence[LookaheadRecord]]  # by remedy
    seconds: Mapping[str, float]  # of the CPU, of the steps
    unseen: Mapping[str, str]  # {remedy: why it did not look ahead}

    def gain(self, remedy: str, measure: str) -> float | None:
        """The mean over prompts, nats; None where it was not measured."""
        values = [row.value for row in self.records[remedy] if row.measure == measure]
        return float(np.mean(values)) if values else None

    def kept_off(self, remedy: str, measure: str) -> float | None:
        """The share of what is gained without a remedy that is not gained with it; None where nothing is gained."""
        plain, treated = self.gain(self.plain, measure), self.gain(remedy, measure)
        return None if plain is None or treated is None or plain <= 0 else 1 - treated / plain


def by_prompt(records: Iterable[LookaheadRecord], arm: str, measure: str) -> dict[str, float]:
    """{prompt: value}; empty where it was not measured."""
    return {row.prompt: row.value for row in records if (row.arm, row.measure) == (arm, measure)}


def plain_arm(arm: str, arms: Iterable[str]) -> str | None:
    """Of some arms the one without a gate in the basis of an arm; None for that one itself."""
    found = (name for name in arms if not (ARMS[name].projects or ARMS[name].routes))
    return next((name for name in found if ARMS[name].basis == ARMS[arm].basis and name != arm), None)


def moves(records: Sequence[LookaheadRecord]) -> list[Moved]:
    """A row an arm and measure, in the order of the records, but for those of `stale`."""
    rows = []
    arms = [*dict.fromkeys(row.arm for row in records)]
    for arm, measure in dict.fromkeys((row.arm, row.measure) for row in records):
        if measure in ("overlap", "progress", *(f"removed by {which}" for which in WHICH)):
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
    """Nats that honest solutions lose where no text gains under an arm, whose steps then only destroy; else None."""
    gained = {row.measure: row.value for row in rows if row.arm == arm}
    texts = [gained[name] for name in ("hacks", "honest", "held-out hacks") if name in gained]
    return -gained["honest"] if "honest" in gained and max(texts) < 0 else None


def stale(records: Sequence[LookaheadRecord]) -> list[Stale]:
    """A row for every arm that removes v_hack."""
    rows = []
    for arm in dict.fromkeys(row.arm for row in records if row.measure in ("overlap", "progress")):
        progress = by_prompt(records, arm, "progress")
        shares: dict[str, Bounded | None] = {}
        for which in WHICH:
            removed = by_prompt(records, arm, f"removed by {which}")
            both = np.array([[removed[prompt], gained] for prompt, gained in progress.items()]).reshape(-1, 2)
            mean, interval = both.mean(0) if len(both) else np.zeros(2), None
            if len(both) > 1 and mean[1] > 0:
                interval = fieller_interval(float(mean[0]), float(mean[1]), [mean_covariance(both)], df=len(both) - 1)
            shares[which] = None if interval is None else Bounded(value=float(mean[0] / mean[1]), interval=interval)
        overlap = by_prompt(records, arm, "overlap").get("")
        rows.append(Stale(arm=arm, overlap=overlap, num_prompts=len(progress), **shares))
    return rows
