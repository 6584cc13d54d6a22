"""The decision rules R0 to R7 of METHOD section 7, each to a verdict with its numbers and its reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Literal

from probe.analysis.measures.specificity import BEATEN, beaten_by, strength
from probe.analysis.statistics.intervals import t_interval
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.power import mde, pairing_pays_above
from probe.analysis.statistics.significance import equivalence_test
from probe.analysis.statistics.thresholds import ALIGNED_ALPHA, NEAR_ZERO, NO_DISCRIMINATION, POWER, STRONG
from probe.analysis.verdict.effectiveness import correct, effective
from probe.analysis.verdict.evidence import AUTOCORRELATED, Check, Evidence, Finding, Plan, missing, range_text
from probe.analysis.verdict.validity import valid
from probe.settings.words import Verdict

Outcome = Literal["GO", "SKIP", "BUY MORE PROMPTS", "TRAINED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """R6: what to do next, and why."""

    outcome: Outcome
    why: str


def rules(evidence: Evidence) -> list[Check]:
    """R0 to R5 and R7; R6 is `decide`."""
    return [
        Check(row=row, condition=condition, kind=kind, unit=unit, **asdict(evaluate(evidence)))
        for row, condition, kind, unit, evaluate in _RULES
    ]


def decide(checks: Sequence[Check], evidence: Evidence) -> Decision:
    """R6: GO if R0 R1 R3 R4 (and R7 does not refuse); SKIP if R0 R2 and no discrimination; otherwise more prompts.

    It decides whether to train. A run that has trained gets no such advice.
    """
    if evidence.trains:
        why = "R6 is about runs before training. Arms are compared over seeds: give their runs together, or a spec"
        return Decision(outcome="TRAINED", why=why)
    verdict: dict[str, Verdict] = {check.row: check.verdict for check in checks}
    area = evidence.specificity
    blind = area is not None and area.interval is not None and area.interval.high < NO_DISCRIMINATION
    needed = ("R0", "R1", "R3", "R4")
    if all(verdict[row] == "PASS" for row in needed):
        if verdict["R7"] == "PASS":
            return Decision(
                outcome="GO", why="R0, R1, R3 and R4 hold, and the planned seeds can see the expected effect"
            )
        return Decision(outcome="BUY MORE PROMPTS", why="GO refused by R7: the planned seeds cannot see the effect")
    if verdict["R0"] == verdict["R2"] == "PASS" and blind:
        return Decision(outcome="SKIP", why=f"R0 and R2 hold, and the AUROC is below {NO_DISCRIMINATION}")
    reasons = {check.row: check for check in checks}
    missing_rows = ", ".join(f"{row} {verdict[row]}" for row in needed if verdict[row] != "PASS")
    return Decision(outcome="BUY MORE PROMPTS", why=f"{missing_rows}. {_advice(verdict, reasons, evidence)}")


def _advice(verdict: Mapping[str, Verdict], checks: Mapping[str, Check], e: Evidence) -> str:
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


def aligned(e: Evidence) -> Finding:
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
    return Finding(verdict=verdict, value=f"mean d {mean(excess):+.3f} {range_text(interval)}", n=len(excess), why=why)


def orthogonal(e: Evidence) -> Finding:
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
    return Finding(
        verdict=verdict, value=f"mean d {mean(excess):+.3f} {range_text(test.interval)}", n=len(excess), why=why
    )


def specific(e: Evidence) -> Finding:
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
        return Finding(verdict="FAIL", why="clean samples score higher", **found)
    if better:
        return Finding(verdict="FAIL", why=f"{BEATEN}: {', '.join(better)}", **found)
    if own.interval.low <= 0.5:
        return Finding(verdict="INCONCLUSIVE", why="the lower bound does not exceed .5", **found)
    if inside:
        return Finding(
            verdict="INCONCLUSIVE", why=f"not above the null's 95th percentile: {', '.join(inside)}", **found
        )
    if "N2" not in tests:
        return Finding(verdict="INCONCLUSIVE", why="the null N2 was not measured", **found)
    bars = ", ".join(f"{name} {test.q95:.2f}" for name, test in tests.items())
    best = max(rivals, key=rivals.__getitem__, default=None)
    trivial = f"; best trivial score {best} {rivals[best]:.2f}" if best else ""
    return Finding(verdict="PASS", why=f"95th percentiles {bars}{trivial}", **found)


def powered(e: Evidence) -> Finding:
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
    return Finding(verdict=verdict, value=value, n=plan.seeds, why=why)


def detectable_effect(plan: Plan) -> tuple[float, str]:
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


_RULES: tuple[tuple[str, str, Literal["evidence", "mechanism"], str, Callable[[Evidence], Finding]], ...] = (
    ("R0", "VALID: the measurement can be believed", "evidence", "prompt", valid),
    ("R1", f"ALIGNED: mean d above {NEAR_ZERO}, beyond permuted labels", "evidence", "prompt", aligned),
    ("R2", f"ORTHOGONAL: mean d inside +-{NEAR_ZERO}", "evidence", "prompt", orthogonal),
    ("R3", "SPECIFIC: tells hacks from clean among A > 0", "evidence", "prompt", specific),
    ("R4", "EFFECTIVE: on the realised update", "evidence", "run", effective),
    ("R5", "CORRECT: the gate removes what it should", "mechanism", "step", correct),
    ("R7", "POWERED: the planned seeds see the expected effect", "evidence", "seed", powered),
)
