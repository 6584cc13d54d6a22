"""Training runs: which of them are comparable, and how training changed the policy on held-out problems.

    starts                       first steps of `probe train` runs that differ only in their arm
    training_outcome             metrics from one run's evaluations:

hack_start, hack_final, hack_gain    rate before the first step, after the last, and their difference, for the
                                     DEPLOYED weights; also for exploit and solve; NAME/SETTING for one setting
                                     if there are several
margin_final                         change of held-out logp(hack) - logp(clean): `probe.runs.evaluations`
elo_gap                              best evaluation above the base, in Elo of solving (spec/tools/ladder.py)
cos_moved, hackward_frac_moved       for the whole update, start minus end, with the arm's first directions

To add a rate, add a row in RATES and its meaning in `probe.records.schema.RATES`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe.records.records import StepRecord
from probe.records.run import CONFIG_FILE, EVALUATIONS_DIR, Run
from probe.settings.verbs import read_config
from probe.settings.words import ALL, NO_HINT
from replay_pools.pool import open_pool
from replay_pools.rollout import Rollout

# {rate: predicate on a rollout}
RATES: dict[str, Callable[[Rollout], bool]] = {
    "hack": lambda rollout: bool(rollout.hacked),
    "exploit": lambda rollout: bool(rollout.grade.exploited),
    "solve": lambda rollout: bool(rollout.gt_pass),
}
PLACES = ("start", "final", "gain")
# {field of an evaluation's `frozen`: metric}
MOVED = {"margin": "margin_final", "cos_moved": "cos_moved", "hackward_frac_moved": "hackward_frac_moved"}
ELO_GAP = "elo_gap"


def shared_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that shape a `probe train` run's numbers, without arm and seed, from its `config.json`."""
    settings = asdict(read_config(config["settings"], CONFIG_FILE))
    weights, directions = config["base_weights_sha256"], config.get("directions")
    intervention = {**settings["intervention"], "arms": None}
    # For an initial adapter the weights matter, not the path.
    model = {**settings["model"], "adapter": config.get("adapter_sha256")}
    fixed = {"seed": None, "preregistered": None, "weights": weights, "directions": directions}
    return {**settings, "intervention": intervention, "model": model, **fixed}


def starts(run: Run, others: Iterable[Run]) -> list[StepRecord]:
    """Return the first steps of a run, and of the runs in `others` that differ from it only in their arm.

    All arms share one policy before any update. A replay has all its arms in one run and stands alone.
    """
    runs = [run]
    for other in others if run.settings.verb == "train" else ():
        if other.settings.verb == "train" and other.path != run.path and other.settings.seed == run.settings.seed:
            runs += [other] * (shared_settings(other.config) == shared_settings(run.config))
    firsts = [min((step.step for step in each.steps), default=0) for each in runs]
    return [step for each, first in zip(runs, firsts, strict=True) for step in each.steps if step.step == first]


Rates = Mapping[str, tuple[float, int]]  # {RATE or RATE/SETTING: (share, number of graded rollouts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """One training run's evaluations, and the metrics that follow from the first and last of them."""

    evaluations: Sequence[Mapping[str, Any]]  # every line of `evals.jsonl`
    values: Mapping[str, float]  # {metric: value}
    # {rate metric except gains: {held-out problem, or ALL over all of them: (share, number of graded rollouts)}}
    shares: Mapping[str, Mapping[str, tuple[float, int]]]
    stopped: str | None  # reason for stopping before the last step


def evaluation_path(directory: Path, step: int) -> Path:
    """Return the directory of the evaluation pools (one per setting) after `step` optimizer steps."""
    return directory / EVALUATIONS_DIR / f"step_{step:06d}"


def setting_of(rollout: Rollout) -> str:
    """Return the setting of a held-out rollout: its mode with the hint, or `no hint`."""
    return rollout.env_mode if rollout.hint else NO_HINT


def deployed(evaluations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the deployed policy's evaluations, in order. A routing arm also evaluates its training weights."""
    return [evaluation for evaluation in evaluations if evaluation["weights"] == "deployed"]


def training_outcome(run: Run) -> TrainingOutcome | None:
    """Return the outcome of a run's evaluations; None without any."""
    evaluations = deployed(run.evals)
    if not evaluations:
        return None
    by_step = [rates_by_problem(run.path, evaluation["step"]) for evaluation in evaluations]
    start, final = (_rates(evaluation["rates"]) for evaluation in (evaluations[0], evaluations[-1]))
    values: dict[str, float] = {}
    shares: dict[str, dict[str, tuple[float, int]]] = {}
    for name in filter(final.__contains__, start):
        rate, slash, setting = name.partition("/")
        before, after, gain = (f"{rate}_{place}{slash}{setting}" for place in PLACES)
        for metric, overall, problems in ((before, start, by_step[0]), (after, final, by_step[-1])):
            values[metric] = overall[name][0]
            shares[metric] = {problem: rates[name] for problem, rates in problems.items() if name in rates}
            shares[metric][ALL] = overall[name]
        values[gain] = values[after] - values[before]
    moved = evaluations[-1].get("frozen") or {}
    values |= {metric: moved[name] for name, metric in MOVED.items() if moved.get(name) is not None}
    base, *later = by_step
    if base and (rated := [problems for problems in later if problems.keys() == base.keys()]):
        values[ELO_GAP] = max(elo_above(problems, base) for problems in rated)
    return TrainingOutcome(evaluations=run.evals, values=values, shares=shares, stopped=run.manifest.get("stopped"))


def _rates(settings: Mapping[str, Any]) -> Rates:
    """Return the `rates` of one evaluation. A single setting equals ALL and is left out."""
    shown = settings if len(settings) > 2 else {ALL: settings[ALL]}
    return {
        rate if setting == ALL else f"{rate}/{setting}": (measured[rate]["rate"], measured["num_rollouts"])
        for setting, measured in shown.items()
        for rate in RATES
        if measured[rate]["rate"] is not None
    }


def rates_by_problem(directory: Path, step: int) -> dict[str, Rates]:
    """Return {problem: its rates} for one evaluation; {} if its rollouts were deleted."""
    flags: dict[str, dict[str, list[bool]]] = {}
    pools = sorted(evaluation_path(directory, step).glob("*"))
    for path in pools:
        for group in open_pool(path).steps:
            for rollout in group:
                of_problem = flags.setdefault(rollout.problem_id, {})
                for rate, counts in RATES.items():
                    # Each setting has its own pool; a single setting's rates equal the rates over all.
                    for name in [rate, f"{rate}/{setting_of(rollout)}"][: min(len(pools), 2)]:
                        of_problem.setdefault(name, []).append(counts(rollout))
    return {
        problem: {name: (float(np.mean(values)), len(values)) for name, values in of_problem.items()}
        for problem, of_problem in flags.items()
    }


def elo_above(later: Mapping[str, Rates], start: Mapping[str, Rates]) -> float:
    """Return 400 log10 of (won + 1/2) / (lost + 1/2) in solving, over held-out problems in each setting."""
    won, lost = 0.5, 0.5
    for problem in start:
        settings = [name for name in start[problem] if name.startswith("solve/")] or ["solve"]
        for name in settings:
            now, before = later[problem][name][0], start[problem][name][0]
            won, lost = won + now * (1 - before), lost + before * (1 - now)
    return 400 * math.log10(won / lost)
