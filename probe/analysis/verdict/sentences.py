"""What the numbers say, in plain words. Every sentence that makes a claim carries its n and its unit."""

from collections.abc import Mapping, Sequence
from typing import Literal

from probe.analysis.measures.contrasts import HACK_AMONG_PAID, PURE_HACK, Contrast
from probe.analysis.measures.specificity import Specificity
from probe.analysis.measures.trajectory import ArmSummary
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.thresholds import ALIGNED_ALPHA, NEAR_ZERO, STRONG
from probe.analysis.training_outcome import RATES, deployed
from probe.analysis.verdict.evidence import Evidence, controls, is_control
from probe.settings.words import ALL

ALPHA = ALIGNED_ALPHA
Alignment = Literal["unmeasured", "all null", "training", "null", "few", "control", "aligned", "opposed"]


def alignment(e: Evidence) -> Alignment:
    """Where cos_in of v_hack stands against the nulls of this run.

    `aligned` / `opposed` need a sign-flip p over prompts, a Haar p (one draw shared by all steps) and, where it was
    drawn, a label-permutation p (N2), all below ALPHA, and a larger mean than every control arm (`control` otherwise).
    `few`: the nulls of the direction are left behind, and so few prompts could not have brought the sign-flip p below
    ALPHA. In training the run is the unit: no verdict.
    """
    measured, permuted = e.measured, _permuted(e)
    if measured is None:
        return "unmeasured"
    if measured.mean_cos_in is None or measured.haar is None:
        return "all null"
    if measured.trains:
        return "training"
    if measured.haar.shared.p >= ALPHA or measured.sign_flip_p is None or (permuted and permuted.p >= ALPHA):
        return "null"
    if measured.sign_flip_p >= ALPHA:
        return "few" if _too_few(measured.num_prompts) else "null"
    rivals = [abs(s.mean_cos_in) for s in controls(e.summaries) if s.mean_cos_in is not None]
    if any(rival >= abs(measured.mean_cos_in) for rival in rivals):
        return "control"
    return "aligned" if measured.mean_cos_in > 0 else "opposed"


def conclusions(
    evidence: Evidence,
    contrasts: Sequence[Contrast],
    specificities: Sequence[Specificity],
    null_reasons: Mapping[str, int],
    mixed_steps: int,
) -> list[str]:
    """The sentences of a report, most important first.

    Args:
        evidence: what the verdicts are made from.
        contrasts: of every arm.
        specificities: of the measured arm.
        null_reasons: {reason: samples} of the measured arm.
        mixed_steps: steps whose group answers different prompts.
    """
    measured = evidence.measured
    sentences = [*_outcome_sentence(evidence), _alignment_sentence(evidence)]
    if measured is not None and measured.mean_cos_in is not None:
        sentences.append(_controls_sentence(measured, evidence))
    sentences.append(_hack_sentence(evidence, contrasts))
    sentences += _naive_sentence(measured, contrasts)
    if not evidence.trains:
        sentences += _specificity_sentence(specificities)
        sentences += _pure_hack_sentence(measured, contrasts)
    if null_reasons:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(null_reasons.items()))
        count = sum(null_reasons.values())
        sentences.append(f"Excluded: {count} of {len(evidence.samples)} samples have no cosine ({reasons}).")
    if flaky := sum(bool(s.flaky) for s in evidence.samples):
        sentences.append(
            f"Excluded: {flaky} samples that were graded twice with different labels, from every contrast."
        )
    if mixed_steps:
        sentences.append(
            f"Caution: in {mixed_steps} steps the group answers different prompts (hinted and not), so that source, "
            "hint and reward move together."
        )
    return sentences


def _outcome_sentence(e: Evidence) -> list[str]:
    """What training did on held-out problems; one run is no comparison."""
    if e.outcome is None:
        return []
    own = deployed(e.outcome.evaluations)
    start, final = own[0]["rates"][ALL], own[-1]["rates"][ALL]
    rates = [
        f"{rate} from {start[rate]['rate']:.0%} to {final[rate]['rate']:.0%} "
        f"[{final[rate]['interval']['low']:.0%}, {final[rate]['interval']['high']:.0%}]"
        for rate in RATES
    ]
    text = (
        f"Held-out problems, deployed weights: {', '.join(rates)} after {own[-1]['step']} steps "
        f"(n = {final['num_problems']} problems of 1 run; arms are compared over seeds)."
    )
    return [text] if e.outcome.stopped is None else [f"STOPPED: {e.outcome.stopped}.", text]


def _alignment_sentence(e: Evidence) -> str:
    measured, state, permuted = e.measured, alignment(e), _permuted(e)
    if measured is None:
        return "Alignment: not measured; no arm of this run uses v_hack."
    if measured.mean_cos_in is None or measured.haar is None:
        return f"Alignment: nothing was measured; all {measured.num_steps} steps have null cosines."
    haar = measured.haar
    numbers = (
        f"mean cos_in {measured.mean_cos_in:+.3f}{_between(measured)} over {measured.num_prompts} prompts, "
        f"Haar z {haar.shared.z:+.1f} (p {haar.shared.p:.2g})"
    )
    if state == "training":
        return f"Alignment: {numbers}; the run trains, so the run is the unit (n = 1 run) and no p over steps is given."
    numbers += f", permuted-label z {permuted.z or 0:+.1f} (p {permuted.p:.2g})" if permuted else ""
    numbers += "" if measured.sign_flip_p is None else f", sign-flip p {measured.sign_flip_p:.2g}"
    if state == "null":
        sign = " Its mean is negative: away from the hack." if measured.mean_cos_in < 0 else ""
        return f"Alignment: not above every null. {_capital(numbers)}.{sign}"
    if state == "few":
        return (
            f"Alignment: not decided; {measured.num_prompts} prompts cannot reach p < {ALPHA:g}. {_capital(numbers)}."
        )
    if state == "control":
        return f"Alignment: not above every null. {_capital(numbers)}, and a control arm reads as much."
    towards = "along v_hack: a descent step moves towards the hack"
    if state == "opposed":
        towards = "against v_hack: a descent step moves away from the hack"
    return f"Alignment: the gradient points {towards}. {_capital(numbers)}. {_size(measured)}"


def _size(measured: ArmSummary) -> str:
    interval = measured.interval
    if interval is None:
        return ""
    smallest = max(interval.low, -interval.high)  # the end nearest to zero, when the interval excludes it
    for bound, word in ((STRONG, "Strong"), (NEAR_ZERO, "Material")):
        if smallest > bound:
            return f"{word}: the whole 95% interval is beyond {bound:g}."
    return f"Small or uncertain in size: the 95% interval reaches inside {NEAR_ZERO:g}."


def _controls_sentence(measured: ArmSummary, e: Evidence) -> str:
    read = [(s.arm, s.mean_cos_in, s.num_prompts) for s in controls(e.summaries) if s.mean_cos_in is not None]
    text = ", ".join(f"{arm} {mean:+.3f} (n = {n} prompts)" for arm, mean, n in read)
    text = f"Controls: mean cos_in of {measured.arm} {measured.mean_cos_in:+.3f}; {text or 'no control arm'}."
    if _permuted(e) is None and not {"permuted", "placebo"} & {arm for arm, _, _ in read}:
        text += " Haar directions are a floor, not the label-permutation null, which this run did not measure."
    return text


def _hack_sentence(e: Evidence, contrasts: Sequence[Contrast]) -> str:
    rows = {c.arm: c for c in contrasts if c.name == HACK_AMONG_PAID}
    row = rows.get(e.measured.arm) if e.measured is not None else None
    permuted = _permuted(e, "hack_difference")
    start = "Hack versus clean among A > 0:"
    if e.trains:
        size = "" if row is None or row.difference is None else f"{row.difference:+.3f} in cos_S_contrib; "
        return f"{start} {size}the run trains, so the run is the unit and no p over prompts is given."
    if row is None or row.difference is None or row.p is None or row.haar is None:
        return f"{start} cannot be compared; no prompt holds both (n = 0 prompts)."
    numbers = (
        f"{row.difference:+.3f} in cos_S_contrib (n = {row.num_prompts} prompts, sign-flip p {row.p:.2g}, "
        f"Haar p {row.haar.p:.2g}" + (f", permuted-label p {permuted.p:.2g})" if permuted else ")")
    )
    but = f" Here it cannot be told from {', '.join(row.confounded_with)}." if row.confounded_with else ""
    directions_p = max(row.haar.p, permuted.p if permuted else 0.0)
    if directions_p < ALPHA <= row.p and _too_few(row.num_prompts):
        return f"{start} not decided; {row.num_prompts} prompts cannot reach p < {ALPHA:g}; {numbers}.{but}"
    if max(row.p, directions_p) >= ALPHA:
        return f"{start} not above every null, {numbers}.{but}"
    rivals = {arm: c.difference for arm, c in rows.items() if is_control(arm) and c.difference is not None}
    if any(abs(difference) >= abs(row.difference) for difference in rivals.values()):
        return f"{start} not above every null, {numbers}, and a control arm reads as much.{but}"
    word = "more" if row.difference > 0 else "less"
    return f"{start} hacks point {word} along v_hack, {numbers}.{but}"


def _naive_sentence(measured: ArmSummary | None, contrasts: Sequence[Contrast]) -> list[str]:
    """What the seed's sample-level tests would have claimed, and the tests whose unit is the prompt do not."""
    own = [c for c in contrasts if measured is not None and c.arm == measured.arm]
    naive = [c for c in own if c.welch_p is not None and c.welch_p < ALPHA and (c.p is None or c.p >= ALPHA)]
    if not naive:
        return []
    rows = ", ".join(
        f"{c.metric} {c.name} (Welch p {c.welch_p:.2g} over {c.n_a + c.n_b} samples; "
        + (f"sign-flip p {c.p:.2g} over {c.num_prompts} prompts)" if c.p is not None else "no prompt holds both)")
        for c in naive
    )
    return [f"Naive: with the sample as its unit, Welch's test would have claimed {rows}."]


def _permuted(e: Evidence, metric: str = "cos_in") -> NullTest | None:
    return e.permutation.get(metric, "N2") if e.permutation is not None else None


def _specificity_sentence(specificities: Sequence[Specificity]) -> list[str]:
    area = {row.score: row for row in specificities}
    own = area.get("cos_S_contrib")
    if own is None or own.auroc is None or own.interval is None:
        return []
    text = (
        f"Specificity: AUROC of cos_S_contrib for hacked among A > 0 is {own.auroc:.2f} "
        f"[{own.interval.low:.2f}, {own.interval.high:.2f}] (n = {own.num_prompts} prompts)"
    )
    # A baseline may tell hacks apart in either direction.
    strength = {score: abs(row.auroc - 0.5) for score, row in area.items() if row.auroc is not None and row is not own}
    better = [score for score, value in strength.items() if value >= abs(own.auroc - 0.5)]
    does = "alone does as well or better" if len(better) == 1 else "do as well or better, each alone"
    ending = f"; {', '.join(better)} {does}" if better else ""
    return [f"{text}{ending}."]


def _pure_hack_sentence(measured: ArmSummary | None, contrasts: Sequence[Contrast]) -> list[str]:
    row = next((c for c in contrasts if c.name == PURE_HACK and measured and c.arm == measured.arm), None)
    if row is None or row.mean_a is None or row.mean_b is None:
        return []
    text = (
        f"Pure hack versus hack and correct: cos_S_nll {row.mean_a:+.3f} (n = {row.n_a} samples) "
        f"versus {row.mean_b:+.3f} (n = {row.n_b} samples)"
    )
    if row.p is None or row.haar is None:
        return [f"{text}; no prompt holds both."]
    verdict = "they differ"
    if max(row.p, row.haar.p) >= ALPHA:
        verdict = "not decided" if row.haar.p < ALPHA and _too_few(row.num_prompts) else "not above every null"
    return [
        f"{text}; within prompts {row.difference:+.3f}, {verdict} (n = {row.num_prompts} prompts, sign-flip p "
        f"{row.p:.2g}, Haar p {row.haar.p:.2g})."
    ]


def _between(measured: ArmSummary) -> str:
    return f" [{measured.interval.low:+.3f}, {measured.interval.high:+.3f}]" if measured.interval else ""


def _too_few(n: int) -> bool:
    """Whether n differences cannot reach ALPHA: the smallest sign-flip p is 2 / 2^n."""
    return 2.0 ** (1 - n) >= ALPHA


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
