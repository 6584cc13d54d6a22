"""The results that `probe analyze SPEC --write` keeps in `spec/NAME.md`: headings and criteria, read back."""

import re
from dataclasses import dataclass
from pathlib import Path

SHA_DIGITS = 12  # of the spec's hash, in a heading
CRITERIA_HEADER = ("criterion", "role", "asked", "verdict", "n", "found")  # columns of the table below a heading
REPORTED = "reported"  # one more, where the spec has it
_HEADING = re.compile(
    r"^### (?P<decision>.+) \(spec (?P<sha256>[0-9a-f]+), (?P<done>\d+) of (?P<runs>\d+) runs\)$", re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenResult:
    """What one heading says: the decision on so many complete runs of one version of the spec."""

    decision: str
    sha256: str  # its first SHA_DIGITS
    done: int
    runs: int

    def __str__(self) -> str:
        """The heading."""
        return f"### {self.decision} (spec {self.sha256}, {self.done} of {self.runs} runs)"


def written_results(log: Path) -> list[WrittenResult]:
    """Every heading of results in a log, in its order; none where there is no such file."""
    if not log.is_file():
        return []
    headings = []
    for match in _HEADING.finditer(log.read_text(encoding="utf-8")):
        done, runs = int(match["done"]), int(match["runs"])
        headings.append(WrittenResult(decision=match["decision"], sha256=match["sha256"], done=done, runs=runs))
    return headings


def written_criteria(log: Path, sha256: str) -> dict[str, str]:
    """{criterion: its verdict and what was found, in short} on one version of a spec; {} where nothing was written.

    Args:
        sha256: of the version, whole.
    """
    if not log.is_file():
        return {}
    text = log.read_text(encoding="utf-8")
    heading = next((match for match in _HEADING.finditer(text) if match["sha256"] == sha256[:SHA_DIGITS]), None)
    if heading is None:
        return {}
    entry = text[heading.end() :].partition("\n### ")[0]
    verdict, data = CRITERIA_HEADER.index("verdict"), CRITERIA_HEADER.index("found")
    criteria: dict[str, str] = {}
    reading = False
    for line in entry.splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[: len(CRITERIA_HEADER)] == [*CRITERIA_HEADER]:
            reading = True
        elif reading and not line.startswith("|"):
            break
        elif reading and len(cells) >= len(CRITERIA_HEADER):
            criteria[cells[0]] = f"{cells[verdict]}, {cells[data].partition('; ')[0]}"
    return criteria
