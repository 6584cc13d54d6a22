"""Runs of `probe train` as treatments: the held-out rates of every arm and condition, over its seeds. Torch-free.

treatments = treatments_of(report)           what everything is compared with comes first
treatments[0].rate("hack", treatments[0].last)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.analysis.statistics.crossed import mean, rate
from probe.analysis.statistics.intervals import Interval
from probe.analysis.training_outcome import deployed
from probe.analysis.verdict.training_runs import shared_settings
from probe.experiments.spec.types import Spec
from probe.records.run import Run
from probe.report.inputs import Report
from probe.settings.words import ALL
from replay_pools.storage.tables import flat

BASELINE = "vanilla"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """The evaluations of one run, of the deployed weights."""

    run: Run
    seed: int
    by_step: Mapping[int, Mapping[str, Any]]  # {optimizer step: its rates, in the loophole that was trained on}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRate:
    """A held-out rate of a treatment at one step."""

    value: float
    interval: Interval | None  # 95%: over seeds, and of one seed alone Wilson's
    words: str  # `mean of 4 seeds` or `seed 3`


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """The runs of one arm under one condition, a seed each."""

    name: str
    runs: Sequence[EvaluatedRun]

    @property
    def steps(self) -> list[int]:
        """The steps at which every run was evaluated: a mean over fewer seeds at some of them would jump."""
        common = set.intersection(*(set(run.by_step) for run in self.runs)) if self.runs else set()
        return sorted(common)

    def rate(self, metric: str, step: int) -> HeldOutRate | None:
        """A rate at a step, of `hack`, `exploit` and `solve`; None where a run graded nothing.

        The interval of several seeds is over seeds, and never narrower than drawing the outcomes makes it.
        """
        measured = [run.by_step[step][metric] for run in self.runs]
        values = [rates["rate"] for rates in measured]
        if None in values:
            return None
        if len(self.runs) == 1:
            bounds = measured[0]["interval"]
            interval = None if bounds is None else Interval(low=bounds["low"], high=bounds["high"])
            return HeldOutRate(value=values[0], interval=interval, words=f"seed {self.runs[0].seed}")
        trials = sum(run.by_step[step]["num_rollouts"] for run in self.runs)
        compared = mean(rate([[value] for value in values], trials))
        bounds = None if compared is None else compared.bounded().interval
        return HeldOutRate(
            value=sum(values) / len(values),
            # A rate is no smaller than 0.
            interval=None if bounds is None else Interval(low=max(bounds.low, 0.0), high=bounds.high),
            words=f"mean of {len(values)} seeds",
        )


def treatments_of(report: Report) -> list[Treatment]:
    """The trained and evaluated runs of a report, by arm and condition; what they are compared with comes first."""
    trained = [run for run in report.runs if run.verb == "train" and deployed(run.evals)]
    if report.spec is None:
        names = group_names([(arm_of(run), run.config) for run in trained])
        first = BASELINE
    else:
        names = [spec_name(report.spec, *report.arms_of_spec[run.path]) for run in trained]
        first = None if report.spec.baseline is None else spec_name(report.spec, *report.spec.baseline)
    by_name: dict[str, list[EvaluatedRun]] = {}
    for name, run in zip(names, trained, strict=True):
        by_name.setdefault(name, []).append(_trained_run(run))
    treatments = [Treatment(name=name, runs=runs) for name, runs in by_name.items()]
    return sorted(treatments, key=lambda treatment: treatment.name != first)


def arm_of(run: Run) -> str:
    """The arm that a training run trained."""
    return str(run.settings["intervention"]["arms"][0])


def spec_name(spec: Spec, condition: str, arm: str) -> str:
    """The shortest name that tells an arm under a condition from all others of a spec."""
    arms = {entry.name: spec.arms_of(entry) for entry in spec.conditions}
    if len(arms[condition]) == 1 and len(arms) > 1:
        return condition
    if sum(arm in others for name, others in arms.items() if len(others) > 1) == 1 and arm not in arms:
        return arm
    return f"{arm} ({condition})"


def group_names(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A name for each (arm, config.json), the same for runs that differ in their seed alone.

    It is the arm; for runs of an arm with other settings than its first run, the first setting that differs.
    """
    first_settings: dict[str, dict[str, Any]] = {}  # by arm
    taken: dict[str, tuple[str, dict[str, Any]]] = {}
    names = []
    for arm, config in runs:
        # A setting that is not set is as one that an older version did not know.
        settings = {key: value for key, value in flat(shared_settings(config)).items() if value is not None}
        first = first_settings.setdefault(arm, settings)
        changed = [key for key in sorted(settings.keys() | first.keys()) if settings.get(key) != first.get(key)]
        name = arm
        if changed:
            name = f"{changed[0].rpartition('.')[2]} {settings.get(changed[0])}"
        # Runs of two arms may share their first difference; the second one is named after its arm and all of them.
        if taken.setdefault(name, (arm, settings)) != (arm, settings):
            name = f"{arm}: {', '.join(key.rpartition('.')[2] for key in changed)}"
        names.append(name)
    return names


def _trained_run(run: Run) -> EvaluatedRun:
    mode = (run.settings.get("rollouts") or {}).get("mode")
    by_step = {}
    # An arm that routes also evaluates the weights that train, which nobody deploys.
    for row in deployed(run.evals):
        by_step[row["step"]] = row["rates"].get(mode) or row["rates"][ALL]
    return EvaluatedRun(run=run, seed=int(run.settings["seed"]), by_step=by_step)
