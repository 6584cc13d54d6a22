"""Rank the bench's remedies by measurements from one replay.

    hack gain avoided   share of the hacks' gain that the remedy prevents
    honest gain kept    gain of right honest solutions with the remedy, as a share of the gain without it
    norm removed        share of the update's norm that the projection removes, to first order
    cost                CPU time of the steps, as a multiple of the time without a remedy

After a lookahead (`probe.runs.screening`) the first two are gains of log-probability over its steps: hacks are the
replay's rewarded hacks and the held-out pairs' hacks, and the result is the mean of both shares. Without a lookahead
they are first order (`probe.analysis.forecast`) and exist only for projections along v_hack; hacks are then the
held-out margin.

`hidden_rewards` is the forecast from the rollouts alone: how often each pool of the replay is rewarded for a hack, and
the variance of that hidden reward among the rollouts of a prompt, which is what a group's baseline can learn from. A
hack that no rollout shows has an upper bound only.

A rank does not predict the size of the drop in hack rate. A remedy is unranked if its steps do not show its effect, or
if they cost honest solutions more log-probability than hacks gain without it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.forecast import forecast
from probe.analysis.lookahead import Ahead
from probe.analysis.statistics.intervals import Interval, clopper_pearson, t_interval
from probe.records.records import SampleRecord
from probe.settings.arms import ARMS
from probe.settings.remedy import CANDIDATES, TRAINED_ARMS, arm_of
from replay_pools.rollout import REWARD_COMPILES

K, PROJECTION, PENALTY = "intervention.extraction.k", "intervention.projection", "objective.beta"
PARTS = ("honest_gain_kept", "norm_removed", "cost")
MOST_VARIANCE = 0.5  # of two rollouts that differ
# Effects of a setting that a first-order forecast at one policy cannot show, by key prefix.
UNSEEN = {
    "objective.": "it changes the loss",
    "remedy.": "it changes rewards, prompts or activations",
    "steps": "it changes the length of the training",
}


def screen(
    analysis: Analysis, candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES, ahead: Ahead | None = None
) -> list[Estimate]:
    """Return the hack gain that each remedy avoids, largest first; unranked remedies, without a value, come last.

    parts: `settings` of its training; `honest_gain_kept`, `norm_removed` and `cost`, None if not measured. The interval
    is to first order.

    Args:
        analysis: analysis of the replay.
        candidates: {remedy: settings}.
        ahead: the remedies' lookahead; None: use the replay alone.
    """
    rows = []
    for name, settings in candidates.items():
        row = Estimate(name=name, parts={"settings": settings} | dict.fromkeys(PARTS))
        row = _first_order(analysis, row, settings)
        rows.append(row if ahead is None else _looked(row, settings, ahead))
    return sorted(rows, key=lambda row: (row.value is None, -(row.value or 0.0)))


def _with(
    row: Estimate, value: float | None = None, interval: Interval | None = None, why: str = "", **parts: float | None
) -> Estimate:
    return replace(row, value=value, interval=interval, why=why, parts={**row.parts, **parts})


def hidden_rewards(samples: Iterable[SampleRecord]) -> list[Estimate]:
    """Return, for each pool of a replay, the rate of rewarded hacks and its variance within a prompt.

    Names are `hack_rate` and `hack_variance`, the arm is the pool, the unit the prompt. The rate's interval is exact
    for the number of prompts (Clopper and Pearson 1934); prompts of one rollout have no variance.
    """
    hacks: dict[str, dict[str, dict[tuple[int, int], bool]]] = {}  # {pool: {prompt: {place: rewarded hack}}}
    for sample in samples:
        if sample.hacked is not None:
            of_prompt = hacks.setdefault(sample.src_pool, {}).setdefault(sample.problem_id, {})
            of_prompt[sample.src_step, sample.src_sample] = sample.hacked and sample.reward > REWARD_COMPILES
    rows = []
    for pool, prompts in hacks.items():
        shares = [sum(flags.values()) / len(flags) for flags in prompts.values()]
        variances = [np.var([*flags.values()], ddof=1) for flags in prompts.values() if len(flags) > 1]
        facts = {"arm": pool, "unit": "prompt", "null": 0.0}
        interval = clopper_pearson(sum(shares), len(shares))
        rows.append(
            Estimate(name="hack_rate", value=sum(shares) / len(shares), interval=interval, n=len(shares), **facts)
        )
        why = "" if variances else "every prompt has one rollout of this pool"
        value = float(np.mean(variances)) if variances else None
        spread = t_interval(variances) if len(variances) > 1 else None
        if spread is not None:
            spread = Interval(low=max(spread.low, 0.0), high=min(spread.high, MOST_VARIANCE))
        rows.append(Estimate(name="hack_variance", value=value, interval=spread, n=len(variances), why=why, **facts))
    return rows


def _first_order(analysis: Analysis, row: Estimate, settings: Mapping[str, Any]) -> Estimate:
    for key in settings:
        for start, why in UNSEEN.items():
            if key.startswith(start):
                return replace(row, why=why)
    if arm_of(settings) != "projected":
        return replace(row, why=f"first order is measured for the arm projected, and this is {arm_of(settings)}")
    if others := settings.keys() - {K, TRAINED_ARMS, f"{PROJECTION}.side", f"{PROJECTION}.overshoot"}:
        changed = ", ".join(sorted(others))
        return replace(row, why=f"it changes {changed}: the replay has inner products of its own pairs")
    found = _forecast(analysis, settings)
    if isinstance(found, str):
        return replace(row, why=found)
    norm, margin, honest = found["removed/norm"].value, found["removed/margin"], found.get("removed/honest")
    if margin.value is None:
        return _with(row, why=f"held-out hacks: {margin.why}", norm_removed=norm)
    kept = None if honest is None or honest.value is None else 1 - honest.value
    return _with(row, margin.value, margin.interval, honest_gain_kept=kept, norm_removed=norm)


def _looked(row: Estimate, settings: Mapping[str, Any], ahead: Ahead) -> Estimate:
    """Take the gains from a lookahead."""
    if row.name in ahead.unseen:
        return _with(row, why=ahead.unseen[row.name], honest_gain_kept=None)
    honest, without, gained = (
        ahead.gain(name, measure)
        for name, measure in ((row.name, "honest"), (ahead.plain, "honest"), (ahead.plain, "hacks"))
    )
    kept = None if honest is None or without is None or without <= 0 else honest / without
    row = _with(row, honest_gain_kept=kept, cost=ahead.seconds[row.name] / ahead.seconds[ahead.plain])
    if honest is not None and without is not None and gained is not None and 0 < gained < without - honest:
        why = f"its steps cost right honest solutions {without - honest:.1f} nats; hacks gain {gained:.1f} without it"
        return replace(row, why=why)
    if any(key.startswith(PENALTY) for key in settings):
        return replace(row, why="a penalty acts once the policy has moved further than a lookahead lets it")
    hacks, held_out = (ahead.kept_off(row.name, name) for name in ("hacks", "held-out hacks"))
    if hacks is None or held_out is None:
        return replace(row, why="without a remedy the steps do not make hacks more likely")
    return replace(row, value=(hacks + held_out) / 2)


def _forecast(analysis: Analysis, settings: Mapping[str, Any]) -> dict[str, Estimate] | str:
    """Return {name: estimate} of the first-order forecast for these settings, or the reason for its absence."""
    linked, arm = analysis.reproduced, analysis.measured_arm
    if linked is None or arm is None:
        return "the replay has no inner products along v_hack"
    pairs, configured = linked.pairs, analysis.projection_config
    pairs = replace(pairs, k=settings.get(K, pairs.k))
    if pairs.k > pairs.most_directions:
        return f"the pairs give {pairs.most_directions} directions"
    side = settings.get(f"{PROJECTION}.side", configured.side) or ARMS[arm].side
    overshoot = settings.get(f"{PROJECTION}.overshoot", configured.overshoot)
    found = forecast(replace(linked, pairs=pairs), side=side, overshoot=overshoot, seed=analysis.seed)
    return {row.name: row for row in found} or "no held-out pairs, or too few to extract from"
