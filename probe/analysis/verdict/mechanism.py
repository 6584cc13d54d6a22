"""Whether the gate did what it is: after it, what it removes is gone, up to rounding. A part of `validity`."""

from collections.abc import Sequence

from probe.analysis.statistics.thresholds import GATED, GATED_UPDATE
from probe.analysis.verdict.evidence import Evidence, Judgement, missing
from probe.settings.arms import ARMS
from probe.settings.words import Verdict


def correct(evidence: Evidence) -> Judgement:
    """What the gate should remove is gone, up to float32."""
    arms = [arm for arm in evidence.summaries if arm in ARMS and ARMS[arm].projects and not ARMS[arm].dosed]
    gates = {evidence.gate.gate or ARMS[arm].gate for arm in arms}
    if evidence.gate.overshoot < 1:
        n = sum(step.arm in arms for step in evidence.steps)
        return Judgement(verdict="VACUOUS", value="", n=n, why="this gate does not remove the hack-ward part")
    if evidence.trains and evidence.gate.target == "update":
        return _correct_update(evidence, arms)
    # A two-sided gate without overshoot leaves nothing along the directions, a one-sided one only nothing hack-ward.
    both_sides = gates == {"two_sided"} and evidence.gate.overshoot == 1
    fired, to_remove = dict.fromkeys(arms, False), dict.fromkeys(arms, False)
    parts_left = []
    for step in evidence.steps:
        if step.arm not in arms or step.cos_out is None or step.hackward_frac_out is None:
            continue
        fired[step.arm] |= bool(step.frac_fired)
        to_remove[step.arm] |= both_sides or (step.hackward_frac_in or 0.0) >= GATED
        parts_left.append(max(step.hackward_frac_out, abs(step.cos_out) if both_sides else 0.0))
    if not parts_left:
        return missing("no projecting arm with a cosine")
    left = max(parts_left)
    idle = [arm for arm in arms if to_remove[arm] and not fired[arm]]
    kind = "|V g'| / |g'|" if both_sides else "its positive part"
    why = f"{kind}, {', '.join(arms)}; identity of the gate: says that it ran"
    if idle:
        why = f"the gate of {', '.join(idle)} never fired: its arm is identical to one that does not project"
    verdict: Verdict = "FAIL" if idle or left >= GATED else "PASS"
    value = f"largest {left:.1e}, below {GATED:g} needed"
    return Judgement(verdict=verdict, value=value, n=len(parts_left), why=why)


def _correct_update(evidence: Evidence, arms: Sequence[str]) -> Judgement:
    """The same of a gate that acts on the optimizer's update; the gradient keeps its hack-ward part there."""
    updated = [step for step in evidence.steps if step.arm in arms]
    parts_left = [step.hackward_frac_update for step in updated if step.hackward_frac_update is not None]
    if not parts_left:
        return missing("no projecting arm that was updated")
    verdict: Verdict = "FAIL" if max(parts_left) >= GATED_UPDATE else "PASS"
    value = f"largest {max(parts_left):.1e}, below {GATED_UPDATE:g} needed"
    why = "of the update; identity of the gate: says it ran"
    return Judgement(verdict=verdict, value=value, n=len(parts_left), why=why)
