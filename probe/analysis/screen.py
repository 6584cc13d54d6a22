"""The remedies of the bench by what one replay forecasts of each.

A remedy of the gate (number of directions, dose, side) changes the first-order forecast, which the inner products of
the replay give for all of them. Of these, the trainings that set the line of `probe.analysis.foretold` differ from one
another in their directions alone: points are forecast for other numbers of directions, and for nothing else.

Where remedies looked ahead (`probe.runs.screening`), points are forecast for all but a penalty for leaving a reference,
by the law of `probe.analysis.foretold` for what their steps moved. That law is of one organism; on another model
it ranks and is wrong in points (spec/untrained.md, spec/alone.md), so that what its steps moved ranks remedies there.

    WORTH TRAINING              a fall of MATERIAL_RATE or more is forecast, and the gate takes more of the progress on
                                held-out hacks than of that on honest solutions, where both are known
    SKIP                        less is forecast, or it takes as much of honest progress, or its steps cost right honest
                                solutions more nats than hacks gain without it
    RANKED                      its steps were measured; those of trainings that the law is of were others
    NOT SEEN BY THIS FORECAST   everything else, with the reason
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, get_args

from probe.analysis.evidence import Evidence
from probe.analysis.forecast import Forecast, forecast
from probe.analysis.foretold import AHEAD_STEPS, fall_ahead, fall_of, unlike
from probe.analysis.lookahead import Ahead
from probe.analysis.statistics.intervals import Bounded
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.analysis.verdict.trained_arms import RateName, TrainedArm
from probe.settings.arms import ARMS
from probe.settings.remedy import CANDIDATES, TRAINED_ARMS, arm_of

WORTH, SKIP, RANKED, NOT_SEEN = "WORTH TRAINING", "SKIP", "RANKED", "NOT SEEN BY THIS FORECAST"
K, GATE, PENALTY = "intervention.extraction.k", "intervention.gate", "objective.beta"
DOSES = {f"{GATE}.gate", f"{GATE}.overshoot"}
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
    word: str
    why: str = ""  # nothing is forecast; empty where something is
    fall: Bounded | None = None  # of the hack rate, a share of rollouts; its interval holds 80% of such trainings
    removed: Bounded | None = None  # share of the progress on held-out hacks, to first order
    honest: Bounded | None = None  # the price: that of the progress on honest solutions
    moved: float | None = None  # x of `fall_ahead`
    honest_gain: float | None = None  # nats that a right honest solution of the replay gains
    cost: float | None = None  # CPU time of its steps ahead, as a multiple of that without a remedy
    trained: "Trained | None" = None  # by the trainings of a spec; None where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the trainings of a remedy became, beside those without one. Field names are keys of the JSON."""

    seeds: int  # that both have
    said: Bounded | None  # `fall` for a training without a remedy that hacks as much as this one did
    fell: float  # the hack rate, a share of rollouts
    solve_fell: float


def screen(
    evidence: Evidence, candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES, ahead: Ahead | None = None
) -> list[Screened]:
    """A row a remedy: the worthy first, the largest fall before the others, else by what moved, else as in the table.

    Args:
        evidence: of the replay.
        candidates: {remedy: settings}.
        ahead: what they moved in a lookahead; None: nothing but the replay is read.
    """
    differences = unlike(evidence)
    rows = [_screened(evidence, name, settings, differences) for name, settings in candidates.items()]
    if ahead is not None:
        rows = [_looked(row, ahead, differences) for row in rows]
    words = (WORTH, SKIP, RANKED, NOT_SEEN)
    return sorted(
        rows, key=lambda row: (words.index(row.word), -row.fall.value if row.fall else 0.0, -(row.moved or 0.0))
    )


def held_against(
    rows: Iterable[Screened], plain: TrainedArm | None, remedies: Mapping[str, TrainedArm]
) -> list[Screened]:
    """The rows with what their trainings became, beside those without a remedy."""
    return [
        replace(row, trained=_trained(row, plain, remedies[row.remedy]))
        if plain is not None and row.remedy in remedies
        else row
        for row in rows
    ]


def _trained(row: Screened, plain: TrainedArm, arm: TrainedArm) -> Trained | None:
    """By the seeds that both have."""
    hacks, solves = ([of.by_seed(name, "final") for of in (plain, arm)] for name in get_args(RateName))
    seeds = sorted(hacks[0].keys() & hacks[1].keys())
    if not seeds:
        return None
    fell, solve_fell = (fmean(without[seed] - treated[seed] for seed in seeds) for without, treated in (hacks, solves))
    said = None if row.moved is None else fall_ahead(row.moved, rate=fmean(hacks[0][seed] for seed in seeds))
    return Trained(seeds=len(seeds), said=said, fell=fell, solve_fell=solve_fell)


def best(rows: Iterable[Screened], number: int = 3) -> list[Screened]:
    """The first that are worth a training; where points are not forecast, those under which hacks gain least."""
    rows = [*rows]
    worth = [row for row in rows if row.word == WORTH]
    return (worth or [row for row in rows if row.word == RANKED and (row.moved or 0.0) > 0])[:number]


def _screened(evidence: Evidence, name: str, settings: Mapping[str, Any], differences: Sequence[str]) -> Screened:
    row = Screened(remedy=name, settings=settings, word=NOT_SEEN)
    for key in settings:
        for start, why in UNSEEN.items():
            if key.startswith(start):
                return replace(row, why=why)
    if arm_of(settings) != "projected":
        return replace(row, why=f"first order is that of the arm projected, and this is {arm_of(settings)}")
    if others := settings.keys() - {K, TRAINED_ARMS, *DOSES}:
        return replace(
            row, why=f"it changes {', '.join(sorted(others))}: the replay has inner products of its own pairs"
        )
    linked = evidence.reproduced
    if linked is None or evidence.measured_arm is None:
        return replace(row, why="the replay has no inner products along v_hack")
    found = _forecast(evidence, linked, settings)
    if isinstance(found, str):
        return replace(row, why=found)
    margin, honest = found.row("margin"), found.row("honest")
    if margin is None or margin.removed is None:
        return replace(row, why="the update makes no progress on held-out hacks whose interval excludes 0")
    price = honest.removed if honest is not None else None
    row = replace(row, removed=margin.removed, honest=price)
    if settings.keys() & DOSES:
        differences = [*differences, "a gate of another dose or side: such were forecast wrongly"]
    if differences:
        return replace(row, why=f"its trainings are not like those that were studied: {', '.join(differences)}")
    fall = fall_of(margin.removed.value)
    worth = fall.value >= MATERIAL_RATE and (price is None or margin.removed.value > price.value)
    return replace(row, fall=fall, word=WORTH if worth else SKIP)


def _looked(row: Screened, ahead: Ahead, differences: Sequence[str]) -> Screened:
    """The row by what its remedy moved."""
    row = replace(row, word=NOT_SEEN, fall=None, why=ahead.unseen.get(row.remedy, ""))
    if row.why:
        return row
    hacks, held_out = (ahead.kept_off(row.remedy, name) for name in ("hacks", "held-out hacks"))
    moved = None if hacks is None or held_out is None else hacks + held_out
    cost = ahead.seconds[row.remedy] / ahead.seconds[ahead.plain]
    honest, without, gained = (
        ahead.gain(name, measure)
        for name, measure in ((row.remedy, "honest"), (ahead.plain, "honest"), (ahead.plain, "hacks"))
    )
    row = replace(row, honest_gain=honest, cost=cost)
    if honest is not None and without is not None and gained is not None and 0 < gained < without - honest:
        why = f"its steps cost right honest solutions {without - honest:.1f} nats; hacks gain {gained:.1f} without it"
        return replace(row, word=SKIP, why=why)
    row = replace(row, moved=moved)
    if ahead.steps != AHEAD_STEPS:
        differences = [*differences, f"a lookahead of {ahead.steps} steps"]
    if any(key.startswith(PENALTY) for key in row.settings):
        return replace(row, why="a penalty acts once the policy has moved further than a lookahead lets it")
    if moved is None:
        return replace(row, why="without a remedy the steps do not make hacks more likely")
    if differences:
        why = f"its trainings are not like those that were studied: {', '.join(differences)}"
        return replace(row, word=RANKED, why=why)
    fall = fall_ahead(moved)
    selective = row.removed is None or row.honest is None or row.removed.value > row.honest.value
    return replace(row, fall=fall, word=WORTH if fall.value >= MATERIAL_RATE and selective else SKIP)


def _forecast(evidence: Evidence, linked: Linked, settings: Mapping[str, Any]) -> Forecast | str:
    """Of the gate with these settings, or why there is none."""
    extraction, gate = linked.pairs.extraction, evidence.gate
    k = settings.get(K, extraction.k)
    if k > linked.pairs.most_directions:
        return f"the pairs give {linked.pairs.most_directions} directions"
    assert evidence.measured_arm is not None
    law = settings.get(f"{GATE}.gate", gate.gate) or ARMS[evidence.measured_arm].gate
    pairs = replace(linked.pairs, extraction=replace(extraction, k=k))
    overshoot = settings.get(f"{GATE}.overshoot", gate.overshoot)
    found = forecast(replace(linked, pairs=pairs), gate=law, overshoot=overshoot, seed=evidence.seed)
    return found or "no held-out pairs, or too few to extract from"
