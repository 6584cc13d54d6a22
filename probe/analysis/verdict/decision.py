"""The verdict on a replay: exactly one of six words, with the reason and the next command.

    BROKEN         a part of the measurement is shown broken                     nothing else is read
    SKIP           the update is not hack-ward while held-out hacks are,         extract otherwise
                   or the gate would remove too little of the progress on them
    CONFOUNDED     hacks and clean samples cannot be told apart from the rest    pools that overlap
    GENERIC        whatever points hack-ward is not the hacks                    pairs that differ in the hack alone
    UNDERPOWERED   the intervals hold both answers, or there is nothing to read  how many prompts or pairs
    GO             hack-ward, about hacks, removable at a stated price           what a training can see

A run that trains is compared over seeds, and has no verdict of its own: TRAINED.

To add a verdict: a branch of `_verdict` at its place, the worst first, and its next step in
`probe.analysis.verdict.advice`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.verdict.advice import Next, next_step
from probe.analysis.verdict.evidence import Evidence
from probe.analysis.verdict.questions import Finding, Says
from probe.analysis.verdict.sentences import outcome
from probe.analysis.verdict.validity import ValidityPart

Verdict = Literal["BROKEN", "SKIP", "CONFOUNDED", "GENERIC", "UNDERPOWERED", "GO", "TRAINED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict, why, and what to do next. Field names are keys of the JSON."""

    outcome: Verdict
    why: str
    next: Next


def decide(findings: Sequence[Finding], parts: Sequence[ValidityPart], evidence: Evidence) -> Decision:
    """The verdict on one run under one condition.

    Args:
        findings: of `questions.questions`.
        parts: of `validity.validity`; those that could not be seen are caveats, and decide nothing.
        evidence: what both were made from, for the next step.
    """
    verdict, why = _verdict(findings, parts, evidence)
    return Decision(outcome=verdict, why=why, next=next_step(verdict, findings, evidence))


def _verdict(findings: Sequence[Finding], parts: Sequence[ValidityPart], evidence: Evidence) -> tuple[Verdict, str]:
    broken = [part for part in parts if part.holds is False]
    if broken:
        return "BROKEN", "; ".join(f"{part.name}: {part.text}" for part in broken)
    if evidence.trains:
        return "TRAINED", " ".join([*outcome(evidence), "Arms are compared over seeds: give their runs together."])
    hackward, about, removable = findings
    if removable.says == "too little":
        return "SKIP", f"the gate would remove too little: {removable.text}"
    if hackward.says == "unmeasured":
        return "UNDERPOWERED", f"nothing can be read: {hackward.text}"
    if hackward.says == "no":
        return "SKIP", f"the update does not point hack-ward: {hackward.text}"
    if about.says == "confounded":
        return "CONFOUNDED", about.text
    if about.says == "no":
        return "GENERIC", f"whatever points hack-ward is not the hacks: {about.text}"
    if removable.says == "no":
        return "GENERIC", f"any gate of that size does as much: {removable.text}"
    unsure = [finding for finding in findings if finding.says != "yes"]
    if unsure:
        return "UNDERPOWERED", "; ".join(f"{_words(finding.says)}: {finding.text}" for finding in unsure)
    return "GO", f"{hackward.text}; {about.text}; {removable.text}"


def _words(says: Says) -> str:
    return "not measured" if says == "unmeasured" else "either answer is possible"
