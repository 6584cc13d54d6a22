"""What training did to a policy on held-out problems, as metrics of one run: from its evaluations, without torch.

hack_start, hack_final, hack_gain    rate before the first step, after the last, and their difference; of the
                                     DEPLOYED weights; likewise exploit and solve; NAME/SETTING of one setting
                                     where there are several
margin_final                         change of held-out logp(hack) - logp(clean): `probe.runs.evaluations`
elo_gap                              best evaluation above the base, in Elo of solving (`probe.analysis.ladder`)
cos_moved, hackward_frac_moved       of the whole update, start minus end, with the arm's first directions

To add a rate: a row in RATES, a field of the same name in `probe.runs.rates.Rates`, and what it means in
`probe.records.schema.RATES`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe.records.run import EVALUATIONS_DIR, Run
from probe.settings.words import ALL, NO_HINT
from replay_pools.pool import open_pool
from replay_pools.rollout import Rollout

# {rate: whether a rollout counts}
RATES: dict[str, Callable[[Rollout], bool]] = {
    "hack": lambda rollout: bool(rollout.hacked),
    "exploit": lambda rollout: bool(rollout.grade.exploited),
    "solve": lambda rollout: bool(rollout.gt_pass),
}
PLACES = ("start", "final", "gain")
# {field of an evaluation's `frozen`: metric}
MOVED = {"margin": "margin_final", "cos_moved": "cos_moved", "hackward_frac_moved": "hackward_frac_moved"}
ELO_GAP = "elo_gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The evaluations of one training run, and the metrics that follow from the first and the last of them."""

    evaluations: Sequence[Mapping[str, Any]]  # every line of `evals.jsonl`
    values: Mapping[str, float]  # {metric: value}
    trials: Mapping[str, int]  # {metric that is a rate: graded rollouts that it is of}
    by_problem: Mapping[str, Mapping[str, float]]  # {metric that is a rate: {held-out problem: value}}
    problem_trials: Mapping[str, Mapping[str, int]]  # {the same but for gains: {held-out problem: its rollouts}}
    stopped: str | None  # why it ended before its last step


def evaluation_path(directory: Path, step: int) -> Path:
    """Where the pools of the evaluation of a run's deployed policy after `step` optimizer steps are, one a setting."""
    return directory / EVALUATIONS_DIR / f"step_{step:06d}"


def setting_of(rollout: Rollout) -> str:
    """The name of the setting that a held-out rollout belongs to: its mode with the hint, or `no hint`."""
    return rollout.env_mode if rollout.hint else NO_HINT


def deployed(evaluations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluations of the deployed policy, in order. An arm that routes also evaluates the weights that train."""
    return [evaluation for evaluation in evaluations if evaluation["weights"] == "deployed"]


def training_outcome(run: Run) -> TrainingOutcome | None:
    """What the evaluations of a run say; None for a run without any."""
    evaluations = deployed(run.evals)
    if not evaluations:
        return None
    first, last = evaluations[0], evaluations[-1]
    values = _start_final_gain(_rates(first["rates"]), _rates(last["rates"]))
    moved = last.get("frozen") or {}
    for name, metric in MOVED.items():
        if moved.get(name) is not None:
            values[metric] = moved[name]
    # The gap of an evaluation is that of the best one so far.
    if last.get("elo") is not None:
        values[ELO_GAP] = last["elo"]["solve"]["gap"]
    start, final = _problem_flags(run.path, first["step"]), _problem_flags(run.path, last["step"])
    by_problem: dict[str, dict[str, float]] = {}
    problem_trials: dict[str, dict[str, int]] = {}
    for problem in start:
        if problem not in final:
            continue
        means = [{name: float(np.mean(flags)) for name, flags in place[problem].items()} for place in (start, final)]
        counts = [{name: len(flags) for name, flags in place[problem].items()} for place in (start, final)]
        for metric, value in _start_final_gain(*means).items():
            by_problem.setdefault(metric, {})[problem] = value
        for metric, count in _start_final(*counts).items():
            problem_trials.setdefault(metric, {})[problem] = count
    return TrainingOutcome(
        evaluations=run.evals,
        values=values,
        trials=_start_final(_counts(first["rates"]), _counts(last["rates"])),
        by_problem=by_problem,
        problem_trials=problem_trials,
        stopped=run.manifest.get("stopped"),
    )


def _rates(settings: Mapping[str, Any]) -> dict[str, float]:
    """{RATE or RATE/SETTING: share} from the `rates` of one evaluation."""
    rates = {}
    for name, rate, measured in _shown(settings):
        value = measured[rate]["rate"]
        if value is not None:
            rates[name] = value
    return rates


def _counts(settings: Mapping[str, Any]) -> dict[str, int]:
    """{RATE or RATE/SETTING: graded rollouts} from the `rates` of one evaluation."""
    return {name: measured["num_rollouts"] for name, _, measured in _shown(settings)}


def _shown(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(RATE or RATE/SETTING, RATE, what was measured in the setting) of one evaluation.

    Where there is one setting beside ALL, it equals ALL, and is left out.
    """
    shown = settings if len(settings) > 2 else {ALL: settings[ALL]}
    for setting, measured in shown.items():
        for rate in RATES:
            yield rate if setting == ALL else f"{rate}/{setting}", rate, measured


def _problem_flags(directory: Path, step: int) -> dict[str, dict[str, list[bool]]]:
    """{problem: {RATE or RATE/SETTING: whether each rollout counts}} of one evaluation; {} where they were deleted."""
    flags: dict[str, dict[str, list[bool]]] = {}
    pools = sorted(evaluation_path(directory, step).glob("*"))
    for path in pools:
        for group in open_pool(path).steps:
            for rollout in filter(lambda rollout: rollout.labelled, group):
                problem_flags = flags.setdefault(rollout.problem_id, {})
                for rate, counts in RATES.items():
                    names = [rate]
                    # A setting has a pool of its own; the rates of a single one are those over all.
                    if len(pools) > 1:
                        names.append(f"{rate}/{setting_of(rollout)}")
                    for name in names:
                        problem_flags.setdefault(name, []).append(counts(rollout))
    return flags


def _start_final_gain(start: Mapping[str, float], final: Mapping[str, float]) -> dict[str, float]:
    """{RATE_start, RATE_final, RATE_gain} of the rates that both have; a setting stays behind the slash."""
    values: dict[str, float] = {}
    for name in start:
        if name not in final:
            continue
        three = (start[name], final[name], final[name] - start[name])
        for place, value in zip(PLACES, three, strict=True):
            values[_placed(name, place)] = value
    return values


def _start_final(start: Mapping[str, int], final: Mapping[str, int]) -> dict[str, int]:
    """{RATE_start, RATE_final}: how many rollouts a rate is of; a gain is of two kinds of them, and no rate."""
    counts = {}
    for name in start:
        if name in final:
            counts[_placed(name, "start")], counts[_placed(name, "final")] = start[name], final[name]
    return counts


def _placed(name: str, place: str) -> str:
    """RATE_PLACE of a RATE, RATE_PLACE/SETTING of a RATE/SETTING."""
    rate, slash, setting = name.partition("/")
    return f"{rate}_{place}{slash}{setting}"
