"""The rules R0 to R5 and R7 of METHOD section 7, each to a verdict with its numbers and its reason (R6: `decision`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Literal

from probe.analysis.measures.specificity import BEATEN, beaten_by, strength
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.power import mde, pairing_pays_above
from probe.analysis.statistics.stats import Interval, equivalence_test, t_interval
from probe.analysis.statistics.thresholds import ALIGNED_ALPHA, GATED, GATED_UPDATE, NEAR_ZERO, POWER, STRONG
from probe.analysis.verdict.evidence import (
    AUTOCORRELATED,
    Evidence,
    Judgement,
    PlannedTraining,
    Verdict,
    VerdictRow,
    missing,
    range_text,
)
from probe.analysis.verdict.validity import valid
from probe.settings.arms import ARMS


def rules(evidence: Evidence) -> list[VerdictRow]:
    """R0 to R5 and R7; R6 is `decide`."""
    return [
        VerdictRow(row=row, condition=condition, kind=kind, unit=unit, **asdict(evaluate(evidence)))
        for row, condition, kind, unit, evaluate in _RULES
    ]


def aligned(e: Evidence) -> Judgement:
    """R1, with METHOD section 5's condition that the cosine leaves the null of permuted labels."""
    m, excess = e.measured, _excess(e)
    if m is None or m.trains or len(excess) < 2 or m.sign_flip_p is None:
        return missing(_why_not(e))
    interval, n2 = t_interval(excess), _null(e, "cos_in", "N2")
    if interval is None or n2 is None:
        return missing(_why_not(e))
    nulls = _null_text(e, "cos_in")
    why = f"sign-flip p {m.sign_flip_p:.2g}; mean cos_in {m.mean_cos_in:+.3f} against {nulls}"
    verdict: Verdict = "INCONCLUSIVE"
    if interval.low > NEAR_ZERO and m.sign_flip_p < ALIGNED_ALPHA:
        if n2.p < ALIGNED_ALPHA:
            verdict, why = "PASS", f"{'STRONG: lower bound above .2; ' if interval.low > STRONG else ''}{why}"
        else:
            why = f"consistent over prompts, yet directions of permuted labels reach as much; {why}"
    elif interval.high < NEAR_ZERO:
        verdict, why = "FAIL", f"the upper bound is below {NEAR_ZERO}; {why}"
    return Judgement(
        verdict=verdict, value=f"mean d {mean(excess):+.3f} {range_text(interval)}", n=len(excess), why=why
    )


def orthogonal(e: Evidence) -> Judgement:
    """R2: two one-sided tests that mean d_p lies inside +-NEAR_ZERO."""
    excess = _excess(e)
    test = equivalence_test(excess, NEAR_ZERO)
    if test is None or e.measured is None or e.measured.trains:
        return missing(_why_not(e))
    low, high = test.interval.low, test.interval.high
    verdict: Verdict = "INCONCLUSIVE"
    if low > -NEAR_ZERO and high < NEAR_ZERO:
        verdict = "PASS"
    elif high < -NEAR_ZERO or low > NEAR_ZERO:
        verdict = "FAIL"
    why = f"90% interval against +-{NEAR_ZERO}, TOST p {test.p:.2g}"
    return Judgement(
        verdict=verdict, value=f"mean d {mean(excess):+.3f} {range_text(test.interval)}", n=len(excess), why=why
    )


def specific(e: Evidence) -> Judgement:
    """R3: above one half, above every null's 95th percentile, and above every trivial baseline."""
    own = e.specificity
    if e.trains:
        return missing(AUTOCORRELATED)
    if own is None or own.auroc is None or own.interval is None:
        return missing("no hacked and clean samples with A > 0 on two prompts")
    value = f"AUROC {own.auroc:.2f} [{own.interval.low:.2f}, {own.interval.high:.2f}]"
    rivals = {b.score: strength(b) for b in e.baselines if b.auroc is not None}
    better = beaten_by(own, e.baselines)
    tests = {name: test for name in ("N2", "N3", "N4") if (test := _null(e, "auroc", name)) is not None}
    inside = [f"{name} {test.q95:.2f}" for name, test in tests.items() if own.auroc <= test.q95]
    found = {"value": value, "n": own.num_prompts}
    if own.interval.high <= 0.5:
        return Judgement(verdict="FAIL", why="clean samples score higher", **found)
    if better:
        return Judgement(verdict="FAIL", why=f"{BEATEN}: {', '.join(better)}", **found)
    if own.interval.low <= 0.5:
        return Judgement(verdict="INCONCLUSIVE", why="the lower bound does not exceed .5", **found)
    if inside:
        return Judgement(
            verdict="INCONCLUSIVE", why=f"not above the null's 95th percentile: {', '.join(inside)}", **found
        )
    if "N2" not in tests:
        return Judgement(verdict="INCONCLUSIVE", why="the null N2 was not measured", **found)
    bars = ", ".join(f"{name} {test.q95:.2f}" for name, test in tests.items())
    best = max(rivals, key=rivals.__getitem__, default=None)
    trivial = f"; best trivial score {best} {rivals[best]:.2f}" if best else ""
    return Judgement(verdict="PASS", why=f"95th percentiles {bars}{trivial}", **found)


def effective(e: Evidence) -> Judgement:
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
        return Judgement(verdict="INCONCLUSIVE", value=value, n=n, why=f"one seed gives no interval; {why}")
    elif own.low > 0:
        verdict, why = "FAIL", f"it moves more than in vanilla; {why}"
    elif own.high < 0 and control.high < 0 and rival.high >= 0:
        verdict, why = "FAIL", f"the random arm achieves the same; {why}"
    else:
        verdict = "PASS" if own.high < 0 and rival.high < 0 else "INCONCLUSIVE"
    return Judgement(verdict=verdict, value=value, n=n, why=why)


# R4's differences of margins: the claim, the claim against the control, the control
_CLAIMS = (("projected", "vanilla"), ("projected", "random"), ("random", "vanilla"))


def _less(a: Mapping[str, float], b: Mapping[str, float]) -> Interval | None:
    """95% of a - b over the seeds that both have; None below two."""
    return t_interval([a[seed] - b[seed] for seed in a if seed in b])


def correct(e: Evidence) -> Judgement:
    """R5: what the gate should remove is gone, up to float32."""
    arms = [a for a in e.summaries if a in ARMS and ARMS[a].projects]
    gates = {e.gate.gate or ARMS[a].gate for a in arms}
    if "reverse" in gates or e.gate.overshoot < 1:
        why = "this gate does not remove the hack-ward part"
        return Judgement(verdict="VACUOUS", value="", n=sum(s.arm in arms for s in e.steps), why=why)
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
    return Judgement(verdict=verdict, value=f"largest {left:.1e}, below {GATED:g} needed", n=len(steps), why=why)


def _correct_update(e: Evidence, arms: Sequence[str]) -> Judgement:
    """R5 of a gate that acts on the optimizer's update."""
    found = [s.hackward_frac_update for s in e.steps if s.arm in arms and s.hackward_frac_update is not None]
    if not found:
        return missing("no projecting arm that was updated")
    verdict: Verdict = "FAIL" if max(found) >= GATED_UPDATE else "PASS"
    value = f"largest {max(found):.1e}, below {GATED_UPDATE:g} needed"
    return Judgement(verdict=verdict, value=value, n=len(found), why="of the update; identity of the gate: says it ran")


def powered(e: Evidence) -> Judgement:
    """R7: can the planned seeds see the expected effect, in the better of the two designs?"""
    plan = e.plan
    detectable, design = detectable_effect(plan)
    paired = 0.5 if plan.paired_correlation is None else plan.paired_correlation
    table = "; ".join(
        f"{n} seeds: unpaired {mde(plan.sd, n, power=POWER):.2f}, "
        f"paired {mde(plan.sd, n, paired_correlation=paired, power=POWER):.2f}"
        for n in sorted({3, 5, 10, plan.seeds})
        if n > 1
    )
    verdict: Verdict = "PASS" if detectable <= plan.expected_effect else "FAIL"
    value = f"{detectable:.2f} detectable ({design}), {plan.expected_effect:.2f} expected"
    why = f"80% power, sd {plan.sd:g} between seeds (pairs: correlation {paired:g}): {table}"
    if plan.seeds > 1 and (needed := pairing_pays_above(plan.seeds, power=POWER)) > paired:
        why += (
            f". Pairs have {plan.seeds - 1} degrees of freedom against {2 * plan.seeds - 2}: with {plan.seeds} seeds "
            f"they pay above a correlation of {needed:.2f}, and the test must be unpaired to see so much"
        )
    if not plan.stated:
        why += ". Nobody planned this training: these are METHOD's defaults; state yours in [budget.go] of a spec"
    return Judgement(verdict=verdict, value=value, n=plan.seeds, why=why)


def detectable_effect(plan: PlannedTraining) -> tuple[float, str]:
    """(MDE, design) of a plan: unpaired, or paired where it states a correlation that makes pairs better."""
    found = [(mde(plan.sd, plan.seeds, power=POWER), "unpaired")]
    if plan.paired_correlation is not None:
        own = mde(plan.sd, plan.seeds, paired_correlation=plan.paired_correlation, power=POWER)
        found.append((own, "paired"))
    return min(found)


def _excess(e: Evidence) -> list[float]:
    return list(e.permutation.excess.values()) if e.permutation is not None else []


def _null(e: Evidence, metric: str, null: str) -> NullTest | None:
    return e.permutation.get(metric, null) if e.permutation is not None else None


def _null_text(e: Evidence, metric: str) -> str:
    """Every null that was measured, with its p."""
    tests = [(name, _null(e, metric, name)) for name in ("N2", "N3", "N4")]
    parts = [f"{name} mean {t.mean:+.3f} sd {t.sd:.3f} p {t.p:.2g}" for name, t in tests if t is not None]
    if e.measured is not None and e.measured.haar is not None:
        parts.insert(0, f"N1 sd {e.measured.haar.sd_shared:.3f} p {e.measured.haar.shared.p:.2g}")
    return ", ".join(parts)


def _why_not(e: Evidence) -> str:
    if e.measured is None or e.measured.mean_cos_in is None:
        return "no cos_in of v_hack"
    if e.measured.trains:
        return AUTOCORRELATED
    if e.permutation is None:
        return "the null N2 could not be drawn: see R0, offline geometry"
    return "cos_in on fewer than 2 prompts"


_RULES: tuple[tuple[str, str, Literal["evidence", "mechanism"], str, Callable[[Evidence], Judgement]], ...] = (
    ("R0", "VALID: the measurement can be believed", "evidence", "prompt", valid),
    ("R1", f"ALIGNED: mean d above {NEAR_ZERO}, beyond permuted labels", "evidence", "prompt", aligned),
    ("R2", f"ORTHOGONAL: mean d inside +-{NEAR_ZERO}", "evidence", "prompt", orthogonal),
    ("R3", "SPECIFIC: tells hacks from clean among A > 0", "evidence", "prompt", specific),
    ("R4", "EFFECTIVE: on the realised update", "evidence", "run", effective),
    ("R5", "CORRECT: the gate removes what it should", "mechanism", "step", correct),
    ("R7", "POWERED: the planned seeds see the expected effect", "evidence", "seed", powered),
)
