"""The verdict on a replay: exactly one of six words, with the reason, what to keep in mind, and the next command.

    BROKEN         a part of the measurement is shown broken                     nothing else is read
    SKIP           the update is not hack-ward while held-out hacks are,         extract otherwise
                   or the gate would remove too little of the progress on them
    CONFOUNDED     hacks and clean samples cannot be told apart from the rest    pools that overlap
    GENERIC        whatever points hack-ward is not the hacks                    pairs that differ in the hack alone
    UNDERPOWERED   the intervals hold both answers, or there is nothing to read  how many prompts or pairs
    GO             hack-ward, about hacks, removable at a stated price           what a training can see

A run that trains is compared over seeds, and has no verdict of its own: TRAINED.

To add a verdict: a word of `probe.settings.words.Word`, a branch of `_word` at its place, the worst first, and its rows
in `probe.analysis.verdict.advice.ADVICE`. To add a caveat: a sentence in `_caveats`.
"""

from collections import Counter
from collections.abc import Sequence

from probe.analysis.evidence import Evidence
from probe.analysis.statistics.thresholds import MATERIAL, MATERIAL_REMOVED
from probe.analysis.training_outcome import RATES, deployed
from probe.analysis.verdict.advice import next_step
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.settings.words import ALL, Word

_THRESHOLDS = (
    "pictures run from -0.5 to 1.5, with a mark at the size from which a share counts. For the last question it is "
    f"{MATERIAL_REMOVED:g}, set by trainings of the organism (spec/foretell.md). For the others it is {MATERIAL:g}; "
    "that, and the rule that hacks must bring half of the pull, are provisional: no training sets them"
)


def decide(evidence: Evidence, findings: Sequence[Finding], parts: Sequence[Finding]) -> Verdict:
    """The verdict on one run under one condition.

    Args:
        evidence: what both were made from.
        findings: of `questions.questions`.
        parts: of `validity.validity`; those that nobody saw are caveats, and decide nothing.
    """
    word, sentence = _word(evidence, findings, parts)
    return Verdict(
        about={"run": evidence.run, "condition": evidence.condition, "basis": evidence.basis},
        word=word,
        sentence=sentence,
        findings=findings,
        caveats=_caveats(word, evidence, parts),
        next=next_step(word, evidence, findings, parts),
    )


def _word(evidence: Evidence, findings: Sequence[Finding], parts: Sequence[Finding]) -> tuple[Word, str]:
    broken = [part for part in parts if part.says is Word.BROKEN]
    if broken:
        return Word.BROKEN, "; ".join(f"{part.name}: {part.text}" for part in broken)
    if evidence.trains:
        return Word.TRAINED, " ".join([*_outcome(evidence), "Arms are compared over seeds: give their runs together."])
    hackward, about, removable = findings
    if removable.says is Word.TOO_LITTLE:
        return Word.SKIP, f"the gate would remove too little: {removable.text}"
    if hackward.says is Word.UNMEASURED:
        return Word.UNDERPOWERED, f"nothing can be read: {hackward.text}"
    if hackward.says is Word.NO:
        return Word.SKIP, f"the update does not point hack-ward: {hackward.text}"
    if about.says is Word.CONFOUNDED:
        return Word.CONFOUNDED, about.text
    if about.says is Word.NO:
        return Word.GENERIC, f"whatever points hack-ward is not the hacks: {about.text}"
    if removable.says is Word.NO:
        return Word.GENERIC, f"any gate of that size does as much: {removable.text}"
    if all(finding.says is Word.YES for finding in findings):
        return Word.GO, f"{hackward.text}; {about.text}; {removable.text}"
    why = {Word.UNMEASURED: "not measured"}
    unsure = [finding for finding in findings if finding.says is not Word.YES]
    texts = (f"{why.get(finding.says, 'either answer is possible')}: {finding.text}" for finding in unsure)
    return Word.UNDERPOWERED, "; ".join(texts)


def _outcome(evidence: Evidence) -> list[str]:
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


def _caveats(word: Word, evidence: Evidence, parts: Sequence[Finding]) -> list[str]:
    """Where thresholds come from, what nobody saw, what was left out, and groups that mix prompts."""
    sentences = [] if word in (Word.BROKEN, Word.TRAINED) else [_THRESHOLDS]
    apart = ", ".join(row.left_out for row in evidence.ceilings if row.not_reached)
    if apart:
        sentences.append(f"v_hack of the other pairs is not shown to reach hacks of the kind {apart} (see --full)")
    unseen = [f"{part.name} ({part.text})" for part in parts if part.says is Word.NOT_SEEN]
    if unseen:
        sentences.append(f"not seen: {'; '.join(unseen)}")
    samples = evidence.samples
    reasons = Counter(sample.null_reason or "" for sample in samples if sample.cos_S_contrib is None)
    if reasons:
        named = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        sentences.append(f"Excluded: {reasons.total()} of {len(samples)} samples have no cosine ({named}).")
    silent = 0 if evidence.unlabelled else sum(sample.hacked is None for sample in samples)
    for count, what, where in (
        (sum(bool(sample.flaky) for sample in samples), "that were graded twice with different labels", "contrast"),
        (silent, "of which nothing says whether they hack", "contrast"),
        (
            sum(sample.no_label is not None for sample in samples),
            "without label (the machine was too busy to grade them)",
            "advantage and every contrast",
        ),
    ):
        if count:
            sentences.append(f"Excluded: {count} samples {what}, from every {where}.")
    mixed = len({step.step for step in evidence.steps if step.mixed_prompt})
    if mixed:
        sentences.append(
            f"Caution: in {mixed} steps the group answers different prompts (hinted and not): source, hint and reward "
            "move together."
        )
    return sentences
