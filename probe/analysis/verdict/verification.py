"""The seed's verification table and decision rules, each evaluated to a verdict that can say no.

What the verdicts mean is in `probe.analysis.verdict.evidence`; rows of kind "mechanism" are identities of the gate.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Literal

from probe.analysis.measures.contrasts import HACK_AMONG_PAID
from probe.analysis.statistics.stats import Interval, wilson_interval
from probe.analysis.statistics.thresholds import ALPHA, NEAR_ZERO, NO_DISCRIMINATION, STRONG
from probe.analysis.verdict.evidence import (
    AUTOCORRELATED,
    Evidence,
    Judgement,
    Verdict,
    VerdictRow,
    controls,
    missing,
    range_text,
)
from probe.records.records import SampleRecord
from probe.settings.arms import ARMS

SPREAD = 1.0  # reward spread of a useful group
TINY_ADVANTAGE = 0.1  # largest |A| of a group that a cap has flattened
LOWERED = 0.8  # the seed's 16 of 20 steps
SIGN_GAP = 0.1  # difference of mean sign(A) above which two buckets differ by their sign alone
ROUNDING = 1e-4  # a cosine below it is 0 to float32


def verification(evidence: Evidence) -> list[VerdictRow]:
    """All rows, in the seed's order: four of its table (V), five decision rules (D)."""
    return [
        VerdictRow(row=row, condition=condition, kind=kind, unit=unit, **asdict(evaluate(evidence)))
        for row, condition, kind, unit, evaluate in _ROWS
    ]


def _spread(e: Evidence) -> Judgement:
    groups = {step.step: step for step in e.steps}.values()  # every arm sees the same groups
    if not groups:
        return missing("no steps")
    wide = [step for step in groups if step.reward_spread > SPREAD]
    value = f"{len(wide)}/{len(groups)} steps"
    largest = [a for step in wide if (a := step.advantage["advantage/abs_max"]) is not None]
    if largest and median(largest) < TINY_ADVANTAGE:
        why = f"rewards differ, yet the median of the largest |A| is {median(largest):.3g}: the cap flattened them"
        return Judgement(verdict="FAIL", value=value, n=len(groups), why=why)
    size = f"; median of the largest |A| {median(largest):.3g}" if largest else ""
    return Judgement(
        verdict=_majority(len(wide), len(groups)),
        value=value,
        n=len(groups),
        why=f"95% Wilson interval of the share {_percent(wilson_interval(len(wide), len(groups)))}{size}",
    )


def _positive(e: Evidence) -> Judgement:
    m = e.measured
    if m is None or m.mean_cos_in is None or m.haar is None:
        return missing("no cos_in of v_hack")
    n = m.num_steps - m.num_null
    value = f"{m.num_positive}/{n} steps, mean {m.mean_cos_in:+.3f}"
    if m.trains:
        return Judgement(verdict="INCONCLUSIVE", value=value, n=n, why=AUTOCORRELATED)
    verdict = _majority(m.num_positive, n)
    why = f"Haar z {m.haar.shared.z:+.1f}, p {m.haar.shared.p:.2g} (one draw shared by all steps)"
    if verdict == "FAIL":
        why = f"negative on most steps: a descent step moves away from v_hack; {why}"
    elif verdict == "PASS" and m.haar.shared.p >= ALPHA:
        verdict, why = "INCONCLUSIVE", f"a single random direction keeps its sign over the steps too: {why}"
    return Judgement(verdict=verdict, value=value, n=n, why=why)


def _lowered(e: Evidence) -> Judgement:
    p = e.summaries.get("projected")
    if p is None or p.num_steps == p.num_null:
        return missing("no projected arm with a cosine")
    n = p.num_steps - p.num_null
    why = (
        f"identity of the {ARMS['projected'].gate} gate: says that it ran; mean frac_fired {_number(p.mean_frac_fired)}"
    )
    verdict: Verdict = "PASS" if p.num_lowered >= LOWERED * n else "FAIL"
    return Judgement(verdict=verdict, value=f"{p.num_lowered}/{n} steps", n=n, why=why)


def _by_bucket(e: Evidence) -> Judgement:
    """As the seed words it: hacked samples of one source against clean ones of another, whatever the sign of A."""
    hacked = [s for s in e.samples if s.hacked and s.cos_S_contrib is not None]
    clean = [s for s in e.samples if not s.hacked and s.cos_S_contrib is not None]
    n = len(hacked) + len(clean)
    if not hacked or not clean:
        return Judgement(verdict="INCONCLUSIVE", value="", n=n, why="one bucket is empty: mix pools that fill both")
    rows = [b for b in e.buckets if b.metric == "cos_S_contrib" and b.mean is not None]
    value = ", ".join(f"{b.src_pool} {'hacked' if b.hacked else 'clean'} {b.mean:+.3f}" for b in rows)
    gap = _mean_sign(hacked) - _mean_sign(clean)
    if abs(gap) > SIGN_GAP:
        why = f"cos(A g) = sign(A) cos(g), and mean sign(A) differs by {gap:+.2f} between hacked and clean: see V4b"
        return Judgement(verdict="VACUOUS", value=value, n=n, why=why)
    return _among_paid(e)


def _among_paid(e: Evidence) -> Judgement:
    row = next((c for c in e.contrasts if c.name == HACK_AMONG_PAID), None)
    if e.trains:
        return missing(AUTOCORRELATED)
    if row is None or row.difference is None or row.p is None:
        sides = "" if row is None else f" ({row.n_a} hacked, {row.n_b} clean samples with A > 0)"
        return missing(f"no prompt holds both a hacked and a clean sample with A > 0{sides}")
    value = f"{row.difference:+.3f} {range_text(row.interval)}"
    why = f"within-prompt sign-flip p {row.p:.2g}"
    if row.haar is not None:
        why += f", Haar p {row.haar.p:.2g}"
    if row.confounded_with:
        why += f"; cannot be told from {', '.join(row.confounded_with)}"
    verdict: Verdict = "INCONCLUSIVE"
    if row.haar is not None and max(row.p, row.haar.p) < ALPHA:
        verdict = "PASS" if row.difference > 0 else "FAIL"
    elif row.interval is not None and row.interval.low > -NEAR_ZERO and row.interval.high < NEAR_ZERO:
        verdict, why = "FAIL", f"both alike within +-{NEAR_ZERO}; {why}"
    return Judgement(verdict=verdict, value=value, n=row.num_prompts, why=why)


def _near_zero(e: Evidence) -> Judgement:
    m = e.measured
    if m is None or m.interval_90 is None:
        return missing(AUTOCORRELATED if m is not None and m.trains else "cos_in on fewer than 2 prompts")
    low, high = m.interval_90.low, m.interval_90.high
    verdict: Verdict = "INCONCLUSIVE"
    if low > -NEAR_ZERO and high < NEAR_ZERO:
        verdict = "PASS"
    elif high < -NEAR_ZERO or low > NEAR_ZERO:
        verdict = "FAIL"
    why = f"equivalence: 90% interval inside +-{NEAR_ZERO}. Replay cannot see what appears later in training"
    return Judgement(
        verdict=verdict, value=f"{m.mean_cos_in:+.3f} {range_text(m.interval_90)}", n=m.num_prompts, why=why
    )


def _strong(e: Evidence) -> Judgement:
    m = e.measured
    if m is None or m.interval is None:
        return missing(AUTOCORRELATED if m is not None and m.trains else "cos_in on fewer than 2 prompts")
    value = f"{m.mean_cos_in:+.3f} {range_text(m.interval)}"
    same = [s.arm for s in controls(e.summaries) if s.mean_cos_in is not None and s.mean_cos_in > STRONG]
    if same:
        why = (
            f"the control arm {', '.join(same)} exceeds {STRONG} too: the threshold does not tell hacks from no signal"
        )
        return Judgement(verdict="VACUOUS", value=value, n=m.num_prompts, why=why)
    verdict: Verdict = "INCONCLUSIVE"
    if m.interval.low > STRONG:
        verdict = "PASS"
    elif m.interval.high < STRONG:
        verdict = "FAIL"
    why = "95% interval of the mean over prompts"
    if not any(s.arm in ("permuted", "placebo") for s in e.summaries.values()):
        why += "; no permuted or placebo arm: directions without signal can reach .25 to .5"
    return Judgement(verdict=verdict, value=value, n=m.num_prompts, why=why)


def _effective(e: Evidence) -> Judgement:
    cosines = _projected_out(e)
    if not cosines:
        return missing("no projected arm with a cosine")
    verdict: Verdict = "VACUOUS"
    why = (
        "identity: the gate leaves no hack-ward part, so cos_out <= 0 whatever v_hack is; "
        "effectiveness shows on the realised update (cos_update) in training"
    )
    if max(cosines) > ROUNDING:
        verdict = "PASS" if max(cosines) < NEAR_ZERO else "FAIL"
        why = "a hack-ward part is left after the gate: overshoot < 1, or a bug"
    return Judgement(verdict=verdict, value=f"largest cos_out {max(cosines):+.3f}", n=len(cosines), why=why)


def _over_projection(e: Evidence) -> Judgement:
    cosines = _projected_out(e)
    if not cosines:
        return missing("no projected arm with a cosine")
    value = f"{sum(c < 0 for c in cosines)}/{len(cosines)} negative, smallest {min(cosines):+.3f}"
    why = "a negative cos_out is legitimate: a one-sided gate removes hack-ward parts and leaves the others"
    return Judgement(verdict="VACUOUS", value=value, n=len(cosines), why=why)


def _projected_out(e: Evidence) -> list[float]:
    return [s.cos_out for s in e.steps if s.arm == "projected" and s.cos_out is not None]


def _skip(e: Evidence) -> Judgement:
    zero, area = _near_zero(e), e.specificity
    if zero.verdict == "INCONCLUSIVE" or area is None or area.interval is None:
        return missing("needs rule D1 decided, and an AUROC for hacked among A > 0 with its interval", n=zero.n)
    value = f"D1 {zero.verdict}, AUROC {_number(area.auroc)} [{area.interval.low:.3f}, {area.interval.high:.3f}]"
    verdict: Verdict = "INCONCLUSIVE"
    if zero.verdict == "FAIL" or area.interval.low > 0.5:
        verdict = "FAIL"
    elif area.interval.high < NO_DISCRIMINATION:
        verdict = "PASS"
    why = f"AUROC of cos_S_contrib among A > 0, upper bound under {NO_DISCRIMINATION} to skip"
    return Judgement(verdict=verdict, value=value, n=zero.n, why=why)


_ROWS: tuple[tuple[str, str, Literal["evidence", "mechanism"], str, Callable[[Evidence], Judgement]], ...] = (
    ("V1", f"reward spread > {SPREAD:g} on most steps", "evidence", "step", _spread),
    ("V2", "vanilla cos_in > 0 on most steps", "evidence", "step", _positive),
    ("V3", f"projected cos_out < cos_in on {LOWERED:.0%} of steps", "mechanism", "step", _lowered),
    ("V4", "cos_S_contrib larger for hacked than for clean buckets", "evidence", "sample", _by_bucket),
    ("V4b", "the same within prompts, among A > 0", "evidence", "prompt", _among_paid),
    ("D1", "vanilla cos_in about 0: projection unlikely to matter", "evidence", "prompt", _near_zero),
    ("D2", f"vanilla cos_in > {STRONG:g} consistently: Phase 3 justified", "evidence", "prompt", _strong),
    ("D3", f"projected cos_out < {NEAR_ZERO:g}: projection effective", "mechanism", "step", _effective),
    ("D4", "projected cos_out < 0 would be a bug", "mechanism", "step", _over_projection),
    ("D5", "skip Phase 3: cos_in about 0 and no discrimination", "evidence", "prompt", _skip),
)


def _majority(successes: int, n: int) -> Verdict:
    """PASS when the 95% Wilson interval of the share lies above one half, FAIL when below it."""
    interval = wilson_interval(successes, n)
    if interval is None or interval.low <= 0.5 <= interval.high:
        return "INCONCLUSIVE"
    return "PASS" if interval.low > 0.5 else "FAIL"


def _mean_sign(samples: Sequence[SampleRecord]) -> float:
    return sum((s.advantage > 0) - (s.advantage < 0) for s in samples) / len(samples)


def _percent(interval: Interval | None) -> str:
    return f"[{interval.low:.0%}, {interval.high:.0%}]" if interval else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
