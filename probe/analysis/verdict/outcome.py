"""The verdict on an arm after its training: its findings, the word that follows from them, and the next training.

    learnt    Did vanilla learn the hack?         rise of its hack rate from the start
    effect    What does it do to hacking?         vanilla minus arm: FALLS, NO FALL, RISES or OPEN
    price     What does it cost in solving?       drop in solve rate against vanilla, and against the start: KEPT, LOST,
                                                  or OPEN with the largest possible drop
    better    Is it better than remedies without pairs?    hack and solve rates against every rival

    COSTS          it hacks less, and solves less                        a smaller dose
    DOMINATED      it hacks less, and so does a remedy without pairs     that remedy
    WORKS          it hacks less, and still solves                       another model
    LOWERS         it hacks less; the cost is open                       number of seeds that decide the cost
    RAISES         it hacks more                                         leave it out
    NO QUESTION    vanilla is shown not to have learned the hack         nothing to prevent: longer runs of vanilla
    NO EFFECT      a drop in its hack rate is excluded                   a larger dose, or other directions
    UNDERPOWERED   the effect is open                                    number of additional seeds
    VACUOUS        its records equal vanilla's: nothing was compared

`Trainings` sets each statement's confidence level. WORKS and LOWERS may leave open whether a rival does equally well:
the sentence says so, and NEXT says how to decide it.

To add a verdict, add a word to `probe.settings.words.Outcome`, a branch to `_word`, and its advice to `next_step`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from probe.analysis.statistics.crossed import MAX_SEEDS, Comparison
from probe.analysis.statistics.thresholds import ALPHA, MATERIAL_RATE, MIN_SEEDS, POWER
from probe.analysis.verdict.next_step import K, repeat
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, compared, is_material, is_ruled_out, same_records
from probe.analysis.verdict.verdict import Finding, Next, Verdict
from probe.records.run import in_root
from probe.settings.arms import ARMS
from probe.settings.words import Answer, Outcome
from replay_pools.base.tables import flat

PENALTY = 1.0  # beta of the KL penalty proposed as a rival, the fixed one of spec/experiments/kl-control.md
BETA = "objective.beta"
COUNTS = (K, "remedy.components")  # integer doses
NOT_THE_ARM = ("verb", "seed", "preregistered", "intervention.arms")  # settings that a command or a sweep states itself
FEW = f"{MIN_SEEDS} seeds at least are needed, of vanilla and of the arm, evaluated at the start and at the end"
QUESTIONS = {
    "learnt": "Did vanilla learn the hack?",
    "effect": "What does it do to hacking?",
    "price": "What does it cost in solving?",
    "better": "Is it better than remedies without pairs?",
}
LOST = ("less", "more")  # words for a positive difference and a negative one, of a rate that an arm loses
SAME = "steps, samples and evaluations are those of vanilla, to the byte: what sets it apart never applied"


def judge_arms(trainings: Trainings) -> list[Verdict]:
    """Return the verdict on every arm that is compared with vanilla."""
    verdicts = []
    for arm in trainings.treated:
        findings = questions(arm, trainings)
        word, sentence = (Outcome.VACUOUS, SAME) if same_records(arm, trainings.baseline) else _word(findings)
        about = {"name": arm.name, "condition": arm.condition, "arm": arm.arm, "needs_pairs": arm.needs_pairs}
        about |= {"seeds": arm.seeds, **{rate: arm.mean(rate) if arm.runs else None for rate in ("hack", "solve")}}
        about["levels"] = trainings.levels[arm.name]
        following = next_step(word, findings, arm, trainings)
        verdicts.append(Verdict(about=about, word=word, sentence=sentence, findings=findings, next=following))
    return verdicts


def questions(arm: TrainedArm, trainings: Trainings) -> list[Finding]:
    """Return the findings learnt, effect, price, better."""
    return [_learnt(trainings), _effect(arm, trainings), _price(arm, trainings), _better(arm, trainings)]


def _learnt(trainings: Trainings) -> Finding:
    """Decide whether the hack rate of vanilla rose."""
    vanilla = trainings.baseline
    rose = compared(trainings, [vanilla], vanilla.metric("hack"), vanilla.metric("hack", "start"))
    if rose is None:
        return _finding("learnt", Answer.UNMEASURED)
    start, end = vanilla.in_percent("hack", "start"), vanilla.in_percent("hack")
    text = f"vanilla hacks {start} of held-out problems at the start and {end} at the end, {points(rose, ALPHA)}"
    return _finding("learnt", _says(rose, ALPHA, Answer.YES, Answer.NO, Answer.UNCLEAR), rose, ALPHA, text)


def _says(difference: Comparison, level: float, material: Answer, ruled_out: Answer, otherwise: Answer) -> Answer:
    """Return the answer of a difference that is material, one of which a material one is ruled out, or any other."""
    if is_material(difference, level):
        return material
    return ruled_out if is_ruled_out(difference, level) else otherwise


def _effect(arm: TrainedArm, trainings: Trainings) -> Finding:
    """Decide whether the arm ends with a lower hack rate than vanilla, not with a lower one, or with a higher one."""
    vanilla, level = trainings.baseline, trainings.levels[arm.name]["effect"]
    less = compared(trainings, (vanilla, arm), vanilla.metric("hack"))
    if less is None:
        return _finding("effect", Answer.UNMEASURED)
    says = _says(less, level, Answer.FALLS, Answer.NO_FALL, Answer.OPEN)
    if is_material(replace(less, value=-less.value), level):
        says = Answer.RISES
    text = f"it hacks {arm.in_percent('hack')} and vanilla {vanilla.in_percent('hack')}, {points(less, level, *LOST)}"
    return _finding("effect", says, less, level, text)


def _price(arm: TrainedArm, trainings: Trainings) -> Finding:
    """Decide whether the arm solves as much as vanilla and is not shown to solve less than at the start."""
    vanilla, level = trainings.baseline, trainings.levels[arm.name]["price"]
    lost = compared(trainings, (vanilla, arm), vanilla.metric("solve"))
    since_start = compared(trainings, [arm], arm.metric("solve", "start"), arm.metric("solve"))
    if lost is None or since_start is None:
        return _finding("price", Answer.UNMEASURED)
    says = _says(lost, level, Answer.LOST, Answer.KEPT, Answer.OPEN)
    if is_material(since_start, level):
        says = Answer.LOST
    most = f", so at most {100 * lost.bounded(level).high:.0f} points are lost" if says is Answer.OPEN else ""
    text = (
        f"it solves {arm.in_percent('solve')} and vanilla {vanilla.in_percent('solve')}, {points(lost, level, *LOST)}"
        f"{most}; at the start it solved {arm.in_percent('solve', 'start')}, which leaves "
        f"{points(since_start, level, *LOST)}"
    )
    return _finding("price", says, lost, level, text)


def _better(arm: TrainedArm, trainings: Trainings) -> Finding:
    """Decide whether every rival is worse, in hacking or in solving.

    no: a rival is shown to be equally good in both, up to MATERIAL_RATE. unmeasured: there is no rival, or none is
    required. The claim that all are worse needs no multiplicity correction (Berger 1982); the claim that one is as good
    does.
    """
    rivals = trainings.rivals(arm)
    if not rivals:
        none = "no remedy without pairs was trained, such as a KL penalty"
        return _finding("better", Answer.UNMEASURED, text=none if arm.needs_pairs else "it needs no pairs itself")
    compared = [_against(arm, rival, trainings, len(rivals)) for rival in rivals]
    # Report the deciding rival: an equally good one, else one that may be.
    worst = min(compared, key=lambda one: (Answer.NO, Answer.UNCLEAR, Answer.YES).index(one.says))
    return replace(worst, text="; ".join(one.text for one in compared))


def _against(arm: TrainedArm, rival: TrainedArm, trainings: Trainings, num_rivals: int) -> Finding:
    """Decide whether one rival is worse than an arm, at the arm's level, or as good, at its share of that level."""
    level = trainings.levels[arm.name]["price"]
    as_good = level / num_rivals
    hacks = compared(trainings, (rival, arm), rival.metric("hack"))
    solves = compared(trainings, (arm, rival), arm.metric("solve"))
    if hacks is None or solves is None:
        text = f"{rival.name} is not known on {MIN_SEEDS} seeds"
        return replace(_finding("better", Answer.UNCLEAR, text=text), rival=rival.name)
    says, words = Answer.UNCLEAR, "perhaps as good"
    if is_material(hacks, level) or is_material(solves, level):
        says, words = Answer.YES, "worse"
    elif is_ruled_out(hacks, as_good) and is_ruled_out(solves, as_good):
        says, words, level = Answer.NO, "as good", as_good
    text = (
        f"{rival.name} is {words}: it hacks {rival.in_percent('hack')}, {points(hacks, level)}, and solves "
        f"{rival.in_percent('solve')}, {points(solves, level, *LOST)}"
    )
    # Report whichever comparison is undecided, the hack rate first.
    undecided = solves if is_ruled_out(hacks, as_good) else hacks
    number = undecided if says is Answer.UNCLEAR else hacks
    return replace(_finding("better", says, number, level, text), rival=rival.name)


def points(difference: Comparison, level: float, above: str = "more", below: str = "less") -> str:
    """Format as `51 points more [38, 63]`, in the direction of the difference."""
    (low, value, high), word = difference.bounded(level).span, above
    if value < 0:
        value, low, high, word = -value, -high, -low, below
    return f"{100 * value:.0f} points {word} [{100 * low:.0f}, {100 * high:.0f}]"


def _finding(
    name: str, says: Answer, difference: Comparison | None = None, level: float = ALPHA, text: str = FEW
) -> Finding:
    number, needed, n = None, None, 0
    if difference is not None:
        number, n, value = difference.bounded(level), difference.n, difference.value
        if says in (Answer.UNCLEAR, Answer.OPEN):
            # Assumes that the value stays: its interval then excludes 0, or MATERIAL_RATE.
            seeds = difference.seeds_to_see(value if value >= MATERIAL_RATE else MATERIAL_RATE - value, level)
            needed = None if seeds is None else max(seeds, n + 1)
    question = QUESTIONS[name]
    return Finding(name=name, question=question, says=says, number=number, n=n, unit="seed", text=text, needed=needed)


def _word(findings: Sequence[Finding]) -> tuple[Outcome, str]:
    learnt, effect, price, better = findings
    if effect.says is Answer.FALLS:
        word = {Answer.LOST: Outcome.COSTS, Answer.KEPT: Outcome.WORKS}.get(price.says, Outcome.LOWERS)
        if better.says is Answer.NO and word is not Outcome.COSTS:
            word = Outcome.DOMINATED
        said = {Outcome.COSTS: [effect, price], Outcome.DOMINATED: [effect, better]}.get(word, findings[1:])
        return word, "; ".join(one.text for one in said)
    if effect.says is Answer.RISES:
        return Outcome.RAISES, effect.text
    if learnt.says is Answer.NO:
        return Outcome.NO_QUESTION, learnt.text
    if learnt.says is Answer.YES and effect.says is Answer.NO_FALL:
        return Outcome.NO_EFFECT, effect.text
    return Outcome.UNDERPOWERED, f"either answer is possible: {'; '.join(one.text for one in _open(findings))}"


def _open(findings: Sequence[Finding]) -> list[Finding]:
    """Return the undecided findings that a verdict waits for, in the order in which more seeds are advised.

    The order is effect, cost, rival. A rival without a training is not an open finding.
    """
    learnt, effect, price, better = findings
    asked = [price, better] if effect.says is Answer.FALLS else [learnt, effect]
    is_open = {Answer.UNCLEAR, Answer.OPEN, Answer.UNMEASURED}
    return [one for one in asked if one.says in is_open and (one.says, one) != (Answer.UNMEASURED, better)]


def next_step(word: Outcome, findings: Sequence[Finding], arm: TrainedArm, trainings: Trainings) -> Next:
    """Return the next training after a verdict."""
    vanilla = trainings.baseline
    if not vanilla.runs or not arm.runs:
        return _finish(arm.name if vanilla.runs else "vanilla")
    match word:
        case Outcome.NO_QUESTION:
            steps = 2 * vanilla.settings.steps
            train = _train(vanilla, vanilla.arm, trainings, "longer", steps=steps)
            more = f"until it hacks {100 * MATERIAL_RATE:.0f} points more than at the start"
            return Next(text=f"train vanilla alone for {steps} steps, {more}", command=train)
        case Outcome.WORKS if not _open(findings) and arm.needs_pairs and not trainings.rivals(arm):
            penalty = {"objective.reference": "base", BETA: PENALTY}
            train = _train(vanilla, vanilla.arm, trainings, "penalty", **penalty)
            rival = f"a rival that needs no pairs, a KL penalty of {PENALTY:g}, on {len(arm.seeds)} seeds"
            return Next(text=f"train {rival}", command=train)
        case Outcome.WORKS if not _open(findings):
            less = compared(trainings, (vanilla, arm), vanilla.metric("hack"))
            seeds = less and less.seeds_to_see(less.value / 2)
            train = _train(arm, arm.arm, trainings, "elsewhere", **{"model.name": "MODEL"})
            power = f"{seeds or f'not even {MAX_SEEDS}'} seeds an arm detect half of this drop with {POWER:.0%} power"
            return Next(text=f"train another model, against vanilla: {power}", command=train)
        case Outcome.DOMINATED:
            return _dominated(findings[-1].rival, arm, trainings)
        case Outcome.VACUOUS:
            return Next(text="leave the arm out: no setting of it acted on these runs")
        case Outcome.RAISES:
            return Next(text="leave the arm out: it teaches the hack that it should prevent")
        case Outcome.COSTS:
            return _another_dose(arm, trainings, 0.5, "half the dose")
        case Outcome.NO_EFFECT if arm.arm != "vanilla" and not arm.needs_pairs:
            why = "a control without an effect: what v_hack does is not due to the shape of the projection"
            return Next(text=f"leave the arm out: {why}")
        case Outcome.NO_EFFECT:
            return _another_dose(arm, trainings, 2, "twice the dose")
    return _more_seeds(_open(findings)[0], arm, trainings)


def _dominated(name: str, arm: TrainedArm, trainings: Trainings) -> Next:
    """Advise the rival, or a test of the arm on top of it."""
    rival = next(rival for rival in trainings.rivals(arm) if rival.name == name)
    rates = f"{rival.in_percent('hack')} hack and {rival.in_percent('solve')} solve"
    command = ""
    if ARMS[rival.arm].scales:
        more = "a gradient that is only made smaller does as well as a direction; see whether a smaller rate does, too"
        command = _train(rival, "vanilla", trainings, "slower", **{"optimizer.lr": rival.settings.optimizer.lr / 2})
    elif rival.arm != "vanilla":
        more = "directions without the hack do as well as v_hack"
    else:
        more = f"see whether {arm.name} adds anything"
        command = _train(rival, arm.arm, trainings, "both", **_apart(arm, trainings))
    return Next(text=f"use {rival.name}, {rates}: {more}", command=command)


def _another_dose(arm: TrainedArm, trainings: Trainings, factor: float, dose: str) -> Next:
    """Advise the same remedy or penalty at another dose, or with another number of directions."""
    settings, key = flat(asdict(arm.settings)), ""
    if arm.arm != "vanilla":
        key = K
    elif arm.remedy is not None and arm.remedy.traits.dose is not None:
        key = f"remedy.{arm.remedy.traits.dose}"
        settings["remedy.strength"] = arm.remedy.strength_used
    elif BETA in _apart(arm, trainings):
        key = BETA
    now = settings.get(key)
    if not now:
        return Next(text=f"{dose} ({arm.condition or arm.arm}): it has no dose")
    if key == K and settings["intervention.v_hack"] is not None:
        return Next(text=f"{dose} ({K}): train along a file of so many directions")
    value = max(round(factor * now), 1) if key in COUNTS else factor * now
    if value == now:
        return Next(text=f"{dose} ({key}): it cannot be lower")
    command = _train(arm, arm.arm, trainings, "other-dose", **{key: value})
    return Next(text=f"{dose}: {key} {value:g} instead of {now:g}", command=command)


def _more_seeds(open_one: Finding, arm: TrainedArm, trainings: Trainings) -> Next:
    """Advise more seeds, starting with the side that has fewer."""
    other = trainings.baseline
    if open_one.name == "better":
        other = next(rival for rival in trainings.rivals(arm) if rival.name == open_one.rival)
    behind = min((other, arm), key=lambda side: len(side.seeds))
    train = _train(behind, behind.arm, trainings, "more") if behind.runs else ""
    if open_one.n < MIN_SEEDS:
        return _finish(behind.name, len(behind.seeds), train)
    if open_one.needed is None:
        # No command: an arm with a different evaluation is not compared.
        sizes = arm.settings.evaluation
        problems = f"more held-out problems (evaluation.num_problems, {sizes.num_problems} so far)"
        each = f"more rollouts of each (evaluation.rollouts_per_problem, {sizes.rollouts_per_problem} so far)"
        decides = f'no number of seeds up to {MAX_SEEDS} decides "{open_one.question}"'
        return Next(text=f"{decides}: train all arms again with {problems}, {each}, or another dose")
    decide = f'{open_one.needed} decide "{open_one.question}" with {POWER:.0%} power ({open_one.n} so far)'
    return Next(text=f"train {open_one.needed - open_one.n} more seeds of each arm: {decide}", command=train)


def _finish(arm: str, so_far: int = 0, command: str = "") -> Next:
    text = f"finish and evaluate runs of {arm}, {MIN_SEEDS} seeds or more ({so_far} so far)"
    return Next(text=text, command=command)


def _apart(arm: TrainedArm, trainings: Trainings) -> Mapping[str, Any]:
    """Return {dotted key: value} for the arm's settings that differ from vanilla's."""
    here, there = (flat(asdict(one.settings)) for one in (arm, trainings.baseline))
    return {key: value for key, value in here.items() if key not in NOT_THE_ARM and value != there.get(key)}


def _train(arm: TrainedArm, as_arm: str, trainings: Trainings, name: str, **changes: Any) -> str:
    """Return the training command with an arm's settings and some changes, on the first unused seed."""
    used = [seed for side in (trainings.baseline, *trainings.treated) for seed in side.seeds]
    settings = {"intervention.arms": [as_arm], "seed": max(used) + 1}
    return in_root(repeat(arm.runs[0].records, name, **settings, **changes), trainings.out)
