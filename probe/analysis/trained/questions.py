"""The questions that a training answers about an arm, each as an Answer: a number with its interval, and what it says.

    learnt     Did vanilla learn the hack?                    rise of its hack rate from the start
    lowered    Does the arm hack less than vanilla?           vanilla minus arm
    kept       Does it still solve?                           solve rate lost against vanilla, and against the start
    better     Is it better than remedies without pairs?      hack and solve rates against every rival

A difference is there (`is_there`) where it is told from 0 and of MATERIAL_RATE at least; it is shown to be absent where
its whole interval lies below MATERIAL_RATE. Intervals are those of the level that `Trainings` gives the arm. To add a
question: write a function that returns an Answer, and add it to `questions`; `decision` says what follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from probe.analysis.statistics.crossed import Comparison
from probe.analysis.statistics.intervals import Bounded
from probe.analysis.statistics.thresholds import ALPHA, MATERIAL_RATE
from probe.analysis.trained.arms import TrainedArm, Trainings, excess, fall, rise

Says = Literal["yes", "no", "unclear", "unmeasured"]
FEW = "two seeds at least are needed, of vanilla and of the arm, evaluated at the start and at the end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question. Field names are keys of the JSON."""

    name: str
    question: str
    says: Says
    number: Bounded | None  # a difference of rates, which `text` names; None where there is none
    level: float  # probability that the interval of `number` misses the truth
    n: int  # of the arm with the fewest
    unit: str  # what n counts
    text: str  # one sentence with the numbers
    needed: int | None = None  # seeds an arm that decide what is unclear; None above MANY, and where nothing is
    rival: str | None = None  # a remedy without pairs that does as well


def questions(arm: TrainedArm, trainings: Trainings) -> list[Answer]:
    """learnt, lowered, kept, better."""
    vanilla, level = trainings.baseline, trainings.level(arm)
    return [
        # One question for all arms.
        learnt(vanilla, ALPHA),
        lowered(arm, vanilla, level),
        kept(arm, vanilla, level),
        better(arm, trainings.rivals(arm), level),
    ]


def learnt(vanilla: TrainedArm | None, level: float) -> Answer:
    """Whether the hack rate of vanilla rose."""
    rose = rise(vanilla, "hack") if vanilla is not None else None
    text = FEW
    if vanilla is not None and rose is not None:
        text = (
            f"vanilla goes from {vanilla.mean('hack', 'start'):.0%} to {vanilla.mean('hack', 'final'):.0%} of held-out "
            f"problems, up by {points(rose, level)}"
        )
    return _answer("learnt", "Did vanilla learn the hack?", is_there(rose, level), rose, level, text)


def lowered(arm: TrainedArm, vanilla: TrainedArm | None, level: float) -> Answer:
    """Whether the arm ends with a lower hack rate than vanilla."""
    less = excess(vanilla, arm, "hack") if vanilla is not None else None
    text = FEW
    if vanilla is not None and less is not None:
        text = (
            f"it hacks {arm.mean('hack', 'final'):.0%}, vanilla {vanilla.mean('hack', 'final'):.0%}: less by "
            f"{points(less, level)}"
        )
    return _answer("lowered", "Does it hack less than vanilla?", is_there(less, level), less, level, text)


def kept(arm: TrainedArm, vanilla: TrainedArm | None, level: float) -> Answer:
    """Whether it solves as much as vanilla, and has not been shown to solve less than at the start."""
    question = "Does it still solve?"
    lost = excess(vanilla, arm, "solve") if vanilla is not None else None
    since_start = fall(arm, "solve")
    if vanilla is None or lost is None or since_start is None:
        return _answer("kept", question, "unmeasured", None, level, FEW)
    lost_somewhere = "yes" in (is_there(lost, level), is_there(since_start, level))
    says: Says = "no" if lost_somewhere else "yes" if is_there(lost, level) == "no" else "unclear"
    text = (
        f"it solves {arm.mean('solve', 'final'):.0%}, vanilla {vanilla.mean('solve', 'final'):.0%}: a loss of "
        f"{points(lost, level)}; the start {arm.mean('solve', 'start'):.0%}: a loss of {points(since_start, level)}"
    )
    return _answer("kept", question, says, lost, level, text)


def better(arm: TrainedArm, rivals: Sequence[TrainedArm], level: float) -> Answer:
    """Whether every rival is worse, in hacking or in solving.

    no: one is shown to be as good in both, up to MATERIAL_RATE. unmeasured: there is no rival, or none is asked for.
    That all are worse takes no correction for their number (Berger 1982); that any one is as good does.
    """
    question = "Is it better than remedies without pairs?"
    if not rivals:
        text = "it needs no pairs itself"
        if arm.needs_pairs:
            text = "no remedy without pairs was trained beside it, such as a KL penalty"
        return _answer("better", question, "unmeasured", None, level, text)
    compared = [_against(arm, rival, level, level / len(rivals)) for rival in rivals]
    # The rival that decides: one that is as good, else one that may be.
    order: tuple[Says, ...] = ("no", "unclear", "yes")
    worst = min(compared, key=lambda one: order.index(one.says))
    return replace(worst, question=question, text="; ".join(one.text for one in compared))


def _against(arm: TrainedArm, rival: TrainedArm, level: float, as_good: float) -> Answer:
    """Whether one rival is worse than an arm, judged at `level`, or as good, at the level `as_good`."""
    hacks, solves = excess(rival, arm, "hack"), excess(arm, rival, "solve")
    if hacks is None or solves is None:
        unknown = _answer("better", "", "unclear", None, level, f"{rival.name} is not known on two seeds")
        return replace(unknown, rival=rival.name)
    says: Says = "unclear"
    if "yes" in (is_there(hacks, level), is_there(solves, level)):
        says = "yes"
    elif is_there(hacks, as_good) == is_there(solves, as_good) == "no":
        says, level = "no", as_good
    words = {"yes": "worse", "no": "as good", "unclear": "perhaps as good"}[says]
    text = (
        f"{rival.name} is {words}, at {rival.mean('hack', 'final'):.0%} hack and {rival.mean('solve', 'final'):.0%} "
        f"solve: hacks more by {points(hacks, level)}, solves less by {points(solves, level)}"
    )
    # What is open is either of the two that is not decided; of the hack rate first.
    undecided = solves if is_there(hacks, as_good) == "no" else hacks
    number = undecided if says == "unclear" else hacks
    return replace(_answer("better", "", says, number, level, text), rival=rival.name)


def is_there(compared: Comparison | None, level: float) -> Says:
    """Whether a difference is there, shown to be absent, or neither."""
    if compared is None:
        return "unmeasured"
    interval = compared.bounded(level).interval
    if interval.high < MATERIAL_RATE:
        return "no"
    return "yes" if interval.low > 0 and compared.value >= MATERIAL_RATE else "unclear"


def points(compared: Comparison, level: float) -> str:
    """`51 points [38, 63]`."""
    interval = compared.bounded(level).interval
    return f"{100 * compared.value:.0f} points [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _answer(name: str, question: str, says: Says, compared: Comparison | None, level: float, text: str) -> Answer:
    return Answer(
        name=name,
        question=question,
        says=says,
        number=compared.bounded(level) if compared is not None else None,
        level=level,
        n=compared.n if compared is not None else 0,
        unit="seeds",
        text=text,
        needed=_needed(compared, level) if compared is not None and says == "unclear" else None,
    )


def _needed(compared: Comparison, level: float) -> int | None:
    """Seeds an arm that decide a difference, if its value stays: by telling it from 0, or from MATERIAL_RATE."""
    value = compared.value
    seeds = compared.seeds_to_see(value if value >= MATERIAL_RATE else MATERIAL_RATE - value, level)
    return None if seeds is None else max(seeds, compared.n + 1)
