"""Runs of `probe train` as treatments: the held-out rates of every arm and condition, over its seeds. Torch-free.

treatments = treatments_of(report)           what everything is compared with comes first
treatments[0].rate("hack", treatments[0].last)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from probe.analysis.ladder import BASE
from probe.analysis.statistics.crossed import mean, rate
from probe.analysis.statistics.intervals import t_interval
from probe.analysis.training_runs import deployed, shared_settings
from probe.records.records import StepRecord
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

    def elo(self, rung: str) -> list["Point"]:
        """Elo above the base, `solve` or `honest`, at the evaluations that recorded it."""
        points = []
        for row in deployed(self.run.evals):
            # Lines of evals.jsonl have the base as seen from the policy: the policy's Elo is the negative.
            if elo := row.get("elo"):
                base, low, high = (elo[rung][key] for key in (BASE, f"{BASE}_low", f"{BASE}_high"))
                low, high = (None if end is None else -end for end in (high, low))
                points.append(Point(row["step"], -base, low, high))
        return points


class Point(NamedTuple):
    """A value of a treatment at one step, with its 95% interval: over seeds, and of one seed alone its own."""

    step: int
    value: float
    low: float | None = None  # None: unknown, or nothing bounds this end
    high: float | None = None


# {field: (title, unit, value of a step)}
IN_TRAINING: Mapping[str, tuple[str, str, Callable[[StepRecord], float | bool | None]]] = {
    "solve": ("Solve rate in training", "share of the sampled rollouts", lambda step: step.solve),
    "loss": ("Loss whose gradient is taken, before the gate", "loss (nats a token)", lambda step: step.loss),
    "abs-advantage": (
        "Mean |A| after credit and cap",
        "|A|, mean over completion tokens",
        lambda step: step.advantage["advantage/abs_mean"],
    ),
}


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

    def rate(self, metric: str, step: int) -> Point | None:
        """A held-out rate at a step, of `hack`, `exploit` and `solve`; None where a run graded nothing.

        The interval of several seeds is never narrower than drawing the outcomes makes it; of one seed it is Wilson's.
        """
        measured = [run.by_step[step][metric] for run in self.runs]
        values = [rates["rate"] for rates in measured]
        if None in values:
            return None
        if len(self.runs) == 1:
            bounds = measured[0]["interval"] or {}
            return Point(step, values[0], bounds.get("low"), bounds.get("high"))
        trials = sum(run.by_step[step]["num_rollouts"] for run in self.runs)
        compared = mean(rate([[value] for value in values], trials))
        bounds = None if compared is None else compared.bounded().interval
        low, high = (None, None) if bounds is None else (max(bounds.low, 0.0), bounds.high)
        return Point(step, sum(values) / len(values), low, high)

    def curve(self, metric: str) -> list[Point]:
        """A held-out rate at every common step."""
        return [point for step in self.steps if (point := self.rate(metric, step)) is not None]

    def ends(self) -> tuple[Point | None, Point | None]:
        """Hack and solve rate after the last common step."""
        if not self.steps:
            return None, None
        return self.rate("hack", self.steps[-1]), self.rate("solve", self.steps[-1])

    def elo(self, rung: str) -> list[Point]:
        """Elo above the base where all seeds have it, with Student's interval over seeds; of one seed its own."""
        runs = [{point.step: point for point in run.elo(rung)} for run in self.runs]
        if len(runs) == 1:
            return [*runs[0].values()]
        points = []
        for step in self.steps:
            values = [run[step].value for run in runs if step in run]
            if len(values) == len(runs):
                interval = t_interval(values)
                low, high = (None, None) if interval is None else (interval.low, interval.high)
                points.append(Point(step, fmean(values), low, high))
        return points

    def in_training(self, field: str) -> list[Point]:
        """A row of IN_TRAINING, the mean over the seeds, at the steps in which every seed has it."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for step in run.run.steps:
                value = IN_TRAINING[field][2](step)
                if value is not None:
                    values.setdefault(step.step, []).append(float(value))
        return [Point(step, fmean(of)) for step, of in sorted(values.items()) if len(of) == len(self.runs)]


def treatments_of(report: Report) -> list[Treatment]:
    """The trained and evaluated runs of a report, by arm and condition; what they are compared with comes first."""
    trained = [run for run in report.runs if run.verb == "train" and deployed(run.evals)]
    if report.spec is None:
        names = group_names([(arm_of(run), run.config) for run in trained])
        first = BASELINE
    else:
        # As the verdicts call them: projected, or with several conditions projected (kl).
        form = "{1} ({0})" if len(report.spec.conditions) > 1 else "{1}"
        names = [form.format(*report.arms_of_spec[run.path]) for run in trained]
        first = None if report.spec.baseline is None else form.format(*report.spec.baseline)
    by_name: dict[str, list[EvaluatedRun]] = {}
    for name, run in zip(names, trained, strict=True):
        mode = (run.settings.get("rollouts") or {}).get("mode")
        # An arm that routes also evaluates the weights that train, which nobody deploys.
        by_step = {row["step"]: row["rates"].get(mode) or row["rates"][ALL] for row in deployed(run.evals)}
        trained_run = EvaluatedRun(run=run, seed=int(run.settings["seed"]), by_step=by_step)
        by_name.setdefault(name, []).append(trained_run)
    treatments = [Treatment(name=name, runs=runs) for name, runs in by_name.items()]
    return sorted(treatments, key=lambda treatment: treatment.name != first)


def arm_of(run: Run) -> str:
    """The arm that a training run trained."""
    return str(run.settings["intervention"]["arms"][0])


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
