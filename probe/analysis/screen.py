"""Rank the bench's remedies by measurements from one replay.

    hack gain avoided   share of the hacks' gain that the remedy prevents
    honest gain kept    gain of right honest solutions with the remedy, as a share of the gain without it
    norm removed        share of the update's norm that the projection removes, to first order
    cost                CPU time of the steps, as a multiple of the time without a remedy

After a lookahead (`probe.runs.lookahead`) the first two are gains of log-probability over its steps: hacks are the
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
from probe.analysis.gains import PLAIN, Looked, gain
from probe.analysis.statistics.intervals import Interval, clopper_pearson, t_interval
from probe.records.records import SampleRecord
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
    analysis: Analysis,
    candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES,
    ahead: Mapping[str, Looked | str] | None = None,
) -> list[Estimate]:
    """Return the hack gain that each remedy avoids, largest first; unranked remedies, without a value, come last.

    parts: `settings` of its training; `honest_gain_kept`, `norm_removed` and `cost`, None if not measured. The interval
    is to first order.

    Args:
        analysis: analysis of the replay.
        candidates: {remedy: settings}.
        ahead: {remedy or PLAIN: its lookahead, or why it has none}; None: use the replay alone.
    """
    rows = []
    for name, settings in candidates.items():
        row = _first_order(analysis, settings)
        row = replace(row, name=name, parts={"settings": settings, **dict.fromkeys(PARTS), **row.parts})
        rows.append(row if ahead is None else _looked(row, settings, ahead[name], ahead[PLAIN]))
    return sorted(rows, key=lambda row: (row.value is None, -(row.value or 0.0)))


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
        rate, spread = clopper_pearson(sum(shares), len(shares)), t_interval(variances)
        if spread is not None:
            spread = Interval(low=max(spread.low, 0.0), high=min(spread.high, MOST_VARIANCE))
        for name, values, interval in (("hack_rate", shares, rate), ("hack_variance", variances, spread)):
            value = float(np.mean(values)) if values else None
            why = "" if values else "every prompt has one rollout of this pool"
            row = Estimate(name=name, value=value, interval=interval, n=len(values), unit="prompt", arm=pool)
            rows.append(replace(row, null=0.0, why=why))
    return rows


def _first_order(analysis: Analysis, settings: Mapping[str, Any]) -> Estimate:
    """Return the share of the held-out margin that a projection along v_hack avoids."""
    linked, (side, overshoot) = analysis.reproduced, analysis.projection
    why = [why for key in settings for start, why in UNSEEN.items() if key.startswith(start)]
    if arm_of(settings) != "projected":
        why.append(f"first order is measured for the arm projected, and this is {arm_of(settings)}")
    if others := settings.keys() - {K, TRAINED_ARMS, f"{PROJECTION}.side", f"{PROJECTION}.overshoot"}:
        why.append(f"it changes {', '.join(sorted(others))}: the replay has inner products of its own pairs")
    if linked is None:
        return Estimate(name="", why=[*why, "the replay has no inner products along v_hack"][0])
    pairs = replace(linked.pairs, k=settings.get(K, linked.pairs.k))
    if pairs.k > pairs.most_directions:
        why.append(f"the pairs give {pairs.most_directions} directions")
    if why:
        return Estimate(name="", why=why[0])
    side, overshoot = settings.get(f"{PROJECTION}.side") or side, settings.get(f"{PROJECTION}.overshoot", overshoot)
    rows = forecast(replace(linked, pairs=pairs), side=side, overshoot=overshoot, seed=analysis.seed)
    shares = {row.name.removeprefix("removed/"): row for row in rows}
    if not shares:
        return Estimate(name="", why="no held-out pairs, or too few to extract from")
    margin, honest = shares["margin"], shares.get("honest", Estimate(name="")).value
    honest_kept = None if honest is None or margin.value is None else 1 - honest
    row = Estimate(name="", parts={"norm_removed": shares["norm"].value, "honest_gain_kept": honest_kept})
    if margin.value is None:
        return replace(row, why=f"held-out hacks: {margin.why}")
    return replace(row, value=margin.value, interval=margin.interval)


def _looked(row: Estimate, settings: Mapping[str, Any], looked: Looked | str, plain: Looked | str) -> Estimate:
    """Take the gains from a lookahead, where `plain` is the one without a remedy."""
    row = replace(row, value=None, interval=None)
    if isinstance(looked, str):
        return replace(row, why=looked, parts={**row.parts, "honest_gain_kept": None})
    assert not isinstance(plain, str)
    honest, without, gained = gain(looked, "honest"), gain(plain, "honest"), gain(plain, "hacks")
    share = None if honest is None or without is None or without <= 0 else honest / without
    row = replace(row, why="", parts={**row.parts, "honest_gain_kept": share, "cost": looked.seconds / plain.seconds})
    if honest is not None and without is not None and gained is not None and 0 < gained < without - honest:
        why = f"its steps cost right honest solutions {without - honest:.1f} nats; hacks gain {gained:.1f} without it"
        return replace(row, why=why)
    if any(key.startswith(PENALTY) for key in settings):
        return replace(row, why="a penalty acts once the policy has moved further than a lookahead lets it")
    gains = [(gain(plain, measure), gain(looked, measure)) for measure in ("hacks", "held-out hacks")]
    shares = [1 - after / before for before, after in gains if before is not None and after is not None and before > 0]
    if len(shares) < len(gains):
        return replace(row, why="without a remedy the steps do not make hacks more likely")
    return replace(row, value=sum(shares) / len(shares))
