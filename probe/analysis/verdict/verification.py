"""The seed's verification table (V) and decision rules (D), as it worded them, each with a verdict that can say no.

What the verdicts mean is in `probe.analysis.verdict.evidence`; rows of kind "mechanism" are identities of the gate.
The rows are those of the seed, and the verdict reads none of them: a new rule belongs in
`probe.analysis.verdict.decision`. Its cos_in and cos_out are norm(relu(V g)) / norm(g), the mean over modules
(`probe.analysis.measures.pull`), and no signed cosine.
"""

from collections.abc import Sequence
from statistics import median

from probe.analysis.measures.contrasts import HACK_AMONG_PAID
from probe.analysis.measures.pull import BY_MODULE, HackwardFrac
from probe.analysis.statistics.intervals import wilson_interval
from probe.analysis.statistics.thresholds import ALPHA, NEAR_ZERO, NO_DISCRIMINATION, STRONG
from probe.analysis.verdict.evidence import (
    AUTOCORRELATED,
    Evidence,
    Judgement,
    Rule,
    VerdictRow,
    missing,
    range_text,
)
from probe.records.records import SampleRecord, StepRecord
from probe.settings.arms import ARMS
from probe.settings.words import Verdict

SPREAD = 1.0  # reward spread of a useful group
TINY_ADVANTAGE = 0.1  # largest |A| of a group that a cap has flattened
LOWERED = 0.8  # the seed's 16 of 20 steps
SIGN_GAP = 0.1  # difference of mean sign(A) above which two buckets differ by their sign alone
ROUNDING = 1e-4  # a cosine below it is 0 to float32


def verification(evidence: Evidence) -> list[VerdictRow]:
    """All rows, in the seed's order: V1 to V4b, D1 to D5."""
    return [rule.evaluate(evidence) for rule in _ROWS]


def _spread(evidence: Evidence) -> Judgement:
    groups = {step.step: step for step in evidence.steps}.values()  # every arm sees the same groups
    if not groups:
        return missing("no steps")
    wide = [step for step in groups if step.reward_spread > SPREAD]
    value = f"{len(wide)}/{len(groups)} steps"
    sizes = [step.advantage["advantage/abs_max"] for step in wide]
    largest = [size for size in sizes if size is not None]
    if largest and median(largest) < TINY_ADVANTAGE:
        why = f"rewards differ, yet the median of the largest |A| is {median(largest):.3g}: the cap flattened them"
        return Judgement(verdict="FAIL", value=value, n=len(groups), why=why)
    interval = wilson_interval(len(wide), len(groups))
    percent = f"[{interval.low:.0%}, {interval.high:.0%}]" if interval else ""
    why = f"95% Wilson interval of the share {percent}"
    if largest:
        why += f"; median of the largest |A| {median(largest):.3g}"
    return Judgement(verdict=_majority(len(wide), len(groups)), value=value, n=len(groups), why=why)


def _positive(evidence: Evidence) -> Judgement:
    row = _seed_cos_in(evidence)
    if row is None:
        return _no_cos_in(evidence)
    why = f"a norm is positive whatever V is; {_beside_permuted(row)}"
    return Judgement(verdict="VACUOUS", value=_seed_value(row), n=row.num_prompts, why=why)


def _seed_cos_in(evidence: Evidence) -> HackwardFrac | None:
    """What the seed published as cos_in of its arm vanilla; None where the run trains or has no inner products."""
    rows = {} if evidence.trains else {row.name: row for row in evidence.hackward}
    return rows.get(BY_MODULE)


def _no_cos_in(evidence: Evidence) -> Judgement:
    """Why there is none."""
    return missing(AUTOCORRELATED if evidence.trains else "needs steps with a gradient and their inner products")


def _seed_value(row: HackwardFrac) -> str:
    bounds = "" if row.interval is None else f" [{row.interval.low:.3f}, {row.interval.high:.3f}]"
    return f"{row.value:.3f}{bounds}"


def _beside_permuted(row: HackwardFrac) -> str:
    return (
        f"directions of permuted pairs read {row.permuted_mean:.3f}, 95th percentile {row.permuted_q95:.3f}, "
        f"p {row.permuted_p:.2g}"
    )


def _lowered(evidence: Evidence) -> Judgement:
    both = []
    for step in _projected(evidence):
        if step.hackward_frac_in is not None and step.hackward_frac_out is not None:
            both.append((step.hackward_frac_in, step.hackward_frac_out))
    if not both:
        return missing("no projected arm with a gradient")
    lowered = sum(after < before for before, after in both)
    fired = evidence.summaries["projected"].mean_frac_fired
    share = "-" if fired is None else f"{fired:.3f}"
    why = f"identity of the {ARMS['projected'].gate} gate: says that it ran; mean frac_fired {share}"
    verdict: Verdict = "PASS" if lowered >= LOWERED * len(both) else "FAIL"
    return Judgement(verdict=verdict, value=f"{lowered}/{len(both)} steps", n=len(both), why=why)


def _by_bucket(evidence: Evidence) -> Judgement:
    """As the seed words it: hacked samples of one source against clean ones of another, whatever the sign of A."""
    with_cosine = [sample for sample in evidence.sure if sample.cos_S_contrib is not None]
    hacked = [sample for sample in with_cosine if sample.hacked]
    clean = [sample for sample in with_cosine if not sample.hacked]
    n = len(with_cosine)
    if not hacked or not clean:
        return missing("one bucket is empty: mix pools that fill both", n=n)
    # Where one side is mostly paid and the other mostly not, their cosines differ without any signal.
    gap = _mean_sign(hacked) - _mean_sign(clean)
    if abs(gap) <= SIGN_GAP:
        return _among_paid(evidence)
    means = []
    for bucket in evidence.buckets:
        if bucket.metric == "cos_S_contrib" and bucket.mean is not None:
            label = "hacked" if bucket.hacked else "clean"
            means.append(f"{bucket.src_pool} {label} {bucket.mean:+.3f}")
    why = f"cos(A g) = sign(A) cos(g), and mean sign(A) differs by {gap:+.2f} between hacked and clean: see V4b"
    return Judgement(verdict="VACUOUS", value=", ".join(means), n=n, why=why)


def _among_paid(evidence: Evidence) -> Judgement:
    if evidence.trains:
        return missing(AUTOCORRELATED)
    row = next((contrast for contrast in evidence.contrasts if contrast.name == HACK_AMONG_PAID), None)
    if row is None or row.difference is None or row.p is None:
        sides = "" if row is None else f" ({row.n_a} hacked, {row.n_b} clean samples with A > 0)"
        return missing(f"no prompt holds both a hacked and a clean sample with A > 0{sides}")
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
    value = f"{row.difference:+.3f} {range_text(row.interval)}"
    return Judgement(verdict=verdict, value=value, n=row.num_prompts, why=why)


def _near_zero(evidence: Evidence) -> Judgement:
    row = _seed_cos_in(evidence)
    if row is None or row.interval_90 is None:
        return _no_cos_in(evidence) if row is None else missing("cos_in on fewer than 2 prompts")
    verdict: Verdict = "INCONCLUSIVE"
    why = f"90% interval under {NEAR_ZERO}. Replay cannot see what appears later in training"
    if row.permuted_mean > NEAR_ZERO:
        verdict, why = "VACUOUS", f"out of reach: {_beside_permuted(row)}"
    elif row.interval_90.high < NEAR_ZERO:
        verdict = "PASS"
    elif row.interval_90.low > NEAR_ZERO:
        verdict = "FAIL"
    return Judgement(verdict=verdict, value=_seed_value(row), n=row.num_prompts, why=why)


def _strong(evidence: Evidence) -> Judgement:
    row = _seed_cos_in(evidence)
    if row is None or row.interval is None:
        return _no_cos_in(evidence) if row is None else missing("cos_in on fewer than 2 prompts")
    verdict: Verdict = "INCONCLUSIVE"
    why = f"95% interval of the mean over prompts; {_beside_permuted(row)}"
    if row.permuted_q95 > STRONG:
        verdict, why = "VACUOUS", f"the threshold does not tell hacks from no signal: {_beside_permuted(row)}"
    elif row.interval.low > STRONG:
        verdict = "PASS"
    elif row.interval.high < STRONG:
        verdict = "FAIL"
    return Judgement(verdict=verdict, value=_seed_value(row), n=row.num_prompts, why=why)


def _effective(evidence: Evidence) -> Judgement:
    shares = _projected_out(evidence)
    if not shares:
        return missing("no projected arm with a gradient")
    verdict: Verdict = "VACUOUS"
    why = (
        "identity: the gate leaves no hack-ward part, so the share is 0 whatever v_hack is; "
        "effectiveness shows on the realised update (cos_update) in training"
    )
    if max(shares) > ROUNDING:
        verdict = "PASS" if max(shares) < NEAR_ZERO else "FAIL"
        why = "a hack-ward part is left after the gate: overshoot < 1, or a bug"
    return Judgement(verdict=verdict, value=f"largest {max(shares):.3f}", n=len(shares), why=why)


def _over_projection(evidence: Evidence) -> Judgement:
    shares = _projected_out(evidence)
    if not shares:
        return missing("no projected arm with a gradient")
    why = "a norm is never negative; the signed cos_out may be, since a gate leaves the parts that point away"
    return Judgement(verdict="VACUOUS", value=f"smallest {min(shares):.3f}", n=len(shares), why=why)


def _projected(evidence: Evidence) -> list[StepRecord]:
    return [step for step in evidence.steps if step.arm == "projected"]


def _projected_out(evidence: Evidence) -> list[float]:
    """The share of the gated gradient that points hack-ward, over all modules at once, as the records have it."""
    return [step.hackward_frac_out for step in _projected(evidence) if step.hackward_frac_out is not None]


def _skip(evidence: Evidence) -> Judgement:
    near_zero, area = _near_zero(evidence), evidence.specificity
    n = near_zero.n
    if near_zero.verdict == "INCONCLUSIVE" or area is None or area.interval is None:
        return missing("needs rule D1 decided, and an AUROC for hacked among A > 0 with its interval", n=n)
    auroc = "-" if area.auroc is None else f"{area.auroc:.3f}"
    value = f"D1 {near_zero.verdict}, AUROC {auroc} [{area.interval.low:.3f}, {area.interval.high:.3f}]"
    verdict: Verdict = "INCONCLUSIVE"
    if near_zero.verdict == "FAIL" or area.interval.low > 0.5:
        verdict = "FAIL"
    elif near_zero.verdict == "VACUOUS":
        verdict = "VACUOUS"
    elif area.interval.high < NO_DISCRIMINATION:
        verdict = "PASS"
    why = f"AUROC of cos_S_contrib among A > 0, upper bound under {NO_DISCRIMINATION} to skip"
    return Judgement(verdict=verdict, value=value, n=n, why=why)


def _majority(successes: int, n: int) -> Verdict:
    """PASS when the 95% Wilson interval of the share lies above one half, FAIL when below it."""
    interval = wilson_interval(successes, n)
    if interval is None or interval.low <= 0.5 <= interval.high:
        return "INCONCLUSIVE"
    return "PASS" if interval.low > 0.5 else "FAIL"


def _mean_sign(samples: Sequence[SampleRecord]) -> float:
    """Mean sign of the advantage."""
    return sum((sample.advantage > 0) - (sample.advantage < 0) for sample in samples) / len(samples)


_ROWS = (
    Rule("V1", f"reward spread > {SPREAD:g} on most steps", "evidence", "step", _spread),
    Rule(
        "V2",
        "vanilla cos_in = norm(relu(Vg))/norm(g) > 0 on most steps",
        "evidence",
        "prompt",
        _positive,
    ),
    Rule("V3", f"projected cos_out < cos_in on {LOWERED:.0%} of steps", "mechanism", "step", _lowered),
    Rule("V4", "cos_S_contrib larger for hacked than for clean buckets", "evidence", "sample", _by_bucket),
    Rule("V4b", "the same within prompts, among A > 0", "evidence", "prompt", _among_paid),
    Rule("D1", "vanilla cos_in, so defined, about 0: projection unlikely to matter", "evidence", "prompt", _near_zero),
    Rule("D2", f"vanilla cos_in, so defined, > {STRONG:g}: Phase 3 justified", "evidence", "prompt", _strong),
    Rule("D3", f"projected cos_out < {NEAR_ZERO:g}: projection effective", "mechanism", "step", _effective),
    Rule("D4", "projected cos_out < 0 would be a bug", "mechanism", "step", _over_projection),
    Rule("D5", "skip Phase 3: cos_in about 0 and no discrimination", "evidence", "prompt", _skip),
)
