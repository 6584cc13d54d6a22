"""The seed's verification table (V) and decision rules (D), in their original wording, with words for each outcome.

PASS: the condition holds. FAIL: its opposite is shown. INCONCLUSIVE: the data allow both. VACUOUS: it would hold (or
fail) for any data. Rows with role "mechanism" are identities of the code: they show that it ran, and say nothing about
hacking. No verdict uses these rows. Their cos_in and cos_out are the signed cosines of the records.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import HAAR, HACK_DIFFERENCE
from probe.analysis.statistics.intervals import Interval, prompt_means, t_interval, wilson_interval
from probe.analysis.statistics.thresholds import ALPHA, NEAR_ZERO, NO_DISCRIMINATION, STRONG
from probe.analysis.verdict.verdict import Finding
from probe.records.records import SampleRecord, StepRecord
from probe.settings.arms import ARMS
from probe.settings.words import Word

SPREAD = 1.0  # reward spread of a useful group
TINY_ADVANTAGE = 0.1  # largest |A| in a group flattened by a cap
LOWERED = 0.8  # the seed's 16 of 20 steps
FEW_FIRED = 0.1  # mean share of modules that fire, below which the seed's "frac_fired << 1" holds
SIGN_GAP = 0.1  # difference of mean sign(A) above which two buckets differ by sign alone
ROUNDING = 1e-4  # a smaller cosine is 0 in float32
AUTOCORRELATED = "the run trains: its steps are autocorrelated, the run is the unit and n = 1"

Row = tuple[Word, int, str]  # outcome, number of units, explanation
PASS, FAIL, INCONCLUSIVE, VACUOUS = Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.VACUOUS


def seed_tables(analysis: Analysis) -> list[Finding]:
    """Return all rows, in the seed's order: V1 to V4b, D1 to D5."""
    rows = []
    for name, (question, role, unit, judge) in ROWS.items():
        says, n, text = judge(analysis)
        rows.append(Finding(name=name, question=question, says=says, text=text, n=n, unit=unit, role=role))
    return rows


def _spread(analysis: Analysis) -> Row:
    groups = {step.step: step for step in analysis.steps}.values()  # every arm sees the same groups
    if not groups:
        return INCONCLUSIVE, 0, "no steps"
    wide = [step for step in groups if step.reward_spread > SPREAD]
    share = f"{len(wide)}/{len(groups)} steps"
    sizes = [size for step in wide if (size := step.advantage["advantage/abs_max"]) is not None]
    largest = f"median of the largest |A| {median(sizes):.3g}" if sizes else ""
    if sizes and median(sizes) < TINY_ADVANTAGE:
        return FAIL, len(groups), f"{share}; rewards differ, and the cap flattened them: {largest}"
    return _most(len(wide), len(groups)), len(groups), "; ".join(filter(None, [share, largest]))


def _cos_in(analysis: Analysis, level: float) -> tuple[list[StepRecord], Interval | None, str]:
    """Return (the measured arm's steps with a cos_in, the interval of its mean over prompts, both in words)."""
    steps = [step for step in analysis.steps if step.arm == analysis.measured_arm and step.cos_in is not None]
    if analysis.trains or not steps:
        return [], None, AUTOCORRELATED if analysis.trains else "no step with a gradient along v_hack"
    cosines = [step.cos_in or 0.0 for step in steps]
    by_prompt = list(prompt_means(cosines, [step.problem_id for step in steps]).values())
    interval = t_interval(by_prompt, level=level)
    mean, bounds = sum(by_prompt) / len(by_prompt), "" if interval is None else f" {interval:+.3f}"
    return steps, interval, f"mean over {len(by_prompt)} prompts {mean:+.3f}{bounds}"


def _positive(analysis: Analysis) -> Row:
    steps, _, prompts = _cos_in(analysis, 1 - ALPHA)
    if not steps:
        return INCONCLUSIVE, 0, prompts
    above = sum((step.cos_in or 0.0) > 0 for step in steps)
    says, why = _most(above, len(steps)), ""
    if says is FAIL and sum((step.cos_in or 0.0) < 0 for step in steps) > len(steps) / 2:
        # The seed's third column: the base's advantage outweighs the hacking policy's, which turns the sign of v_hack.
        hacked, others = (
            _mean_sign([s for s in analysis.sure if s.hacked is side] or analysis.sure) for side in (True, False)
        )
        why = f"; reverse sign: mean sign(A) is {hacked:+.2f} for hacks, {others:+.2f} for other rollouts"
    return says, len(steps), f"{above}/{len(steps)} steps; {prompts}{why}"


def _most(k: int, n: int) -> Word:
    """Say whether more than half of all steps share what k of these n show, by Wilson's 95% interval."""
    interval = wilson_interval(k, n)
    assert interval is not None  # there is at least one step
    return PASS if interval.low > 0.5 else FAIL if interval.high < 0.5 else INCONCLUSIVE


def _lowered(analysis: Analysis) -> Row:
    both, fired = [], []
    for step in analysis.steps:
        if step.arm == "projected" and step.cos_in is not None and step.cos_out is not None:
            both.append((step.cos_in, step.cos_out))
            fired.append(step.frac_fired or 0.0)
    if not both:
        return INCONCLUSIVE, 0, "no projected arm with a gradient"
    lowered = sum(after < before for before, after in both)
    gate = analysis.gate.gate or ARMS["projected"].gate
    why = f"gate {gate}, mean frac_fired {fmean(fired):.3f}"
    if gate == "two_sided":
        why += "; this gate leaves cos_out at 0, so a step whose cos_in is below 0 is raised"
    says = PASS if lowered >= LOWERED * len(both) else FAIL
    if says is PASS and fmean(fired) < FEW_FIRED:
        says, why = INCONCLUSIVE, f"{why}: the projection fires on few modules"
    return says, len(both), f"{lowered}/{len(both)} steps; {why}"


def _by_bucket(analysis: Analysis) -> Row:
    """Compare hacked samples of one source with clean samples of another, for any sign of A, as in the seed."""
    with_cosine = [sample for sample in analysis.sure if sample.cos_S_contrib is not None]
    hacked = [sample for sample in with_cosine if sample.hacked]
    clean = [sample for sample in with_cosine if not sample.hacked]
    n = len(with_cosine)
    if not hacked or not clean:
        return INCONCLUSIVE, n, "one bucket is empty: mix pools that fill both"
    # If one side is mostly rewarded and the other mostly not, their cosines differ without any signal.
    gap = _mean_sign(hacked) - _mean_sign(clean)
    if abs(gap) <= SIGN_GAP:
        return _among_paid(analysis)
    means = []
    for bucket in analysis.buckets:
        if (mean := bucket.mean_cos_contrib) is not None and bucket.hacked is not None:
            means.append(f"{bucket.src_pool} {'hacked' if bucket.hacked else 'clean'} {mean:+.3f}")
    why = f"cos(A g) = sign(A) cos(g), and mean sign(A) differs by {gap:+.2f} between hacked and clean: see V4b"
    return VACUOUS, n, f"{', '.join(means)}; {why}"


def _mean_sign(samples: Sequence[SampleRecord]) -> float:
    """Return the mean sign of the advantage."""
    return sum((sample.advantage > 0) - (sample.advantage < 0) for sample in samples) / len(samples)


def _among_paid(analysis: Analysis) -> Row:
    if analysis.trains:
        return INCONCLUSIVE, 0, AUTOCORRELATED
    row = analysis.get("contrasts", HACK_DIFFERENCE, analysis.measured_arm)
    if row is None or row.value is None or row.p is None:
        return INCONCLUSIVE, 0, "no arm along v_hack" if row is None else row.why
    haar = analysis.get("nulls", f"{HACK_DIFFERENCE}, {HAAR}", analysis.measured_arm)
    why = f"within-prompt sign-flip p {row.p:.2g}"
    if haar is not None:
        why += f", Haar p {haar.p:.2g}"
    if row.why:
        why += f"; {row.why}"
    says = INCONCLUSIVE
    if haar is not None and haar.p is not None and max(row.p, haar.p) < ALPHA:
        says = PASS if row.value > 0 else FAIL
    elif row.low > -NEAR_ZERO and row.high < NEAR_ZERO:
        says, why = FAIL, f"both alike within +-{NEAR_ZERO}; {why}"
    return says, row.n, f"{row:+.3f}; {why}"


def _near_zero(analysis: Analysis) -> Row:
    steps, interval, prompts = _cos_in(analysis, 1 - 2 * ALPHA)  # two one-sided tests
    says = INCONCLUSIVE
    if interval is not None and max(-interval.low, interval.high) < NEAR_ZERO:
        says = PASS
    elif interval is not None and (interval.low > NEAR_ZERO or interval.high < -NEAR_ZERO):
        says = FAIL
    why = f"90% interval within +-{NEAR_ZERO}. Replay cannot see what appears later in training"
    return says, len(steps), f"{prompts}; {why}" if steps else prompts


def _strong(analysis: Analysis) -> Row:
    steps, interval, prompts = _cos_in(analysis, 1 - ALPHA)
    says = INCONCLUSIVE
    if interval is not None and not interval.low <= STRONG <= interval.high:
        says = PASS if interval.low > STRONG else FAIL
    return says, len(steps), prompts


def _cos_out(analysis: Analysis) -> list[float]:
    steps = [step for step in analysis.steps if step.arm == "projected"]
    return [step.cos_out for step in steps if step.cos_out is not None]


def _effective(analysis: Analysis) -> Row:
    cosines = _cos_out(analysis)
    if not cosines:
        return INCONCLUSIVE, 0, "no projected arm with a gradient"
    why = "says that the gate ran; whether training hacks less, the realised update and trainings show"
    says = PASS if max(cosines) < NEAR_ZERO else FAIL
    return says, len(cosines), f"largest {max(cosines):+.3f}, mean {sum(cosines) / len(cosines):+.3f}; {why}"


def _over_projection(analysis: Analysis) -> Row:
    cosines = _cos_out(analysis)
    if not cosines:
        return INCONCLUSIVE, 0, "no projected arm with a gradient"
    value = f"smallest {min(cosines):+.3f}"
    if (analysis.gate.gate or ARMS["projected"].gate) == "one_sided" or analysis.gate.overshoot > 1:
        return VACUOUS, len(cosines), f"{value}; this gate leaves the parts that point away, so below 0 is no bug"
    return PASS if min(cosines) > -ROUNDING else FAIL, len(cosines), value


def _skip(analysis: Analysis) -> Row:
    (near_zero, n, _), area = _near_zero(analysis), next(iter(analysis.of("auroc")), None)
    if near_zero is INCONCLUSIVE or area is None or not area.is_bounded:
        return INCONCLUSIVE, n, "needs rule D1 decided, and an AUROC for hacked among A > 0 with its interval"
    says = INCONCLUSIVE
    if near_zero is FAIL or area.low > 0.5:
        says = FAIL
    elif area.high < NO_DISCRIMINATION:
        says = PASS
    value = f"D1 {near_zero}, AUROC {area:.3f}"
    return says, n, f"{value}; AUROC of cos_S_contrib among A > 0, upper bound under {NO_DISCRIMINATION} to skip"


# {row: (its question, role, unit of n, judge)}
ROWS: dict[str, tuple[str, str, str, Callable[[Analysis], Row]]] = {
    "V1": (f"reward spread > {SPREAD:g} on most steps", "evidence", "step", _spread),
    "V2": ("vanilla cos_in > 0 on most steps", "evidence", "step", _positive),
    "V3": (f"projected cos_out < cos_in on {LOWERED:.0%} of steps", "mechanism", "step", _lowered),
    "V4": ("cos_S_contrib larger for hacked than for clean buckets", "evidence", "sample", _by_bucket),
    "V4b": ("the same within prompts, among A > 0", "evidence", "prompt", _among_paid),
    "D1": ("vanilla cos_in about 0: projection unlikely to matter", "evidence", "step", _near_zero),
    "D2": (f"vanilla cos_in > {STRONG:g}: Phase 3 justified", "evidence", "step", _strong),
    "D3": (f"projected cos_out < {NEAR_ZERO:g}: projection effective", "mechanism", "step", _effective),
    "D4": ("projected cos_out < 0 would be a bug", "mechanism", "step", _over_projection),
    "D5": ("skip Phase 3: cos_in about 0 and no discrimination", "evidence", "step", _skip),
}
