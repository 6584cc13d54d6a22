"""What a report is made from: analyses, each of one run under one condition. Torch-free."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe.analysis.analyze import Analysis
from probe.experiments.spec import Spec
from probe.experiments.verdict import SpecVerdict
from probe.records.records import SampleRecord
from probe.records.run import Run
from probe.settings.words import DEFAULT_CONDITION

MOST_DRAWN = 6  # with figures of their own; the others are compared, and have their tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that goes into one HTML file."""

    name: str
    analyses: Sequence[Analysis]
    command: str  # that repeats the report
    spec: Spec | None = None
    evaluation: SpecVerdict | None = None  # of the spec

    @property
    def judged(self) -> Analysis | None:
        """The one whose questions the page opens with; None for several, or for a spec."""
        return self.analyses[0] if len(self.analyses) == 1 and self.evaluation is None else None

    @property
    def drawn(self) -> Sequence[Analysis]:
        """Those that have figures of their own: the first MOST_DRAWN, as a page has room for so many."""
        return self.analyses[:MOST_DRAWN]

    @property
    def runs(self) -> list[Run]:
        """Each once."""
        return list({analysis.given.path: analysis.given for analysis in self.analyses}.values())


def label_of(analysis: Analysis) -> str:
    """`RUN`, or `RUN / CONDITION` for a condition other than the default."""
    return analysis.run if analysis.condition == DEFAULT_CONDITION else f"{analysis.run} / {analysis.condition}"


def samples_of(analysis: Analysis) -> list[SampleRecord]:
    """The samples of the measured arm (the one that stands for vanilla), or of the first arm if there is none."""
    arm = analysis.measured_arm or next(iter(analysis.arms), None)
    return [sample for sample in analysis.records.samples if sample.arm == arm]


def slug(text: str) -> str:
    """Letters, digits and hyphens, in lower case: part of a file name or an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "x"
