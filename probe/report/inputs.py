"""What a report is made from: `Report` holds views, and a `View` is one run under one condition with its analysis.

Torch-free.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probe.analysis.analyze import Analysis
from probe.analysis.metrics import MetricKey
from probe.analysis.verdict.verdict import Finding
from probe.experiments.spec import Spec
from probe.experiments.verdict import SpecVerdict
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run
from probe.settings.words import DEFAULT_CONDITION, Word

MOST_VIEWS = 6  # with figures of their own; the others are compared, and have their tables


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One run under one condition."""

    analysis: Analysis

    @property
    def run(self) -> Run:
        """With all its conditions and bases."""
        return self.analysis.given

    @property
    def label(self) -> str:
        """`RUN`, or `RUN / CONDITION` for a condition other than the default."""
        condition = self.analysis.condition
        return self.analysis.run if condition == DEFAULT_CONDITION else f"{self.analysis.run} / {condition}"

    @property
    def slug(self) -> str:
        """The label as part of a file name or an id: `run` or `run--condition`."""
        condition = self.analysis.condition
        return slug(self.analysis.run) + ("" if condition == DEFAULT_CONDITION else f"--{slug(condition)}")

    def steps(self, arm: str) -> list[StepRecord]:
        """The steps of one arm under this condition, in order."""
        return [step for step in self.run.steps if (step.condition, step.arm) == (self.analysis.condition, arm)]

    @property
    def samples(self) -> list[SampleRecord]:
        """The samples of the measured arm (the one that stands for vanilla), or of the first arm if there is none."""
        arm = self.analysis.measured_arm or next(iter(self.analysis.arms), None)
        wanted = (self.analysis.condition, arm)
        return [sample for sample in self.run.samples if (sample.condition, sample.arm) == wanted]

    @property
    def trains(self) -> bool:
        """An optimizer steps: steps are autocorrelated, and the run is the unit."""
        return self.analysis.trains

    @property
    def questions(self) -> Sequence[Finding]:
        """The findings of its verdict; none where one sentence says it."""
        verdict = self.analysis.verdict
        return [] if verdict.word in (Word.BROKEN, Word.TRAINED) else verdict.findings

    @property
    def prompt_cosines(self) -> list[float]:
        """cos_in of the measured arm, one value per prompt."""
        estimate = self.analysis.metrics.get(MetricKey("cos_in", "prompt"))
        return [] if estimate is None else list(estimate.by_unit.values())

    @property
    def ceiling(self) -> float | None:
        """The mean cosine of held-out hacks with the direction."""
        share = self.analysis.share("pull")
        return None if share is None else share.ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that goes into one HTML file."""

    name: str
    views: Sequence[View]
    command: str  # that repeats the report
    spec: Spec | None = None
    arms_of_spec: Mapping[Path, tuple[str, str]] = field(default_factory=dict)  # {run: its (condition, arm)}
    evaluation: SpecVerdict | None = None  # of the spec

    @property
    def judged(self) -> View | None:
        """The view whose questions the page opens with; None for several, or for a spec."""
        return self.views[0] if len(self.views) == 1 and self.evaluation is None else None

    @property
    def drawn(self) -> Sequence[View]:
        """The views that have figures of their own: the first MOST_VIEWS, as a page has room for so many."""
        return self.views[:MOST_VIEWS]

    @property
    def runs(self) -> list[Run]:
        """The runs of the views, each once."""
        return list({view.run.path: view.run for view in self.views}.values())


def slug(text: str) -> str:
    """Letters, digits and hyphens, in lower case: part of a file name or an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "x"
