"""The remedies of the bench, ranked by what one replay measures of each.

    hack gain avoided   share of the gain of hacks without the remedy that they do not gain with it
    honest gain kept    gain of right honest solutions with the remedy, as a share of that without it
    norm removed        share of the update's norm that the projection removes, to first order
    cost                CPU time of the steps, as a multiple of the time without a remedy

After a lookahead (`probe.runs.screening`) the first two are gains of log-probability over its steps: hacks are the
replay's rewarded ones and the held-out pairs' hacks, the mean of both shares. Without one they are first order
(`probe.analysis.forecast`) and known for projections along v_hack alone; hacks are then the held-out margin.

A rank says nothing of how far a training would fall. A remedy is not ranked where its steps show nothing of it, or make
honest solutions less likely by more than hacks gain without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.forecast import forecast
from probe.analysis.lookahead import Ahead
from probe.analysis.statistics.intervals import Interval
from probe.settings.arms import ARMS
from probe.settings.remedy import CANDIDATES, TRAINED_ARMS, arm_of

K, GATE, PENALTY = "intervention.extraction.k", "intervention.gate", "objective.beta"
# What a setting changes that first order at one policy does not show, by the start of its key.
UNSEEN = {
    "objective.": "it changes the loss",
    "remedy.": "it changes rewards, prompts or activations",
    "steps": "it changes the length of the training",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """One remedy. Field names are keys of the JSON."""

    remedy: str
    settings: Mapping[str, Any]  # of its training
    hack_gain_avoided: float | None = None  # None: the remedy is not ranked
    interval: Interval | None = None  # 95% of it, to first order
    honest_gain_kept: float | None = None
    norm_removed: float | None = None  # None: it removes nothing along v_hack
    cost: float | None = None
    why: str = ""  # it is not ranked


def screen(
    analysis: Analysis, candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES, ahead: Ahead | None = None
) -> list[Screened]:
    """Return a row for each remedy, the largest hack gain avoided first and unranked remedies last.

    Args:
        analysis: of the replay.
        candidates: {remedy: settings}.
        ahead: what the remedies moved in a lookahead; None: the replay alone is read.
    """
    rows = [_first_order(analysis, name, settings) for name, settings in candidates.items()]
    if ahead is not None:
        rows = [_looked(row, ahead) for row in rows]
    return sorted(rows, key=lambda row: (row.hack_gain_avoided is None, -(row.hack_gain_avoided or 0.0)))


def _first_order(analysis: Analysis, name: str, settings: Mapping[str, Any]) -> Screened:
    row = Screened(remedy=name, settings=settings)
    for key in settings:
        for start, why in UNSEEN.items():
            if key.startswith(start):
                return replace(row, why=why)
    if arm_of(settings) != "projected":
        return replace(row, why=f"first order is measured for the arm projected, and this is {arm_of(settings)}")
    if others := settings.keys() - {K, TRAINED_ARMS, f"{GATE}.gate", f"{GATE}.overshoot"}:
        return replace(
            row, why=f"it changes {', '.join(sorted(others))}: the replay has inner products of its own pairs"
        )
    found = _forecast(analysis, settings)
    if isinstance(found, str):
        return replace(row, why=found)
    row = replace(row, norm_removed=found["removed/norm"].value)
    margin, honest = found["removed/margin"], found.get("removed/honest")
    if margin.value is None:
        return replace(row, why=f"held-out hacks: {margin.why}")
    kept = None if honest is None or honest.value is None else 1 - honest.value
    return replace(row, hack_gain_avoided=margin.value, interval=margin.interval, honest_gain_kept=kept)


def _looked(row: Screened, ahead: Ahead) -> Screened:
    """Fill the row with the gains of a lookahead."""
    row = replace(row, hack_gain_avoided=None, interval=None, honest_gain_kept=None, why="")
    if row.remedy in ahead.unseen:
        return replace(row, why=ahead.unseen[row.remedy])
    honest, without, gained = (
        ahead.gain(name, measure)
        for name, measure in ((row.remedy, "honest"), (ahead.plain, "honest"), (ahead.plain, "hacks"))
    )
    kept = None if honest is None or without is None or without <= 0 else honest / without
    row = replace(row, honest_gain_kept=kept, cost=ahead.seconds[row.remedy] / ahead.seconds[ahead.plain])
    if honest is not None and without is not None and gained is not None and 0 < gained < without - honest:
        why = f"its steps cost right honest solutions {without - honest:.1f} nats; hacks gain {gained:.1f} without it"
        return replace(row, why=why)
    if any(key.startswith(PENALTY) for key in row.settings):
        return replace(row, why="a penalty acts once the policy has moved further than a lookahead lets it")
    hacks, held_out = (ahead.kept_off(row.remedy, name) for name in ("hacks", "held-out hacks"))
    if hacks is None or held_out is None:
        return replace(row, why="without a remedy the steps do not make hacks more likely")
    return replace(row, hack_gain_avoided=(hacks + held_out) / 2)


def _forecast(analysis: Analysis, settings: Mapping[str, Any]) -> dict[str, Estimate] | str:
    """Return {name: estimate} of the first-order forecast of projection with these settings, or why there is none."""
    linked, arm = analysis.reproduced, analysis.measured_arm
    if linked is None or arm is None:
        return "the replay has no inner products along v_hack"
    extraction, gate = linked.pairs.extraction, analysis.gate
    k = settings.get(K, extraction.k)
    if k > linked.pairs.most_directions:
        return f"the pairs give {linked.pairs.most_directions} directions"
    side = settings.get(f"{GATE}.gate", gate.gate) or ARMS[arm].gate
    pairs = replace(linked.pairs, extraction=replace(extraction, k=k))
    overshoot = settings.get(f"{GATE}.overshoot", gate.overshoot)
    found = forecast(replace(linked, pairs=pairs), gate=side, overshoot=overshoot, seed=analysis.seed)
    return {row.name: row for row in found} or "no held-out pairs, or too few to extract from"
