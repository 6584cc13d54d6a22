"""Rules R4 and R5 of METHOD section 7: what a gate does to realised updates, and to gradients."""

from collections.abc import Mapping, Sequence
from statistics import mean

from probe.analysis.statistics.intervals import Interval, t_interval
from probe.analysis.statistics.thresholds import GATED, GATED_UPDATE
from probe.analysis.verdict.evidence import Evidence, Finding, missing, range_text
from probe.settings.arms import ARMS
from probe.settings.words import Verdict


def effective(e: Evidence) -> Finding:
    """R4, on realised updates: the run is the unit, and the arms of one seed are paired."""
    if not e.trains:
        return missing(
            "NOT EVALUATED: the weights were frozen and nothing was updated; probe train in vanilla, projected and "
            "random with one seed, then probe analyze RUN RUN RUN"
        )
    u = e.update
    if u is None or not {"vanilla", "projected", "random"} <= u.margins.keys() or not u.hackward_frac:
        return missing("needs the held-out margins of vanilla, projected and random training runs (probe analyze SPEC)")
    left, bar = mean(u.hackward_frac.values()), mean(u.hackward_q95.values())
    value = f"hackward_frac of the update {left:.3f}, null's 95th percentile {bar:.3f}"
    less = {(a, b): _less(u.margins[a], u.margins[b]) for a, b in _CLAIMS}
    why = "held-out logp(hack) - logp(clean) moves by " + ", ".join(
        f"{arm} {mean(by_seed.values()):+.3f}" for arm, by_seed in u.margins.items()
    )
    why += "; " + ", ".join(f"{a} - {b} {range_text(i) or 'no interval'}" for (a, b), i in less.items())
    n = min(len(u.margins[arm]) for arm in ("vanilla", "projected", "random"))
    own, rival, control = (less[claim] for claim in _CLAIMS)
    if left >= bar:
        verdict, why = "FAIL", f"the update still points hack-ward; {why}"
    elif own is None or rival is None or control is None:
        return Finding(verdict="INCONCLUSIVE", value=value, n=n, why=f"one seed gives no interval; {why}")
    elif own.low > 0:
        verdict, why = "FAIL", f"it moves more than in vanilla; {why}"
    elif own.high < 0 and control.high < 0 and rival.high >= 0:
        verdict, why = "FAIL", f"the random arm achieves the same; {why}"
    else:
        verdict = "PASS" if own.high < 0 and rival.high < 0 else "INCONCLUSIVE"
    return Finding(verdict=verdict, value=value, n=n, why=why)


# R4's differences of margins: the claim, the claim against the control, the control
_CLAIMS = (("projected", "vanilla"), ("projected", "random"), ("random", "vanilla"))


def _less(a: Mapping[str, float], b: Mapping[str, float]) -> Interval | None:
    """95% of a - b over the seeds that both have; None below two."""
    return t_interval([a[seed] - b[seed] for seed in a if seed in b])


def correct(e: Evidence) -> Finding:
    """R5: what the gate should remove is gone, up to float32."""
    arms = [a for a in e.summaries if a in ARMS and ARMS[a].projects]
    gates = {e.gate.gate or ARMS[a].gate for a in arms}
    if "reverse" in gates or e.gate.overshoot < 1:
        why = "this gate does not remove the hack-ward part"
        return Finding(verdict="VACUOUS", value="", n=sum(s.arm in arms for s in e.steps), why=why)
    if e.trains and e.gate.target == "update":
        return _correct_update(e, arms)
    steps = [s for s in e.steps if s.arm in arms and s.cos_out is not None and s.hackward_frac_out is not None]
    if not steps:
        return missing("no projecting arm with a cosine")
    both = gates == {"two_sided"} and e.gate.overshoot == 1
    left = max(max(s.hackward_frac_out or 0.0, abs(s.cos_out or 0.0) if both else 0.0) for s in steps)
    kind = "|V g'| / |g'|" if both else "its positive part"
    idle = [arm for arm in arms if not any(s.frac_fired for s in steps if s.arm == arm)]
    why = f"{kind}, {', '.join(arms)}; identity of the gate: says that it ran"
    if idle:
        why = f"the gate of {', '.join(idle)} never fired: its arm is identical to one that does not project"
    verdict: Verdict = "FAIL" if idle or left >= GATED else "PASS"
    return Finding(verdict=verdict, value=f"largest {left:.1e}, below {GATED:g} needed", n=len(steps), why=why)


def _correct_update(e: Evidence, arms: Sequence[str]) -> Finding:
    """R5 of a gate that acts on the optimizer's update."""
    found = [s.hackward_frac_update for s in e.steps if s.arm in arms and s.hackward_frac_update is not None]
    if not found:
        return missing("no projecting arm that was updated")
    verdict: Verdict = "FAIL" if max(found) >= GATED_UPDATE else "PASS"
    value = f"largest {max(found):.1e}, below {GATED_UPDATE:g} needed"
    return Finding(verdict=verdict, value=value, n=len(found), why="of the update; identity of the gate: says it ran")
