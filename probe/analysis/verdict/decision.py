"""R6 of METHOD section 7: what the verdicts of the other rules add up to, and what to do next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.measures.specificity import BEATEN
from probe.analysis.statistics.thresholds import NO_DISCRIMINATION
from probe.analysis.verdict.evidence import Evidence, Verdict, VerdictRow

NextStep = Literal["GO", "SKIP", "BUY MORE PROMPTS", "TRAINED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDecision:
    """R6: what to do next, and why."""

    outcome: NextStep
    why: str


def decide(checks: Sequence[VerdictRow], evidence: Evidence) -> TrainingDecision:
    """R6: GO if R0 R1 R3 R4 (and R7 does not refuse); SKIP if R0 R2 and no discrimination; otherwise more prompts.

    It decides whether to train. A run that has trained gets no such advice.
    """
    if evidence.trains:
        why = "R6 is about runs before training. Arms are compared over seeds: give their runs together, or a spec"
        return TrainingDecision(outcome="TRAINED", why=why)
    verdict: dict[str, Verdict] = {check.row: check.verdict for check in checks}
    area = evidence.specificity
    blind = area is not None and area.interval is not None and area.interval.high < NO_DISCRIMINATION
    needed = ("R0", "R1", "R3", "R4")
    if all(verdict[row] == "PASS" for row in needed):
        if verdict["R7"] == "PASS":
            return TrainingDecision(
                outcome="GO", why="R0, R1, R3 and R4 hold, and the planned seeds can see the expected effect"
            )
        return TrainingDecision(
            outcome="BUY MORE PROMPTS", why="GO refused by R7: the planned seeds cannot see the effect"
        )
    if verdict["R0"] == verdict["R2"] == "PASS" and blind:
        return TrainingDecision(outcome="SKIP", why=f"R0 and R2 hold, and the AUROC is below {NO_DISCRIMINATION}")
    reasons = {check.row: check for check in checks}
    missing_rows = ", ".join(f"{row} {verdict[row]}" for row in needed if verdict[row] != "PASS")
    return TrainingDecision(outcome="BUY MORE PROMPTS", why=f"{missing_rows}. {_advice(verdict, reasons, evidence)}")


def _advice(verdict: Mapping[str, Verdict], checks: Mapping[str, VerdictRow], e: Evidence) -> str:
    """What to buy: prompts help only where the measurement is valid and the design can tell hacks from the rest."""
    if verdict["R0"] == "FAIL":
        return "Prompts do not repair R0: mend the measurement first"
    if e.measured is None or e.measured.mean_cos_in is None:
        return "Nothing was measured: use an arm along v_hack, and groups whose rewards differ"
    if verdict["R3"] == "FAIL":
        if checks["R3"].why.startswith(BEATEN):
            pools = "use pools in which the rival score does not tell hacks apart"
            return f"Prompts do not repair R3: {pools} (a hint: hinted pools of both kinds, --match prompt)"
        return "Prompts do not repair R3: v_hack ranks clean samples above hacks here; look at the pairs and the labels"
    if e.transfer is not None and e.transfer.interval.low <= 0.5:
        return "v_hack has not been shown to transfer to held-out pairs: better or more pairs before prompts"
    if all(verdict[row] == "PASS" for row in ("R0", "R1", "R3")):
        return f"Next: {checks['R4'].why}"
    return "Not Phase 3 yet"
