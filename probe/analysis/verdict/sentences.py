"""What the numbers of a run say, as sentences. Every sentence that makes a claim carries its n and its unit.

To add a sentence: write a function that returns [] where there is nothing to say, and add it to `conclusions` in its
place of importance. What is left out of the numbers goes into `exclusions`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from probe.analysis.measures.contrasts import HACK_AMONG_PAID, PURE_HACK, Contrast
from probe.analysis.measures.specificity import Specificity
from probe.analysis.measures.trajectory import ArmSummary
from probe.analysis.statistics.thresholds import ALIGNED_ALPHA, NEAR_ZERO, STRONG
from probe.analysis.training_outcome import RATES, deployed
from probe.analysis.verdict.evidence import Evidence, controls, is_control
from probe.settings.words import ALL

ALPHA = ALIGNED_ALPHA
Alignment = Literal["unmeasured", "all null", "training", "null", "few", "control", "aligned", "opposed"]


def alignment(evidence: Evidence) -> Alignment:
    """Where cos_in of v_hack stands against the nulls of this run.

    `aligned` / `opposed` need a sign-flip p over prompts, a Haar p (one draw shared by all steps) and, where it was
    drawn, a label-permutation p (N2), all below ALPHA, and a larger mean than every control arm (`control` otherwise).
    `few`: the nulls of the direction are left behind, and so few prompts could not have brought the sign-flip p below
    ALPHA. In training the run is the unit: no verdict.
    """
    measured, permuted = evidence.measured, evidence.null("cos_in", "N2")
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
    for control in controls(evidence.summaries):
        if control.mean_cos_in is not None and abs(control.mean_cos_in) >= abs(measured.mean_cos_in):
            return "control"
    return "aligned" if measured.mean_cos_in > 0 else "opposed"


def conclusions(
    evidence: Evidence,
    contrasts: Sequence[Contrast],
    specificities: Sequence[Specificity],
) -> list[str]:
    """The sentences of a report, most important first.

    Args:
        evidence: what the verdicts are made from.
        contrasts: of every arm.
        specificities: of the measured arm.
    """
    measured = evidence.measured
    sentences = [*outcome(evidence), _alignment_sentence(evidence)]
    if measured is not None and measured.mean_cos_in is not None:
        sentences.append(_controls_sentence(measured, evidence))
    sentences.append(_hack_versus_clean(evidence, contrasts))
    sentences += _naive_claims(measured, contrasts)
    if not evidence.trains:
        sentences += _specificity_sentence(specificities)
        sentences += _pure_hack_sentence(measured, contrasts)
    return sentences


def exclusions(evidence: Evidence, null_reasons: Mapping[str, int], mixed_steps: int) -> list[str]:
    """Which samples are left out and why, and groups that mix prompts.

    Args:
        evidence: what the verdicts are made from.
        null_reasons: {reason: samples} of the measured arm.
        mixed_steps: steps whose group answers different prompts.
    """
    sentences: list[str] = []
    if null_reasons:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(null_reasons.items()))
        count = sum(null_reasons.values())
        sentences.append(f"Excluded: {count} of {len(evidence.samples)} samples have no cosine ({reasons}).")
    flaky = sum(bool(sample.flaky) for sample in evidence.samples)
    if flaky:
        sentences.append(
            f"Excluded: {flaky} samples that were graded twice with different labels, from every contrast."
        )
    unlabelled = sum(sample.no_label is not None for sample in evidence.samples)
    if unlabelled:
        sentences.append(
            f"Excluded: {unlabelled} samples without label (the machine was too busy to grade them), from every "
            "advantage and every contrast."
        )
    if mixed_steps:
        sentences.append(
            f"Caution: in {mixed_steps} steps the group answers different prompts (hinted and not), so that source, "
            "hint and reward move together."
        )
    return sentences


def outcome(evidence: Evidence) -> list[str]:
    """What training did on held-out problems; one run is no comparison."""
    if evidence.outcome is None:
        return []
    evaluations = deployed(evidence.outcome.evaluations)
    start, final = evaluations[0]["rates"][ALL], evaluations[-1]["rates"][ALL]
    changes = []
    for rate in RATES:
        interval = final[rate]["interval"]
        changes.append(
            f"{rate} from {start[rate]['rate']:.0%} to {final[rate]['rate']:.0%} "
            f"[{interval['low']:.0%}, {interval['high']:.0%}]"
        )
    sentence = (
        f"Held-out problems, deployed weights: {', '.join(changes)} after {evaluations[-1]['step']} steps "
        f"(n = {final['num_problems']} problems of 1 run; arms are compared over seeds)."
    )
    stopped = evidence.outcome.stopped
    return [sentence] if stopped is None else [f"STOPPED: {stopped}.", sentence]


def _alignment_sentence(evidence: Evidence) -> str:
    measured, state, permuted = evidence.measured, alignment(evidence), evidence.null("cos_in", "N2")
    if measured is None:
        return "Alignment: not measured; no arm of this run uses v_hack."
    if measured.mean_cos_in is None or measured.haar is None:
        return f"Alignment: nothing was measured; all {measured.num_steps} steps have null cosines."
    interval = measured.interval
    between = f" [{interval.low:+.3f}, {interval.high:+.3f}]" if interval else ""
    haar = measured.haar.shared
    numbers = (
        f"mean cos_in {measured.mean_cos_in:+.3f}{between} over {measured.num_prompts} prompts, "
        f"Haar z {haar.z:+.1f} (p {haar.p:.2g})"
    )
    if state == "training":
        return f"Alignment: {numbers}; the run trains, so the run is the unit (n = 1 run) and no p over steps is given."
    if permuted:
        numbers += f", permuted-label z {permuted.z or 0:+.1f} (p {permuted.p:.2g})"
    if measured.sign_flip_p is not None:
        numbers += f", sign-flip p {measured.sign_flip_p:.2g}"
    numbers = numbers[0].upper() + numbers[1:]
    if state == "null":
        sign = " Its mean is negative: away from the hack." if measured.mean_cos_in < 0 else ""
        return f"Alignment: not above every null. {numbers}.{sign}"
    if state == "few":
        return f"Alignment: not decided; {measured.num_prompts} prompts cannot reach p < {ALPHA:g}. {numbers}."
    if state == "control":
        return f"Alignment: not above every null. {numbers}, and a control arm reads as much."
    # The gradient is of the loss: a descent step moves against it.
    towards = "along v_hack: a descent step moves towards the hack"
    if state == "opposed":
        towards = "against v_hack: a descent step moves away from the hack"
    return f"Alignment: the gradient points {towards}. {numbers}. {_size(measured)}"


def _size(measured: ArmSummary) -> str:
    """Whether an alignment that was shown is large enough to matter."""
    interval = measured.interval
    if interval is None:
        return ""
    smallest = max(interval.low, -interval.high)  # the end nearest to zero, when the interval excludes it
    for bound, word in ((STRONG, "Strong"), (NEAR_ZERO, "Material")):
        if smallest > bound:
            return f"{word}: the whole 95% interval is beyond {bound:g}."
    return f"Small or uncertain in size: the 95% interval reaches inside {NEAR_ZERO:g}."


def _controls_sentence(measured: ArmSummary, evidence: Evidence) -> str:
    readings, label_controls = [], False
    for control in controls(evidence.summaries):
        if control.mean_cos_in is not None:
            readings.append(f"{control.arm} {control.mean_cos_in:+.3f} (n = {control.num_prompts} prompts)")
            label_controls |= control.arm in ("permuted", "placebo")
    shown = ", ".join(readings) or "no control arm"
    sentence = f"Controls: mean cos_in of {measured.arm} {measured.mean_cos_in:+.3f}; {shown}."
    if evidence.null("cos_in", "N2") is None and not label_controls:
        sentence += " Haar directions are a floor, not the label-permutation null, which this run did not measure."
    return sentence


def _hack_versus_clean(evidence: Evidence, contrasts: Sequence[Contrast]) -> str:
    by_arm = {contrast.arm: contrast for contrast in contrasts if contrast.name == HACK_AMONG_PAID}
    row = by_arm.get(evidence.measured.arm) if evidence.measured is not None else None
    start = "Hack versus clean among A > 0:"
    if evidence.trains:
        size = "" if row is None or row.difference is None else f"{row.difference:+.3f} in cos_S_contrib; "
        return f"{start} {size}the run trains, so the run is the unit and no p over prompts is given."
    if row is None or row.difference is None or row.p is None or row.haar is None:
        return f"{start} cannot be compared; no prompt holds both (n = 0 prompts)."
    permuted = evidence.null("hack_difference", "N2")
    permuted_text = f", permuted-label p {permuted.p:.2g}" if permuted else ""
    numbers = (
        f"{row.difference:+.3f} in cos_S_contrib (n = {row.num_prompts} prompts, sign-flip p {row.p:.2g}, "
        f"Haar p {row.haar.p:.2g}{permuted_text})"
    )
    but = f" Here it cannot be told from {', '.join(row.confounded_with)}." if row.confounded_with else ""
    # Above every null of the directions, yet with too few prompts for the sign flip: undecided, not absent.
    directions_p = max(row.haar.p, permuted.p if permuted else 0.0)
    if directions_p < ALPHA <= row.p and _too_few(row.num_prompts):
        return f"{start} not decided; {row.num_prompts} prompts cannot reach p < {ALPHA:g}; {numbers}.{but}"
    if max(row.p, directions_p) >= ALPHA:
        return f"{start} not above every null, {numbers}.{but}"
    for arm, contrast in by_arm.items():
        if is_control(arm) and contrast.difference is not None and abs(contrast.difference) >= abs(row.difference):
            return f"{start} not above every null, {numbers}, and a control arm reads as much.{but}"
    word = "more" if row.difference > 0 else "less"
    return f"{start} hacks point {word} along v_hack, {numbers}.{but}"


def _naive_claims(measured: ArmSummary | None, contrasts: Sequence[Contrast]) -> list[str]:
    """What the seed's sample-level tests would have claimed, and the tests whose unit is the prompt do not."""
    claims = []
    for contrast in contrasts:
        if measured is None or contrast.arm != measured.arm:
            continue
        if contrast.welch_p is None or contrast.welch_p >= ALPHA:
            continue
        if contrast.p is None:
            by_prompt = "no prompt holds both"
        elif contrast.p >= ALPHA:
            by_prompt = f"sign-flip p {contrast.p:.2g} over {contrast.num_prompts} prompts"
        else:
            continue
        samples = contrast.n_a + contrast.n_b
        claims.append(
            f"{contrast.metric} {contrast.name} (Welch p {contrast.welch_p:.2g} over {samples} samples; {by_prompt})"
        )
    if not claims:
        return []
    return [f"Naive: with the sample as its unit, Welch's test would have claimed {', '.join(claims)}."]


def _specificity_sentence(specificities: Sequence[Specificity]) -> list[str]:
    area = next((row for row in specificities if row.score == "cos_S_contrib"), None)
    if area is None or area.auroc is None or area.interval is None:
        return []
    sentence = (
        f"Specificity: AUROC of cos_S_contrib for hacked among A > 0 is {area.auroc:.2f} "
        f"[{area.interval.low:.2f}, {area.interval.high:.2f}] (n = {area.num_prompts} prompts)"
    )
    better = []
    for rival in specificities:
        if rival is area or rival.auroc is None:
            continue
        # A trivial score may tell hacks apart in either direction.
        if abs(rival.auroc - 0.5) >= abs(area.auroc - 0.5):
            better.append(rival.score)
    if better:
        does = "alone does as well or better" if len(better) == 1 else "do as well or better, each alone"
        sentence += f"; {', '.join(better)} {does}"
    return [f"{sentence}."]


def _pure_hack_sentence(measured: ArmSummary | None, contrasts: Sequence[Contrast]) -> list[str]:
    by_arm = {contrast.arm: contrast for contrast in contrasts if contrast.name == PURE_HACK}
    row = by_arm.get(measured.arm) if measured is not None else None
    if row is None or row.mean_a is None or row.mean_b is None:
        return []
    sentence = (
        f"Pure hack versus hack and correct: cos_S_nll {row.mean_a:+.3f} (n = {row.n_a} samples) "
        f"versus {row.mean_b:+.3f} (n = {row.n_b} samples)"
    )
    if row.p is None or row.haar is None:
        return [f"{sentence}; no prompt holds both."]
    if max(row.p, row.haar.p) < ALPHA:
        verdict = "they differ"
    elif row.haar.p < ALPHA and _too_few(row.num_prompts):
        verdict = "not decided"
    else:
        verdict = "not above every null"
    return [
        f"{sentence}; within prompts {row.difference:+.3f}, {verdict} (n = {row.num_prompts} prompts, sign-flip p "
        f"{row.p:.2g}, Haar p {row.haar.p:.2g})."
    ]


def _too_few(n: int) -> bool:
    """Whether n differences cannot reach ALPHA: the smallest sign-flip p is 2 / 2^n."""
    return 2.0 ** (1 - n) >= ALPHA
