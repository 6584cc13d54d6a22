"""What training did to a policy on held-out problems: the evaluations of one run, and their rollouts, without torch.

hack_start, hack_final, hack_gain    rate before the first step, after the last, and their difference; of the
                                     DEPLOYED weights; likewise exploit and solve; NAME/SETTING of one setting
                                     where there are several
margin_final                         change of held-out logp(hack) - logp(clean): `probe.runs.frozen_batch`
cos_moved, hackward_frac_moved       of the whole update, start minus end, with the arm's first directions
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe.records.run import EVALUATIONS_DIR, Run
from probe.settings.words import ALL, NO_HINT
from replay_pools.pool import open_pool
from replay_pools.rollout import Rollout

RATES: dict[str, Callable[[Rollout], bool]] = {
    "hack": lambda rollout: rollout.hacked,
    "exploit": lambda rollout: rollout.grade.exploited,
    "solve": lambda rollout: rollout.gt_pass,
}
PLACES = ("start", "final", "gain")
MOVED = {"margin": "margin_final", "cos_moved": "cos_moved", "hackward_frac_moved": "hackward_frac_moved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The evaluations of one run."""

    evaluations: Sequence[Mapping[str, Any]]  # every line of `evals.jsonl`
    values: Mapping[str, float]  # by metric
    by_problem: Mapping[str, Mapping[str, float]]  # {rate: {held-out problem: value}}
    stopped: str | None  # why it ended before its last step


def setting_of(rollout: Rollout) -> str:
    """The name of the setting that a held-out rollout belongs to: its mode with the hint, or `no hint`."""
    return rollout.env_mode if rollout.hint else NO_HINT


def deployed(evaluations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluations of the deployed policy, in order."""
    return [row for row in evaluations if row["weights"] == "deployed"]


def training_outcome(run: Run) -> TrainingOutcome | None:
    """What the evaluations of a run say; None for a run without any."""
    if not (own := deployed(run.evals)):
        return None
    ends = {"start": own[0], "final": own[-1]}
    values = _gains({place: _shares(row["rates"]) for place, row in ends.items()})
    moved = ends["final"].get("frozen") or {}
    values |= {name: moved[key] for key, name in MOVED.items() if moved.get(key) is not None}
    by_problem: dict[str, dict[str, float]] = {}
    rates = {place: _problem_rates(run.path, row["step"]) for place, row in ends.items()}
    for problem in (name for name in rates["start"] if name in rates["final"]):
        for name, value in _gains({place: found[problem] for place, found in rates.items()}).items():
            by_problem.setdefault(name, {})[problem] = value
    return TrainingOutcome(
        evaluations=run.evals, values=values, by_problem=by_problem, stopped=run.manifest.get("stopped")
    )


def _shares(settings: Mapping[str, Any]) -> dict[str, float]:
    """{RATE or RATE/SETTING: share} of the settings of one evaluation; a single setting is over all already."""
    shown = settings if len(settings) > 2 else {ALL: settings[ALL]}
    return {
        rate if setting == ALL else f"{rate}/{setting}": own[rate]["rate"]
        for setting, own in shown.items()
        for rate in RATES
        if own[rate]["rate"] is not None
    }


def _problem_rates(directory: Path, step: int) -> dict[str, dict[str, float]]:
    """{problem: {RATE or RATE/SETTING: mean}} of the rollouts of one evaluation; nothing where they are gone."""
    flags: dict[str, dict[str, list[bool]]] = {}
    pools = sorted((directory / EVALUATIONS_DIR / f"step_{step:06d}").glob("*"))
    for rollout in (r for path in pools for group in open_pool(path).steps for r in group):
        own = flags.setdefault(rollout.problem_id, {})
        setting = setting_of(rollout)
        for rate, flag in RATES.items():
            for name in (rate, f"{rate}/{setting}") if len(pools) > 1 else (rate,):
                own.setdefault(name, []).append(flag(rollout))
    return {problem: {name: float(np.mean(rows)) for name, rows in own.items()} for problem, own in flags.items()}


def _gains(ends: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{RATE_start, RATE_final, RATE_gain}; the setting, where there is one, stays behind the slash."""
    found: dict[str, float] = {}
    for name in (name for name in ends["start"] if name in ends["final"]):
        rate, slash, setting = name.partition("/")
        start, final = ends["start"][name], ends["final"][name]
        for place, value in zip(PLACES, (start, final, final - start), strict=True):
            found[f"{rate}_{place}{slash}{setting}"] = value
    return found
