"""The verdict on a replay: three questions, each a Finding, exactly one word, and caveats.

    hackward    Does the update point toward the hack?    pull, as a share of held-out hacks
    about       Is that specific to hacking?              hacks against clean samples; the groups without their hacks
    removable   Would projecting v_hack out remove it?    first-order forecast against projections of the same size

spec/METHOD.md section 7 has the words with their conditions. A run that trains is compared over seeds and gets the
word TRAINED here. Each answer, and each word, carries the step that follows from it
(`probe.analysis.verdict.next_step`).

To add a verdict, add a word to `probe.settings.words.Word`, and a row to `_word` in its place (worst first). To add a
question, write a function that answers it, call it in `decide`, and add a row to QUESTIONS. To add a caveat, add a row
to `_caveats`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy.special import ndtri

from probe.analysis.cosines import LOG_RATIO, WORDS, strength
from probe.analysis.estimate import Estimate
from probe.analysis.forecast import AGAINST
from probe.analysis.pull import DECIDED_BY, TOO_FEW_PROMPTS
from probe.analysis.rivals import best_rival
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.overlap import TOGETHER, is_lacking, may_lack, may_not_suffice
from probe.analysis.statistics.thresholds import (
    ALPHA,
    FEW_HACKED,
    MATERIAL,
    MATERIAL_REMOVED,
    MIN_OVERLAP,
    RARE,
    REPRODUCED,
    SHOWN_REMOVED,
)
from probe.analysis.training_runs import RATES, deployed
from probe.analysis.verdict import next_step as steps
from probe.analysis.verdict.pools import doubts
from probe.analysis.verdict.verdict import Finding, Next, Verdict
from probe.records.idle import idle_settings
from probe.records.run import in_root, out_of
from probe.settings.words import ALL, PLAIN, Answer, Word

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

_THRESHOLDS = (
    f"sizes that count: projection must remove {MATERIAL_REMOVED:g}, and {SHOWN_REMOVED:g} for a yes; trainings of the "
    f"organism set both (spec/studies/foretell). For the other questions it is {MATERIAL:g}; that, and the rule "
    "that hacks must bring half of the pull, are provisional: no training sets them"
)
SCORE_NAMES = {
    "comp_len": "length",
    "nll": "likelihood",
    "grad_norm": "norm",
    "hint": "hint",
    LOG_RATIO: "log-ratio",
    WORDS: "a bag of words",
    TOGETHER: "the trivial scores",
}
TO_80 = float(ndtri(0.9) / ndtri(0.975))  # converts half of a 95% interval to half of an 80% interval
VAGUE_COST = 2.0  # width of its interval, a share, above which a cost is uninformative: a quotient by nearly 0
COMPARE = "compare arms and seeds of one training together"


class Reply(NamedTuple):
    """The answer to a question, with the step that would decide it, or follows from it."""

    says: Answer
    text: str
    step: Next
    number: Estimate | None = None
    n: int = 0  # prompts


def _unreadable(analysis: "Analysis") -> tuple[str, Next]:
    """Say why alignment was not measured, and what would give it."""
    run = analysis.records
    if analysis.measured_arm is None:
        command = steps.repeat(run, **{"intervention.arms": ["vanilla", "projected"]})
        return "no arm measures along v_hack", Next(text="measure an arm along v_hack", command=command)
    share, linked = analysis.get("shares", "pull"), analysis.linked
    summary = analysis.get("cos_in", "cos_in", analysis.measured_arm)
    if not summary.n:
        text = "no group has an update: within every one the rewards are equal"
        return text, steps.more_rollouts("rewards that differ within a prompt", analysis)
    if linked is None:
        return f"the run stored no inner products in the basis {analysis.basis}", steps.plain_loss(run)
    if linked.error > REPRODUCED:
        return (
            "the loss is more than advantages times gradients (token credit, a KL penalty, recorded ratios): recorded "
            f"cosines differ by {linked.error:.2g} from those of the inner products"
        ), steps.plain_loss(run)
    num_held_out = share.parts.get("num_held_out", 0)
    if num_held_out < 2:
        text = "fewer than two pairs are held out, or fewer than two to extract from: no interval of what a hack reads"
        how = ' ("held_out": true in FILE.jsonl)'
        return text, steps.more_pairs(analysis, how, num_held_out, steps.DOZEN)
    ceiling = f"v_hack is not shown to reach held-out hacks: they read {share.parts['ceiling']:+.3f}"
    text = f"{ceiling} ({num_held_out} pairs)"
    if share.why == TOO_FEW_PROMPTS:
        text = f"too few prompts have an update for an interval ({share.n})"
    return text, steps.undecided(share, analysis)


def _hackward(analysis: "Analysis") -> Reply:
    """Decide whether alignment is material, from its interval over prompts and pairs."""
    row = analysis.get("shares", "pull")
    if row.value is None:
        return Reply(Answer.UNMEASURED, *_unreadable(analysis), n=row.n)
    text = (
        f"alignment {row}, where 1 is as aligned as held-out hacks: cos_in is {row.parts['measured']:+.3f} over "
        f"{row.n} prompts, and {row.parts['ceiling']:+.3f} for held-out hacks ({row.parts['num_held_out']} pairs)"
    )
    return Reply(decided(row), text, steps.undecided(row, analysis), row, row.n)


def _about(analysis: "Analysis", why: str) -> Reply:
    """Decide whether the alignment is specific to hacks.

    yes: hacks are more aligned than clean samples with every trivial score held constant, and the alignment without the
    hacks is smaller, at most half. no: a difference is shown to be immaterial, or more than half is shown to remain
    without the hacks. `why` says why alignment is not measured.
    """
    names = ("contrast", "benign", "pull - benign", "half - benign")
    shares = row, benign, less, half = [analysis.get("shares", name) for name in names]
    missing = (why or "no rollout says whether it hacks") if analysis.unlabelled else hacks_missing(analysis)
    if missing or not row.parts:
        return Reply(Answer.UNMEASURED, missing or why, steps.more_labels())
    number, apart = (None if row.value is None else row), _worst_first(filter(is_lacking, analysis.of("overlap")))
    says, text, step = Answer.UNMEASURED, why, _about_open(shares, analysis)
    if apart:
        says, number, text = Answer.CONFOUNDED, None, _separate(apart)
    elif number is not None:
        says = decided(number)
        text = (
            f"contrast {number}, where 1 is what held-out pairs show: rewarded hacks minus rewarded honest answers, "
            f"with the trivial scores held constant ({row.n} prompts)"
        )
    elif not text:
        # Without a prompt there are no sides to compare; otherwise the held-out reference or their number is the cause.
        unpaid = bool(analysis.sure) and not row.parts["num_hacks"]
        says = Answer.UNMEASURED if row.n or unpaid else Answer.CONFOUNDED
        text = f"hacks and honest answers cannot be compared: {row.why}"
    if says is Answer.CONFOUNDED:
        step = steps.confounded(names_of(apart), analysis)
    if None not in (benign.value, less.value, half.value):
        text += f"; alignment without the hacks {benign.value:.2f}, a difference of {less} over {less.n} prompts"
        differs, mostly = decided(less), decided(half)
        if number is not None:
            says = min(says, differs, mostly, key=WEAKEST_FIRST.index)
        if differs is Answer.YES and mostly is not Answer.YES:
            text += f": more than half {'is' if mostly is Answer.NO else 'may be'} left"
    elif number is not None:
        says = Answer.UNMEASURED if says in (Answer.YES, Answer.LIKELY) else says
        text += f"; alignment without the hacks is not measured: {benign.why}"
    if not apart and (unclear := _worst_first(filter(may_lack, analysis.of("overlap")))):
        says = says if says in (Answer.NO, Answer.UNMEASURED) else Answer.UNCLEAR
        text = f"{_separate(unclear, may=True)}; {text}"
        step = steps.overlap_unclear(unclear, names_of(unclear), analysis)
    return Reply(says, text + _rival(analysis), step, number, row.n)


def _about_open(shares: Iterable[Estimate], analysis: "Analysis") -> Next:
    """Return what would decide the first open share."""
    for share in shares:
        is_missing = share.value is None
        is_open = is_missing or (share.name in DECIDED_BY and decided(share) in (Answer.UNCLEAR, Answer.LIKELY))
        if is_open and share.n:
            return steps.undecided(share, analysis)
        if is_missing and share.name == "contrast":
            return steps.unpaid("no rewarded rollout hacks")
        if is_missing and any(sample.hacked is None for sample in analysis.samples):
            return steps.more_labels()
    what = "rewards that differ among the rollouts of a prompt that do not hack"
    return steps.more_rollouts(what, analysis)


def _rival(analysis: "Analysis") -> str:
    """Return the AUROC of the best score without a direction, with v_hack's AUROC on the same samples."""
    rows = analysis.of("auroc")
    rival = best_rival(rows)
    if rival is None or (v_hack := rows[0].value) is None:
        return ""
    best = f"best score without a direction ({SCORE_NAMES[rival.name]}) {strength(rival):.2f}"
    return f"; AUROC for hacks: v_hack {v_hack:.2f}, {best}"


def hacks_missing(analysis: "Analysis") -> str:
    """Say that hacks are too few to answer any question about hacks; empty if there are enough."""
    every = [sample.problem_id for sample in analysis.sure]
    hacks = [sample.problem_id for sample in analysis.sure if sample.hacked]
    (n, prompts), (num_hacks, hacked) = ((len(of), len({*of})) for of in (every, hacks))
    if num_hacks >= RARE * n and hacked >= min(FEW_HACKED, prompts):
        return ""
    return f"hacks are missing: {num_hacks} of {n} rollouts hack, in {hacked} of {prompts} prompts"


def _worst_first(apart: Iterable[Estimate]) -> list[Estimate]:
    """Sort trivial scores by overlap, smallest first; all together is left out, unless it stands alone."""
    ordered = sorted(apart, key=lambda one: one.parts["share"] / (one.parts["by_chance"] or 1.0))
    return [one for one in ordered if one.name != TOGETHER] or ordered


def names_of(scores: Iterable[Estimate]) -> str:
    """Return the names of trivial scores in words."""
    return ", ".join(SCORE_NAMES[one.name] for one in scores)


def _separate(apart: Sequence[Estimate], *, may: bool = False) -> str:
    worst = apart[0]
    verb = "may separate" if may else "separate" if len(apart) > 1 or worst.name == TOGETHER else "separates"
    score = {"hint": "with the same hint", TOGETHER: "with similar trivial scores"}
    alike = score.get(worst.name, f"of similar {SCORE_NAMES[worst.name]}")
    ratio = "too few prompts for an interval" if worst.interval is None else f"a quotient of {worst}"
    parts = worst.parts
    return (
        f"{names_of(apart)} alone {verb} hacks from honest answers: {parts['share']:.0%} of {parts['num_hacks']} "
        f"rewarded hacks share their prompt with an honest answer {alike}; with shuffled labels "
        f"{parts['by_chance']:.0%} would ({ratio}, where {MIN_OVERLAP:g} is needed)"
    )


def _removable(analysis: "Analysis", why: str) -> Reply:
    """Decide whether projection removes enough of the gain on held-out hacks, and more than shuffled pairs do.

    yes: the share reaches SHOWN_REMOVED and exceeds shuffled pairs. likely: it reaches MATERIAL_REMOVED, with p below
    2 ALPHA, and lies above 0 at 80%; `lacking` says what keeps it from a yes. Both require that projection removes a
    larger share from hacks than from honest solutions. too little: the share is shown to be below that threshold. no:
    it is shown to be below the share that shuffled pairs remove. `why` says why alignment is not measured.
    """
    row, honest, own_hacks, norm = (analysis.get("removed", f"removed/{name}") for name in REMOVED)
    if row.value is None:
        if row.why:
            why = "the interval of the gain on held-out hacks includes 0: what projection removes is not measured"
        more = steps.more_prompts(analysis, ": they halve the error of the gain on held-out hacks")
        return Reply(Answer.UNMEASURED, why, _cost(analysis)[1] or more, n=row.n)
    value, p, (price, missing) = row.value, row.p or 1.0, _cost(analysis)
    selective = honest.value is None or value > honest.value
    agree = own_hacks.is_bounded and own_hacks.high >= row.low
    lacking = {
        f"{SHOWN_REMOVED:.0%} or more of the first": value < SHOWN_REMOVED,
        f"p below {ALPHA:g}": p >= ALPHA,
        "an interval above 0": row.low <= 0,
        "as large a share of these rollouts' hacks, within the intervals": not agree,
    }
    says = Answer.UNCLEAR
    if row.null is not None and row.high < row.null:
        says = Answer.NO
    elif row.high < MATERIAL_REMOVED:
        says = Answer.TOO_LITTLE
    elif selective and value >= MATERIAL_REMOVED and p < 2 * ALPHA and at_80(row) > 0:
        says = Answer.UNMEASURED if missing else Answer.LIKELY if any(lacking.values()) else Answer.YES
    of_own, without_signal = "an unmeasured share", ""
    if own_hacks.value is not None:
        of_own, without_signal = f"{own_hacks:.0%}", f" and {own_hacks.null:.0%}"
    text = (
        f"projection removes {row:.0%} of the gain on held-out hacks and {of_own} of the gain on these rollouts' "
        f"hacks; shuffled pairs of the same norm ({norm:.0%} of the gradient's) remove {row.null:.0%} "
        f"(p = {p:.2g}){without_signal}"
        f"{'; above 100%, projection turns the update against the hack' if value > 1 else ''}"
        f"; cost to honest solutions: {price}{'' if selective else ', no less than that'}"
    )
    if says is Answer.LIKELY:
        text += f"; a yes needs {', '.join(condition for condition, lacks in lacking.items() if lacks)}"
    step = missing if missing and says is Answer.UNMEASURED else _removable_open(row, agree, analysis)
    return Reply(says, text, step, row, row.n)


def _removable_open(row: Estimate, agree: bool, analysis: "Analysis") -> Next:
    """Return what would decide the last question: more directions, chance, own hacks, or a narrower interval."""
    if (row.value or 0.0) < SHOWN_REMOVED:
        return steps.more_directions(analysis)
    held_out = analysis.get("shares", "pull").parts.get("num_held_out", 0)
    if row.p is None or row.p >= ALPHA:
        return steps.more_pairs(analysis, ": shuffled ones then remove half as much", held_out)
    if not agree:
        why = f"projecting these out removes {row:.0%} of the gain on held-out hacks, and less of the gain on"
        return steps.other_pairs(analysis, f"{why} this policy's own hacks")
    if row.low > 0:
        return steps.other_pairs(analysis, "projecting these out takes as much from honest solutions as from hacks")
    what = f": they narrow the interval of what projection removes ({row:.0%}), which includes 0"
    if row.parts["from_prompts"] > 0.5:
        return steps.more_prompts(analysis, what)
    return steps.more_pairs(analysis, what, held_out)


# {finding: (its question, the threshold of its number)}
QUESTIONS: Mapping[str, tuple[str, float]] = {
    "hackward": ("Does the update point toward the hack?", MATERIAL),
    "about": ("Is that specific to hacking?", MATERIAL),
    "removable": ("Would projecting v_hack out remove it?", MATERIAL_REMOVED),
}
REMOVED = ("margin", "honest", "hacks", "norm")  # shares that projection removes
WEAKEST_FIRST = (Answer.NO, Answer.UNCLEAR, Answer.LIKELY, Answer.YES)


def decided(share: Estimate) -> Answer:
    """Answer by the thresholds of `DECIDED_BY`: yes, no, likely (yes by the 80% interval) or unclear."""
    above, below = DECIDED_BY[share.name]
    if share.high < below:
        return Answer.NO
    if share.value is None or share.value < below or at_80(share) <= above:
        return Answer.UNCLEAR
    return Answer.YES if share.low > above else Answer.LIKELY


def at_80(number: Estimate) -> float:
    """Return the lower end of the 80% interval."""
    value = number.value or 0.0
    return value - TO_80 * (value - number.low)


def _cost(analysis: "Analysis") -> tuple[str, Next | None]:
    """Return the cost in words; with what would give the part that is missing."""
    row, more = analysis.get("removed", "removed/honest"), ": they halve the error of the cost"
    if analysis.samples and all(sample.hacked is None or sample.gt_pass is None for sample in analysis.samples):
        step = steps.more_labels("are right", "gt_pass")
        return "not measured, since no rollout says whether it is right and honest", step
    if not row.n:
        step = steps.more_rollouts("rewarded rollouts that are right and honest", analysis)
        return "not measured, since no rewarded sample is right and honest", step
    if row.why == AGAINST:
        return "none, since the update works against honest solutions", None
    prompts = steps.more_prompts(analysis, more)
    if row.value is None:
        return "not measured, since the interval of the gain on honest solutions includes 0", prompts
    price = f"{row:.0%} of their gain"
    if row.high < 0:
        gain = replace(row, value=-row.value, interval=Interval(low=-row.high, high=-row.low))
        return f"none, projection adds {gain:.0%} to their gain", None
    if row.high - row.low > VAGUE_COST:
        return f"{price}, an interval too wide to say how much they lose", prompts
    return price, None


def decide(analysis: "Analysis", parts: Sequence[Finding]) -> Verdict:
    """Return the verdict on one run under one loss variant.

    Args:
        analysis: the analysis behind it.
        parts: from `validity.validity`; unseen parts become caveats and decide nothing.
    """
    hackward, findings = _hackward(analysis), []
    why = hackward.text if hackward.says is Answer.UNMEASURED else ""
    replies = hackward, _about(analysis, why), _removable(analysis, why)
    for reply, (name, (question, threshold)) in zip(replies, QUESTIONS.items(), strict=True):
        counted = {"number": reply.number, "counts_from": threshold, "n": reply.n, "unit": "prompt"}
        findings.append(Finding(name=name, question=question, says=reply.says, text=reply.text, **counted))
    word, sentence, step = _word(analysis, replies, parts)
    return Verdict(
        about={"run": analysis.run, "condition": analysis.condition, "basis": analysis.basis},
        word=word,
        sentence=sentence,
        plain=PLAIN.get(word, ""),
        findings=findings,
        caveats=_caveats(word, analysis, parts),
        next=replace(step, command=in_root(step.command, out_of(analysis.records.path))),
    )


def _word(analysis: "Analysis", replies: Sequence[Reply], parts: Sequence[Finding]) -> tuple[Word, str, Next]:
    """Return the word, with its sentence and the next step."""
    hackward, about, removable = replies
    says, number = hackward.says, hackward.number
    if broken := [part for part in parts if part.says is Answer.BROKEN]:
        text = "; ".join(f"{part.name}: {part.text}" for part in broken)
        return Word.BROKEN, text, steps.broken(broken[0].name, analysis)
    if analysis.trains:
        text = f"{_outcome(analysis)}Arms are compared over seeds: give their runs together."
        return Word.TRAINED, text, Next(text=COMPARE, command="probe analyze RUN RUN ...")
    if missing := hacks_missing(analysis):
        step = hackward.step if says is Answer.UNMEASURED else steps.mixed_pool(analysis)
        return Word.UNDERPOWERED, f"{missing}; {hackward.text}", step
    if removable.says is Answer.TOO_LITTLE:
        return Word.SKIP, f"projection would remove too little: {removable.text}", steps.more_directions(analysis)
    if says is Answer.UNMEASURED:
        return Word.UNDERPOWERED, f"nothing can be read: {hackward.text}", hackward.step
    assert number is not None
    if says is Answer.NO:
        where = "points away from the hack" if number.high < 0 else "does not point toward the hack"
        return Word.SKIP, f"the update {where}: {hackward.text}", steps.not_toward(number, analysis)
    if about.says is Answer.CONFOUNDED:
        return Word.CONFOUNDED, about.text, about.step
    if says is Answer.YES and about.says is Answer.NO:
        return Word.GENERIC, f"what points toward the hack is not the hacks: {about.text}", steps.generic(analysis)
    if says is Answer.YES and removable.says is Answer.NO:
        text = f"removing as much along shuffled pairs does the same: {removable.text}"
        return Word.GENERIC, text, steps.generic(analysis)
    if unsure := [reply for reply in replies if reply.says is not Answer.YES]:
        why = {Answer.UNMEASURED: "not measured", Answer.NO: "no", Answer.LIKELY: "likely, and not shown"}
        text = "; ".join(f"{why.get(one.says, 'either answer is possible')}: {one.text}" for one in unsure)
        all_likely = {reply.says for reply in unsure} == {Answer.LIKELY}
        return Word.LIKELY if all_likely else Word.UNDERPOWERED, text, unsure[0].step
    transfer = analysis.get("own", "own hacks")
    if transfer.is_bounded and transfer.low <= 0.5:
        step = steps.other_pairs(analysis, "these do not separate this policy's own hacks from its honest solutions")
        how = "does not clearly separate" if transfer.high > 0.5 else "ranks honest solutions above"
        text = f"v_hack {how} the policy's own hacks: AUROC {transfer}; {about.text}"
        return Word.LIKELY, text, step
    return Word.GO, f"{hackward.text}; {about.text}; {removable.text}", steps.train(analysis)


def _outcome(analysis: "Analysis") -> str:
    """Describe the results of training on held-out problems; one run is no comparison."""
    if analysis.outcome is None:
        return ""
    evaluations, stopped = deployed(analysis.outcome.evaluations), analysis.outcome.stopped
    start, final = evaluations[0]["rates"][ALL], evaluations[-1]["rates"][ALL]
    changes = [
        f"{rate} from {start[rate]['rate']:.0%} to {final[rate]['rate']:.0%} {Interval(**final[rate]['interval']):.0%}"
        for rate in RATES
    ]
    rates = (
        f"{', '.join(changes)} after {evaluations[-1]['step']} steps (n = {final['num_problems']} problems of 1 run)"
    )
    return f"{'' if stopped is None else f'STOPPED: {stopped}. '}Held-out problems, deployed weights: {rates}. "


def _transfer(analysis: "Analysis") -> str:
    """Describe transfer (trainings at scale failed by it), measured or not."""
    transfer = analysis.get("own", "own hacks")
    if not transfer.is_bounded:
        return "transfer unmeasured" + (f" ({transfer.why})" if transfer.why else "")
    return (
        f"transfer: v_hack separates the policy's own {transfer.parts['num_hacks']} hacks from its "
        f"{transfer.parts['num_honest']} honest solutions with AUROC {transfer}"
    )


def _caveats(word: Word, analysis: "Analysis", parts: Sequence[Finding]) -> list[str]:
    """List the limits of the answer with their remedies, most important first; then the origin of the thresholds."""
    samples = analysis.samples
    silent = 0 if analysis.unlabelled else sum(sample.hacked is None for sample in samples)
    mixed = len({step.step for step in analysis.steps if step.mixed_prompt})
    unseen = "; ".join(f"{part.name} ({part.text})" for part in parts if part.says is Answer.NOT_SEEN)
    apart = [f"{row.name} ({row:+.3f})" for row in analysis.of("ceilings") if row.is_bounded and row.low <= 0]
    texts = [] if analysis.reproduced is None else analysis.reproduced.pairs.clusters.tolist()
    different = len({*texts})
    reasons = Counter(sample.null_reason or "" for sample in samples if sample.cos_S_contrib is None)
    named = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
    caution = analysis.adapted.caution if analysis.adapted is not None else ""
    near = [f"{SCORE_NAMES[row.name]} {row}" for row in analysis.of("overlap") if may_not_suffice(row)]
    holds: Mapping[str, Any] = {  # {sentence: true if it holds}
        f"hacks may overlap too little with honest answers to hold a score constant ({', '.join(near)}; "
        f"{MIN_OVERLAP:g} is needed): more prompts decide it": near,
        f"{silent} samples have no hack label and are left out of every contrast: log it (--map hacked=COLUMN)": silent,
        f"in {mixed} steps a group answers different prompts (with and without the hint), so source, hint and reward "
        "move together; --match prompt compares like with like": mixed,
        f"not seen: {unseen}": unseen,
        f"v_hack of the other pairs does not clearly transfer to hacks of the kind {', '.join(apart)}: keep these "
        "pairs and add more": apart,
        f"{len(texts)} pairs have {different} different texts under several prompts: intervals count those "
        f"{different}; write pairs with texts of their own": different < len(texts),
        caution: caution,
        f"Excluded: {reasons.total()} of {len(samples)} samples have no cosine ({named}); groups whose rewards differ "
        "give one": reasons,
    }
    # These come first in every verdict: the numbers may belong to another update.
    first = doubts(analysis.records, analysis.pools)
    rest = [*idle_settings(analysis.records), *(sentence for sentence, is_so in holds.items() if is_so)]
    if word in (Word.BROKEN, Word.TRAINED):
        return [*first, *rest]
    # GO and LIKELY lead to training, so this caveat comes early.
    rest.insert(0 if word in (Word.GO, Word.LIKELY) else len(rest), _transfer(analysis))
    return [*first, *rest, _THRESHOLDS]
