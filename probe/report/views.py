"""What a report shows: runs, each under its conditions, with their analyses. No torch here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.analysis.analyze import Analysis
from probe.analysis.metrics import MetricKey
from probe.experiments.evaluation import Evaluation
from probe.experiments.spec import Spec
from probe.records.records import DEFAULT_CONDITION, SampleRecord, StepRecord
from probe.records.run import Run

if TYPE_CHECKING:
    from probe.experiments.plan import Plan as SpecPlan  # it needs torch, for the memory of a model

MOST_VIEWS = 10  # with figures of their own; the others are compared, and have their tables


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One run under one condition."""

    run: Run
    analysis: Analysis

    @property
    def label(self) -> str:
        """The run, and the condition where it is not the only one there is."""
        condition = self.analysis.condition
        return self.analysis.run if condition == DEFAULT_CONDITION else f"{self.analysis.run} / {condition}"

    @property
    def slug(self) -> str:
        """The same as part of a file name or an id."""
        condition = self.analysis.condition
        return slug(self.analysis.run) + ("" if condition == DEFAULT_CONDITION else f"--{slug(condition)}")

    def steps(self, arm: str) -> list[StepRecord]:
        """The steps of one arm, in order."""
        return [s for s in self.run.steps if (s.condition, s.arm) == (self.analysis.condition, arm)]

    @property
    def samples(self) -> list[SampleRecord]:
        """The samples of the arm that stands for vanilla; of the first arm where none does."""
        arm = self.analysis.measured_arm or next(iter(self.analysis.arms), None)
        return [s for s in self.run.samples if (s.condition, s.arm) == (self.analysis.condition, arm)]

    @property
    def trains(self) -> bool:
        """An optimizer stepped: steps are autocorrelated, and the run is the unit."""
        return any(summary.trains for summary in self.analysis.summaries)

    @property
    def prompt_cosines(self) -> list[float]:
        """cos_in of the measured arm, prompt by prompt."""
        found = self.analysis.metrics.get(MetricKey("cos_in", "prompt"))
        return [] if found is None else list(found.by_unit.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that goes into one file."""

    name: str
    views: Sequence[View]
    command: str  # that repeats the report
    spec: Spec | None = None
    evaluation: Evaluation | None = None  # of the spec
    plan: "SpecPlan | None" = None  # of the spec

    @property
    def drawn(self) -> Sequence[View]:
        """The views that have figures of their own: a page has room for so many."""
        return self.views[:MOST_VIEWS]

    @property
    def runs(self) -> list[Run]:
        """The runs, each once."""
        return list({view.run.path: view.run for view in self.views}.values())


def slug(text: str) -> str:
    """Letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "x"


def trained(runs: Sequence[Run]) -> list[tuple[Run, str, int, list[dict[str, Any]]]]:
    """(run, arm, seed, evaluations) of the runs of `probe train`."""
    return [
        (run, str(settings["intervention"]["arm"]), int(settings["seed"]), run.evals)
        for run in runs
        if (settings := _settings(run.config))
    ]


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config["train"] if config.get("verb") == "train" else {}
