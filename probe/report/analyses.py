"""The input of a report: analyses, each of one run under one condition. Torch-free."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe.analysis.analyze import Analysis
from probe.experiments.judge import SpecVerdict
from probe.experiments.spec import Spec
from probe.records.records import SampleRecord
from probe.records.run import Run
from probe.settings.words import DEFAULT_CONDITION

MOST_DRAWN = 6  # analyses with figures; the others appear only in the comparison and in tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of one HTML file."""

    name: str
    analyses: Sequence[Analysis]
    command: str  # repeats the report
    spec: Spec | None = None
    evaluation: SpecVerdict | None = None  # verdict on the spec

    @property
    def judged(self) -> Analysis | None:
        """Analysis shown at the top of the page; None for several analyses or a spec."""
        return self.analyses[0] if len(self.analyses) == 1 and self.evaluation is None else None

    @property
    def drawn(self) -> Sequence[Analysis]:
        """First MOST_DRAWN analyses, which get figures; a page has no room for more."""
        return self.analyses[:MOST_DRAWN]

    @property
    def runs(self) -> list[Run]:
        """Runs of the analyses, without duplicates."""
        return list({analysis.given.path: analysis.given for analysis in self.analyses}.values())


def label_of(analysis: Analysis) -> str:
    """Return `RUN`, or `RUN / CONDITION` for a condition other than the default."""
    return analysis.run if analysis.condition == DEFAULT_CONDITION else f"{analysis.run} / {analysis.condition}"


def samples_of(analysis: Analysis) -> list[SampleRecord]:
    """Return the samples of the measured arm (which represents vanilla); without one, of the first arm."""
    arm = analysis.measured_arm or next(iter(analysis.arms), None)
    return [sample for sample in analysis.records.samples if sample.arm == arm]


def slug(text: str) -> str:
    """Return lower-case letters, digits and hyphens, for a file name or an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "x"
