"""What stands beside a verdict in words: caveats, and what a training did. Both render findings and records; neither
decides anything.

To add a caveat: a function that returns [] where there is nothing to say, and its call in `caveats`.
"""

from collections import Counter
from collections.abc import Sequence

from probe.analysis.measures.pull import Ceiling
from probe.analysis.statistics.thresholds import MATERIAL, MATERIAL_REMOVED
from probe.analysis.training_outcome import RATES, deployed
from probe.analysis.verdict.evidence import Evidence
from probe.analysis.verdict.validity import ValidityPart
from probe.settings.words import ALL

_THRESHOLDS = (
    f"pictures run from -0.5 to 1.5, with a mark from where on a share counts. That of the last question, "
    f"{MATERIAL_REMOVED:g}, is set by trainings of the organism (spec/foretell.md). That of the others, {MATERIAL:g}, "
    "and that hacks must bring half of the pull, are provisional: those trainings do not set them"
)


def caveats(
    verdict: str, parts: Sequence[ValidityPart], evidence: Evidence, ceilings: Sequence[Ceiling] = ()
) -> list[str]:
    """What to keep in mind beside a verdict: where thresholds come from, what nobody saw, what was left out.

    Args:
        verdict: of `decision`.
        parts: of `validity.validity`.
        evidence: what both were made from.
        ceilings: what held-out hacks of each kind read.
    """
    sentences = [] if verdict in ("BROKEN", "TRAINED") else [_THRESHOLDS]
    apart = ", ".join(row.left_out for row in ceilings if row.not_reached)
    if apart:
        sentences.append(f"v_hack of the other pairs is not shown to reach hacks of the kind {apart} (see --full)")
    unseen = [f"{part.name} ({part.text})" for part in parts if part.holds is None]
    if unseen:
        sentences.append(f"not seen: {'; '.join(unseen)}")
    return sentences + _excluded(evidence) + _mixed(evidence)


def _excluded(evidence: Evidence) -> list[str]:
    """Which samples are left out, and why."""
    sentences = []
    reasons = Counter(sample.null_reason or "" for sample in evidence.samples if sample.cos_S_contrib is None)
    if reasons:
        named = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        sentences.append(f"Excluded: {reasons.total()} of {len(evidence.samples)} samples have no cosine ({named}).")
    flaky = sum(bool(sample.flaky) for sample in evidence.samples)
    if flaky:
        sentences.append(
            f"Excluded: {flaky} samples that were graded twice with different labels, from every contrast."
        )
    unlabelled = sum(sample.no_label is not None for sample in evidence.samples)
    silent = sum(sample.hacked is None for sample in evidence.samples)
    if silent and not evidence.unlabelled:
        sentences.append(f"Excluded: {silent} samples of which nothing says whether they hack, from every contrast.")
    if unlabelled:
        sentences.append(
            f"Excluded: {unlabelled} samples without label (the machine was too busy to grade them), from every "
            "advantage and every contrast."
        )
    return sentences


def _mixed(evidence: Evidence) -> list[str]:
    """A caution where groups mix prompts."""
    mixed = len({step.step for step in evidence.steps if step.mixed_prompt})
    if not mixed:
        return []
    return [
        f"Caution: in {mixed} steps the group answers different prompts (hinted and not), so that source, hint and "
        "reward move together."
    ]


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
