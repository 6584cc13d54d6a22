"""What is said of a replay, a trained arm or a spec: findings, the verdict that follows, and the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.analysis.statistics.intervals import Bounded
from probe.settings.words import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question: of a verdict, a part of the measurement, a row of the seed, a criterion of a spec."""

    name: str
    question: str  # what is asked, in words
    says: Word
    text: str  # what the data say, with the numbers
    number: Bounded | None = None  # what `says` rests on; None where there is no number with an interval
    counts_from: float | None = None  # the size at which `number` begins to matter; a picture of it has a mark there
    n: int = 0
    unit: str = ""  # what n counts
    role: str = ""  # of a criterion; `evidence` or `mechanism` (an identity of the code) of a row of the seed
    needed: int | None = None  # how many of `unit` would decide what is unclear; None where no number is known to
    rival: str = ""  # the arm that it was compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The next step: commands, one a line, and what they do; no command where none can be computed."""

    text: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One word with its reason, what it rests on, what to keep in mind, and what to do next.

    `probe.analysis.verdict.text` writes it on a terminal and in Markdown, `asdict` as JSON.
    """

    about: Mapping[str, Any]  # what was judged: run and condition of a replay; arm, condition, seeds, ... of an arm
    word: str  # a `Word`; of a spec the name of its decision
    sentence: str  # why; of a spec what follows from the decision
    findings: Sequence[Finding]
    caveats: Sequence[str] = ()
    next: Next = field(default_factory=Next)

    def finding(self, name: str) -> Finding:
        """The finding of a name."""
        return next(finding for finding in self.findings if finding.name == name)
