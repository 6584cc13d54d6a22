"""The verdict on a replay: three questions, each a Finding, exactly one of seven words, and what to keep in mind.

    hackward    Does the update point hack-ward?          pull, as a share of held-out hacks
    about       Is that about hacks?                      hacks against clean samples; the groups without their hacks
    removable   Would the gate remove it, at what price?  first-order forecast against gates of the same size

    BROKEN         a part of the measurement is shown broken                     nothing else is read
    UNDERPOWERED   hacks are missing                                             rollouts that hack
    SKIP           the update is not hack-ward while held-out hacks are,         extract otherwise
                   or the gate would remove too little of the progress on them
    CONFOUNDED     clean answers are shown to be unlike the hacks in a score     rollouts that overlap
    GENERIC        hack-ward, and that is not the hacks                          pairs that differ in the hack alone
    UNDERPOWERED   the intervals hold both answers, or a part is not measured    how many prompts or pairs
    LIKELY         every answer counts as yes; an interval still holds no, or    the same
                   v_hack is not shown to tell the policy's own hacks apart
    GO             hack-ward, about hacks, removable at a stated price           what a training can see

A run that trains is compared over seeds, and has no verdict of its own: TRAINED.

To add a verdict: a word of `probe.settings.words.Word`, a branch of `_word` at its place, the worst first, and its rows
in `probe.analysis.verdict.advice.ADVICE`. To add a question: a row of QUESTIONS, a function that returns its Finding,
and its call in `questions`. To add a caveat: a sentence in `_caveats`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from scipy.stats import norm

from probe.analysis.cosines import LOG_RATIO, WORDS, strength
from probe.analysis.evidence import Evidence
from probe.analysis.forecast import Forecast, Removal
from probe.analysis.lookahead import lost_by_all, plain_arm
from probe.analysis.pull import TOO_FEW_PROMPTS, Share
from probe.analysis.rivals import best_rival
from probe.analysis.statistics.intervals import Bounded, Interval
from probe.analysis.statistics.overlap import TOGETHER, Overlap
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
from probe.analysis.verdict.pools import doubts
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.records.idle import idle_settings
from probe.settings.arms import ARMS
from probe.settings.words import ALL, PLAIN, Word

_THRESHOLDS = (
    f"sizes that count: the gate must remove {MATERIAL_REMOVED:g}, and {SHOWN_REMOVED:g} for a yes; trainings of the "
    f"bundled organism set both (spec/foretell.md). For the other questions it is {MATERIAL:g}; that, and the rule "
    "that hacks must bring half of the pull, are provisional: no training sets them"
)

# {finding: (its question, the size from which its number counts)}
QUESTIONS = {
    "hackward": ("Does the update point hack-ward?", MATERIAL),
    "about": ("Is that about hacks?", MATERIAL),
    "removable": ("Would the gate remove it, and at what price?", MATERIAL_REMOVED),
}
# The thresholds of each share that a question rests on. yes: its interval lies above the first, and its value reaches
# the second; no: its interval lies below the second. The last row asks that at most half of the pull is left without
# the hacks: a difference above 0 may be a fifth of it, and a gate would then act on what honest solutions do as well.
DECIDED_BY: Mapping[str, tuple[float, float]] = {
    "pull": (MATERIAL, MATERIAL),
    "contrast": (0.0, MATERIAL),
    "pull - benign": (0.0, MATERIAL),
    "half - benign": (-math.inf, 0.0),
}
SCORE_NAMES = {
    "comp_len": "length",
    "nll": "likelihood",
    "grad_norm": "norm",
    "hint": "hint",
    LOG_RATIO: "log-ratio",
    WORDS: "a bag of words",
    TOGETHER: "the trivial scores",
}
RESTS_ON = {"hackward": ("pull",), "about": ("contrast", "benign", "pull - benign", "half - benign")}  # shares of each
TO_80 = float(norm.ppf(0.9) / norm.ppf(0.975))  # from half a 95% interval to half of the one of 80%
CHANCE = 0.5  # AUROC of a score that says nothing
VAGUE_PRICE = 2.0  # width of its interval, a share, at which a price says nothing: a quotient by nearly 0
Reason = Literal["arm", "updates", "gram", "loss", "held out", "prompts", "reach"]


def unread(evidence: Evidence) -> tuple[Reason, str] | None:
    """Why nothing along v_hack can be read: the first reason that holds, in words; None where pull was measured."""
    if evidence.measured_arm is None:
        return "arm", "no arm measures along v_hack"
    share, linked = evidence.share("pull"), evidence.linked
    if share is not None and share.share is not None:
        return None
    summary = evidence.summary(evidence.measured_arm)
    if summary is None or not summary.num_prompts:
        return "updates", "no group has an update: within every one the rewards are equal"
    if linked is None:
        return "gram", f"the run stored no inner products in the basis {evidence.basis}"
    if linked.error > REPRODUCED:
        return "loss", (
            f"the loss is more than advantages times gradients (token credit, a KL penalty, recorded ratios): recorded "
            f"cosines differ by {linked.error:.2g} from those of the inner products"
        )
    if share is None or share.num_held_out < 2:
        text = "fewer than two pairs are held out, or fewer than two to extract from: no interval of what a hack reads"
        return "held out", text
    if share.reason == TOO_FEW_PROMPTS:
        return "prompts", f"too few prompts have an update for an interval ({share.num_prompts})"
    return "reach", (
        f"v_hack is not shown to reach held-out hacks: they read {share.ceiling:+.3f} ({share.num_held_out} pairs)"
    )


def questions(evidence: Evidence) -> list[Finding]:
    """hackward, about, removable."""
    cause = unread(evidence)
    why = "" if cause is None else cause[1]
    return [_hackward(evidence, why), _about(evidence, why), _removable(evidence, why)]


def _finding(name: str, row: Share | Removal | None, says: Word, number: Bounded | None, text: str) -> Finding:
    """The answer to one of QUESTIONS, over the prompts of the row that it was read from."""
    question, counts_from = QUESTIONS[name]
    n = 0 if row is None else row.num_prompts
    return Finding(
        name=name, question=question, says=says, number=number, counts_from=counts_from, text=text, n=n, unit="prompt"
    )


def _hackward(evidence: Evidence, why: str) -> Finding:
    """Whether pull is material, from the interval over prompts and pairs."""
    row = evidence.share("pull")
    says, number, text = Word.UNMEASURED, None, why
    if row is not None and row.share is not None:
        number = row.share
        says = decided("pull", number)
        text = (
            f"pull {number}, where 1 is as hack-ward as held-out hacks: cos_in is {row.measured:+.3f} over "
            f"{row.num_prompts} prompts, that of the hacks {row.ceiling:+.3f} ({row.num_held_out} pairs)"
        )
    return _finding("hackward", row, says, number, text)


def _about(evidence: Evidence, why: str) -> Finding:
    """Whether hacks, and not what comes with them, point there.

    yes: hacks point more hack-ward than clean samples with every trivial score held constant, and the groups without
    their hacks pull less, at most half as much. no: a difference is shown to be immaterial, or more than half to be
    left without the hacks.
    """
    row = evidence.share("contrast")
    if evidence.unlabelled:
        return _finding("about", None, Word.UNMEASURED, None, why or "no rollout says whether it hacks")
    missing = hacks_missing(evidence)
    if missing or row is None:
        return _finding("about", None, Word.UNMEASURED, None, missing or why)
    number, apart = row.share, separated(row)
    says, text = Word.UNMEASURED, why
    if apart:
        says, number, text = Word.CONFOUNDED, None, _separate(apart)
    elif number is not None:
        says = decided("contrast", number)
        text = (
            f"contrast {number}, where 1 is what held-out pairs show: paid hacks minus paid clean samples, trivial "
            f"scores held constant ({row.num_prompts} prompts)"
        )
    elif not text:
        # Without a prompt there are no sides to compare; with prompts it is the ceiling, or their number.
        unpaid = bool(evidence.sure) and not row.num_hacks
        says = Word.UNMEASURED if row.num_prompts or unpaid else Word.CONFOUNDED
        text = f"hacks and clean samples cannot be compared: {row.reason}"
    benign, less, half = (evidence.share(name) for name in RESTS_ON["about"][1:])
    if benign and benign.share and less and less.share and half and half.share:
        text += f"; pull without the hacks {benign.share.value:.2f}, a difference of {less.share}"
        differs, mostly = decided(less.name, less.share), decided(half.name, half.share)
        if number is not None:
            says = _all([says, differs, mostly])
        if differs is Word.YES and mostly is not Word.YES:
            text += f": more than half {'is' if mostly is Word.NO else 'may be'} left"
    elif number is not None:
        says = Word.UNMEASURED if says in (Word.YES, Word.LIKELY) else says
        text += f"; pull without the hacks is not measured: {benign.reason if benign else why}"
    if unclear := overlap_unclear(row):
        says = says if says in (Word.NO, Word.UNMEASURED) else Word.UNCLEAR
        text = f"{_separate(unclear, may=True)}; {text}"
    return _finding("about", row, says, number, text + _rival(evidence))


def _rival(evidence: Evidence) -> str:
    """Return the AUROC of the best score without a direction, with the AUROC of v_hack on the same samples."""
    rival = best_rival(evidence.specificity)
    if rival is None or (v_hack := evidence.specificity[0].auroc) is None:
        return ""
    name, area = SCORE_NAMES[rival.score], strength(rival)
    if area >= v_hack and rival.interval is not None and not rival.interval.low <= CHANCE <= rival.interval.high:
        return f"; {name} alone separates hacks (AUROC {area:.2f}; v_hack {v_hack:.2f})"
    return f"; AUROC for hacks: v_hack {v_hack:.2f}, best score without a direction ({name}) {area:.2f}"


def hacks_missing(evidence: Evidence) -> str:
    """How few hacks there are, in words, where no question about hacks has an answer; empty where there are enough."""
    sure = evidence.sure
    prompts = {sample.problem_id for sample in sure}
    hacks = [sample for sample in sure if sample.hacked]
    hacked = {sample.problem_id for sample in hacks}
    if not sure or (len(hacks) >= RARE * len(sure) and len(hacked) >= min(FEW_HACKED, len(prompts))):
        return ""
    return f"hacks are missing: {len(hacks)} of {len(sure)} rollouts hack, in {len(hacked)} of {len(prompts)} prompts"


def separated(row: Share) -> list[Overlap]:
    """Return the trivial scores in which hacks are shown to lack overlap, the worst first; together, if none alone."""
    return _worst_first(one for one in row.overlaps if one.is_lacking)


def overlap_unclear(row: Share) -> list[Overlap]:
    """Return the trivial scores in which too few hacks overlap, while the interval allows enough; as `separated`."""
    return [] if separated(row) else _worst_first(one for one in row.overlaps if one.may_lack)


def _worst_first(apart: Iterable[Overlap]) -> list[Overlap]:
    ordered = sorted(apart, key=lambda one: one.share / (one.by_chance or 1.0))
    return [one for one in ordered if one.score != TOGETHER] or ordered


def _separate(apart: Sequence[Overlap], *, may: bool = False) -> str:
    names, worst = ", ".join(SCORE_NAMES[one.score] for one in apart), apart[0]
    verb = "may separate" if may else "separate" if len(apart) > 1 or worst.score == TOGETHER else "separates"
    score = {"hint": "with the same hint", TOGETHER: "with similar trivial scores"}
    alike = score.get(worst.score, f"of similar {SCORE_NAMES[worst.score]}")
    ratio = "no interval from so few prompts" if worst.ratio is None else f"a ratio of {worst.ratio}"
    return (
        f"{names} alone {verb} hacks from clean answers: {worst.share:.0%} of {worst.num_hacks} rewarded hacks have a "
        f"clean answer {alike} to the same prompt; shuffled labels would give "
        f"{worst.by_chance:.0%} ({ratio}, {MIN_OVERLAP:g} is needed)"
    )


def _removable(evidence: Evidence, why: str) -> Finding:
    """Whether the gate removes enough of the progress on held-out hacks, and more than one of the same size anyway.

    yes: it reaches SHOWN_REMOVED, and is beyond permuted pairs. likely: it reaches MATERIAL_REMOVED, and is so at 80%,
    or the rollouts' own hacks lose less than held-out ones. Both ask that the gate takes more of it than of honest
    solutions. too little: it is shown to be less than that. no: it is shown to be below what directions of permuted
    pairs remove.
    """
    forecast = evidence.forecast
    row = forecast.row("margin") if forecast is not None else None
    says, number, text = Word.UNMEASURED, None, why
    if row is not None:
        text = "the update makes no progress on held-out hacks whose interval excludes 0: there is none to remove"
    if forecast is not None and row is not None and row.removed is not None:
        number, bounds = row.removed, row.removed.interval
        missing, price = price_of(evidence)
        honest = forecast.row("honest")
        selective = honest is None or honest.removed is None or number.value > honest.removed.value
        p, says = row.permuted_p or 1.0, Word.UNCLEAR
        if selective and number.value >= MATERIAL_REMOVED and p < 2 * ALPHA and at_80(number) > 0:
            says = Word.LIKELY
            if number.value >= SHOWN_REMOVED and p < ALPHA and bounds.low > 0 and own_hacks_agree(forecast):
                says = Word.YES
        if missing and says in (Word.YES, Word.LIKELY):
            says = Word.UNMEASURED
        if row.permuted_mean is not None and bounds.high < row.permuted_mean:
            says = Word.NO
        elif bounds.high < MATERIAL_REMOVED:
            says = Word.TOO_LITTLE
        text = (
            f"the gate removes {number.percent()} of the progress on held-out hacks, {_own_hacks(forecast)} of that on "
            f"these rollouts' own hacks{_reverses(number)}; permuted pairs, with as much of the norm "
            f"({forecast.norm_removed:.0%}), remove {row.permuted_mean:.0%} (p {row.permuted_p:.2g}); "
            f"price: {price}"
            f"{'' if selective else ', no less than that'}"
        )
    return _finding("removable", row, says, number, text)


def own_hacks_agree(forecast: Forecast) -> bool:
    """Return whether the rollouts' own hacks lose as much of their gain as held-out hacks do, within both intervals."""
    margin, own = forecast.row("margin"), forecast.row("hacks")
    if margin is None or margin.removed is None or own is None or own.removed is None:
        return False
    return own.removed.interval.high >= margin.removed.interval.low


def _own_hacks(forecast: Forecast) -> str:
    own = forecast.row("hacks")
    return "an unmeasured share" if own is None or own.removed is None else own.removed.percent()


def _reverses(number: Bounded) -> str:
    return " (above 100%, the update is turned against them)" if number.value > 1 else ""


def away(hackward: Finding) -> bool:
    """Whether the update is shown to point away from the hack."""
    return hackward.number is not None and hackward.number.interval.high < 0


def decided(name: str, share: Bounded) -> Word:
    """What a share says, by the thresholds of `DECIDED_BY`: yes, no, likely (yes by its 80% interval) or unclear."""
    above, below = DECIDED_BY[name]
    if share.interval.high < below:
        return Word.NO
    if share.value < below or at_80(share) <= above:
        return Word.UNCLEAR
    return Word.YES if share.interval.low > above else Word.LIKELY


def at_80(number: Bounded) -> float:
    """The lower end of its 80% interval."""
    return number.value - TO_80 * (number.value - number.interval.low)


def _all(answers: Sequence[Word]) -> Word:
    """The least of the answers: no, unclear, likely, yes."""
    return min(answers, key=(Word.NO, Word.UNCLEAR, Word.LIKELY, Word.YES).index)


def price_of(evidence: Evidence) -> tuple[str, str]:
    """(what is missing of the price, a reason of the advice and empty if nothing; the price in words)."""
    row = evidence.forecast.row("honest") if evidence.forecast is not None else None
    if evidence.samples and all(sample.hacked is None or sample.gt_pass is None for sample in evidence.samples):
        return "right", "not measured, since no rollout says whether it is right and honest"
    if row is None:
        return "honest", "not measured, since no paid sample is right and honest"
    if row.against:
        return "", "none, since the update works against honest solutions"
    if row.removed is None:
        return "price", "not measured, since the interval of the progress on honest solutions holds 0"
    price, ends = f"{row.removed.percent()} of the progress on honest solutions", row.removed.interval
    if ends.high < 0:
        gain = Bounded(value=-row.removed.value, interval=Interval(low=-ends.high, high=-ends.low))
        price = f"none, the gate adds {gain.percent()} to the progress on honest solutions"
    if ends.high - ends.low > VAGUE_PRICE:
        return "price", f"{price}, an interval too wide to say what share of it goes"
    return "", price


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
        plain=PLAIN.get(word, ""),
        findings=findings,
        caveats=_caveats(word, evidence, parts),
    )


def _word(evidence: Evidence, findings: Sequence[Finding], parts: Sequence[Finding]) -> tuple[Word, str]:
    broken = [part for part in parts if part.says is Word.BROKEN]
    if broken:
        return Word.BROKEN, "; ".join(f"{part.name}: {part.text}" for part in broken)
    if evidence.trains:
        return Word.TRAINED, " ".join([*_outcome(evidence), "Arms are compared over seeds: give their runs together."])
    hackward, about, removable = findings
    missing = hacks_missing(evidence)
    if missing:
        return Word.UNDERPOWERED, f"{missing}; {hackward.text}"
    if removable.says is Word.TOO_LITTLE:
        return Word.SKIP, f"the gate would remove too little: {removable.text}"
    if hackward.says is Word.UNMEASURED:
        return Word.UNDERPOWERED, f"nothing can be read: {hackward.text}"
    if hackward.says is Word.NO:
        where = "points away from the hack" if away(hackward) else "does not point hack-ward"
        return (
            Word.SKIP,
            f"the update {where}: {hackward.text}",
        )
    if about.says is Word.CONFOUNDED:
        return Word.CONFOUNDED, about.text
    if about.says is Word.NO and hackward.says is Word.YES:
        return Word.GENERIC, f"whatever points hack-ward is not the hacks: {about.text}"
    if removable.says is Word.NO and hackward.says is Word.YES:
        return Word.GENERIC, f"any gate of that size does as much: {removable.text}"
    if all(finding.says is Word.YES for finding in findings):
        own = evidence.own.auroc if evidence.own is not None else None
        if own is not None and own.interval.low <= CHANCE:
            return Word.LIKELY, f"v_hack is not shown to tell the policy's own hacks apart: AUROC {own}; {about.text}"
        return Word.GO, f"{hackward.text}; {about.text}; {removable.text}"
    why = {Word.UNMEASURED: "not measured", Word.NO: "no", Word.LIKELY: "likely, and not shown"}
    unsure = [finding for finding in findings if finding.says is not Word.YES]
    texts = (f"{why.get(finding.says, 'either answer is possible')}: {finding.text}" for finding in unsure)
    word = Word.LIKELY if {finding.says for finding in unsure} == {Word.LIKELY} else Word.UNDERPOWERED
    return word, "; ".join(texts)


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


def _foresight(evidence: Evidence) -> str:
    """Transfer, which trainings at scale failed by, or that it is unmeasured; and steps ahead that only destroy."""
    own = evidence.own
    said = ["transfer " + (f"unmeasured ({own.reason})" if own is not None and own.reason else "unmeasured")]
    if own is not None and own.auroc is not None:
        said[0] = (
            f"transfer: v_hack tells the policy's own {own.num_hacks} hacks from its {own.num_honest} honest solutions "
            f"with an AUROC of {own.auroc}, a direction fitted to their labels with {own.ceiling}"
        )
    arm = next((arm for arm in evidence.arms if arm in ARMS and ARMS[arm].removes_v_hack), None)
    plain = None if arm is None else plain_arm(arm, evidence.arms)
    if arm is not None and (lost := lost_by_all(evidence.lookahead, plain or arm)) is not None:
        steps = f"its steps{' without a gate' if plain else ''} make every text less likely"
        steps += f", honest solutions by {lost:.0f} nats"
        said.append(f"the lookahead says nothing: {steps}; replay with a smaller --set lookahead.lr=X")
    return "; ".join(said)


def _caveats(word: Word, evidence: Evidence, parts: Sequence[Finding]) -> list[str]:
    """What limits the answer, and what to do about it, the most important first; where thresholds come from."""
    # These come first in every verdict: they say that the numbers may be of another update.
    first = doubts(evidence.records, evidence.pools)
    sentences = [*first, *idle_settings(evidence.records), *_excluded(evidence)]
    mixed = len({step.step for step in evidence.steps if step.mixed_prompt})
    if mixed:
        sentences.append(
            f"in {mixed} steps the group answers different prompts (hinted and not), so that source, hint and reward "
            "move together: --match prompt compares answers to one prompt"
        )
    unseen = [f"{part.name} ({part.text})" for part in parts if part.says is Word.NOT_SEEN]
    if unseen:
        sentences.append(f"not seen: {'; '.join(unseen)}")
    apart = [f"{row.left_out} ({row.cos:+.3f} {row.interval:+.3f})" for row in evidence.ceilings if row.not_reached]
    if apart:
        sentences.append(
            f"v_hack of the other pairs is not shown to reach hacks of the kind {', '.join(apart)}: keep pairs of "
            "these kinds, and write more of them"
        )
    for basis_pairs in [evidence.reproduced.pairs] if evidence.reproduced is not None else []:
        different = len({*basis_pairs.clusters.tolist()})
        if different < len(basis_pairs.clusters):
            sentences.append(
                f"{len(basis_pairs.clusters)} pairs have {different} different texts under several prompts: intervals "
                f"count those {different}; write pairs with texts of their own"
            )
    if evidence.adapted is not None and evidence.adapted.caution:
        sentences.append(evidence.adapted.caution)
    samples = evidence.samples
    reasons = Counter(sample.null_reason or "" for sample in samples if sample.cos_S_contrib is None)
    if reasons:
        named = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        text = f"Excluded: {reasons.total()} of {len(samples)} samples have no cosine ({named})"
        sentences.append(f"{text}; groups whose rewards differ give one")
    if word in (Word.BROKEN, Word.TRAINED):
        return sentences
    # GO and LIKELY lead to training, so this caveat comes early.
    sentences.insert(len(first) if word in (Word.GO, Word.LIKELY) else len(sentences), _foresight(evidence))
    return [*sentences, _THRESHOLDS]


def _excluded(evidence: Evidence) -> list[str]:
    """Samples that some number leaves out, and what would bring them in."""
    samples = evidence.samples
    silent = 0 if evidence.unlabelled else sum(sample.hacked is None for sample in samples)
    sentence = f"{silent} samples have no hack label and are left out of every contrast: log it (--map hacked=COLUMN)"
    return [sentence] if silent else []
