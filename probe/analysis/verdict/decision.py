"""R6 of METHOD section 7: whether to train, from the verdicts of the other rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe.analysis.measures.specificity import BEATEN
from probe.analysis.statistics.thresholds import NO_DISCRIMINATION
from probe.analysis.verdict.evidence import Evidence, VerdictRow
from probe.settings.words import Verdict

NextStep = Literal["GO", "SKIP", "BUY MORE PROMPTS", "TRAINED"]
NEEDED = ("R0", "R1", "R3", "R4")  # for a GO


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDecision:
    """What to do next, and why. TRAINED: the run is of a training already, and gets no advice."""

    outcome: NextStep
    why: str


def decide(rules: Sequence[VerdictRow], evidence: Evidence) -> TrainingDecision:
    """R6: GO if R0 R1 R3 R4 (and R7 does not refuse); SKIP if R0 R2 and no discrimination; otherwise more prompts.

    A SKIP also needs a v_hack that transfers to held-out pairs: one of noise is orthogonal to everything.

    Args:
        rules: the rows R0 to R5 and R7 of `probe.analysis.verdict.rules.rules`.
        evidence: what they were made from.
    """
    if evidence.trains:
        why = "R6 is about runs before training. Arms are compared over seeds: give their runs together, or a spec"
        return TrainingDecision(outcome="TRAINED", why=why)
    by_name = {rule.row: rule for rule in rules}
    verdict: dict[str, Verdict] = {name: rule.verdict for name, rule in by_name.items()}
    lacking = [name for name in NEEDED if verdict[name] != "PASS"]
    if not lacking and verdict["R7"] == "PASS":
        why = "R0, R1, R3 and R4 hold, and the planned seeds can see the expected effect"
        return TrainingDecision(outcome="GO", why=why)
    if not lacking:
        why = "GO refused by R7: the planned seeds cannot see the effect"
        return TrainingDecision(outcome="BUY MORE PROMPTS", why=why)
    area = evidence.specificity
    blind = area is not None and area.interval is not None and area.interval.high < NO_DISCRIMINATION
    transfers = evidence.transfer is not None and evidence.transfer.interval.low > 0.5
    if verdict["R0"] == verdict["R2"] == "PASS" and blind and transfers:
        why = f"R0 and R2 hold, and the AUROC is below {NO_DISCRIMINATION}"
        return TrainingDecision(outcome="SKIP", why=why)
    verdicts = ", ".join(f"{name} {verdict[name]}" for name in lacking)
    return TrainingDecision(outcome="BUY MORE PROMPTS", why=f"{verdicts}. {_advice(by_name, evidence)}")


def _advice(rules: Mapping[str, VerdictRow], evidence: Evidence) -> str:
    """What to buy: prompts help only where the measurement is valid and the design can tell hacks from the rest.

    The most basic fault first: with it, what comes after it cannot be read.
    """
    if rules["R0"].verdict == "FAIL":
        return "Prompts do not repair R0: mend the measurement first"
    if evidence.measured is None or evidence.measured.mean_cos_in is None:
        return "Nothing was measured: use an arm along v_hack, and groups whose rewards differ"
    if rules["R3"].verdict == "FAIL":
        # R3 fails for two reasons with different remedies, which only its sentence tells apart.
        if rules["R3"].why.startswith(BEATEN):
            pools = "use pools in which the rival score does not tell hacks apart"
            return f"Prompts do not repair R3: {pools} (a hint: hinted pools of both kinds, --match prompt)"
        return "Prompts do not repair R3: v_hack ranks clean samples above hacks here; look at the pairs and the labels"
    if evidence.transfer is not None and evidence.transfer.interval.low <= 0.5:
        return "v_hack has not been shown to transfer to held-out pairs: better or more pairs before prompts"
    if all(rules[name].verdict == "PASS" for name in ("R0", "R1", "R3")):
        return f"Next: {rules['R4'].why}"
    return "Not Phase 3 yet"
