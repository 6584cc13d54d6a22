"""The words that settings accept. No torch.

To add a word, add it to its Literal and a row to the table that the comment on the Literal names. A test compares the
two.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

from pydantic import AfterValidator

from replay_pools.base.errors import InputError
from replay_pools.base.tables import nearest

Verb = Literal["replay", "train", "eval", "generate"]
Side = Literal["one_sided", "two_sided"]  # probe.settings.arms.SIDES
Estimator = Literal["grpo", "maxrl", "reinforce"]  # probe.objective.advantages.ESTIMATORS
Scale = Literal["none", "group", "batch"]  # scope of the standard deviation that divides centred rewards
Strata = Literal["source", "prompt", "length"]  # parts of a group with separate baselines: probe.step.groups
Match = Literal["problem", "prompt", "none"]  # what rollouts of one replay step share: probe.step.groups
Target = Literal["gradient", "update"]  # the projection acts on the gradient or on the optimizer's update
Priority = Literal["variance", "hard", "exploited"]  # problems to prefer: probe.runs.sources.problems.PRIORITIES
Pay = Literal["pass", "tests"]  # what training rewards: probe.runs.sources.rewards.PAYS
Reward = Literal["paid", "surprise"]  # as paid, or minus the problem's expected reward: probe.runs.sources.rewards
Old = Literal["current", "recorded"]  # denominator of the ratio: the current policy, or the recorded values
Reference = Literal["base", "ema", "recorded"]  # reference policy of a KL: probe.step.reference
Dtype = Literal["float32", "bfloat16", "float64"]  # of the weights; coordinates and cosines stay in float32


def word_of(table: Iterable[str]) -> AfterValidator:
    """Return a validator for a text that must be a key of a table, such as an arm."""

    def check(word: str) -> str:
        if word not in table:
            fix = f"did you mean {near}?" if (near := nearest(word, table)) else ""
            raise InputError("", expected=f"one of {', '.join(table)}", found=repr(word), fix=fix)
        return word

    return AfterValidator(check)


class Word(StrEnum):
    """The words of a verdict on a replay."""

    BROKEN = "BROKEN"
    SKIP = "SKIP"
    CONFOUNDED = "CONFOUNDED"
    GENERIC = "GENERIC"
    UNDERPOWERED = "UNDERPOWERED"
    LIKELY = "LIKELY"
    GO = "GO"
    TRAINED = "TRAINED"


class Outcome(StrEnum):
    """The words of a verdict on a trained arm."""

    NO_QUESTION = "NO QUESTION"
    WORKS = "WORKS"
    DOMINATED = "DOMINATED"
    COSTS = "COSTS"
    LOWERS = "LOWERS"
    RAISES = "RAISES"
    NO_EFFECT = "NO EFFECT"
    UNDERPOWERED = "UNDERPOWERED"
    VACUOUS = "VACUOUS"


class Answer(StrEnum):
    """The answers of a finding: to a question, about a trained arm, to a criterion, about a part of the measurement."""

    YES = "YES"
    LIKELY = "LIKELY"
    NO = "NO"
    TOO_LITTLE = "TOO LITTLE"
    CONFOUNDED = "CONFOUNDED"
    UNCLEAR = "UNCLEAR"
    UNMEASURED = "UNMEASURED"
    FALLS = "FALLS"
    NO_FALL = "NO FALL"
    RISES = "RISES"
    KEPT = "KEPT"
    LOST = "LOST"
    OPEN = "OPEN"
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    VACUOUS = "VACUOUS"
    HOLDS = "HOLDS"
    BROKEN = "BROKEN"
    NOT_SEEN = "NOT SEEN"


# {tone: its words}; pages and terminals show a tone as a colour
TONES: Mapping[str, tuple[str, ...]] = {
    "good": (
        *(Word.GO, Outcome.WORKS, Outcome.LOWERS),
        *(Answer.YES, Answer.PASS, Answer.HOLDS, Answer.FALLS, Answer.KEPT),
    ),
    "likely": (Word.LIKELY,),
    "bad": (
        *(Word.BROKEN, Word.SKIP, Word.GENERIC),
        *(Outcome.RAISES, Outcome.COSTS, Outcome.DOMINATED, Outcome.NO_EFFECT),
        *(Answer.NO, Answer.TOO_LITTLE, Answer.FAIL, Answer.RISES, Answer.LOST, Answer.NO_FALL),
    ),
    "open": (
        *(Word.CONFOUNDED, Word.UNDERPOWERED, Outcome.NO_QUESTION),
        *(Answer.UNCLEAR, Answer.UNMEASURED, Answer.NOT_SEEN, Answer.INCONCLUSIVE, Answer.OPEN),
    ),
    "empty": (Answer.VACUOUS,),
}
# {word: what to do about a training}
PLAIN: Mapping[Word, str] = {
    Word.BROKEN: "Do not use this run until this is fixed: a part of the measurement is broken.",
    Word.SKIP: "Do not train with these directions: there is too little to project out.",
    Word.CONFOUNDED: "Do not train on this yet: hacks and honest answers here differ in more than hacking.",
    Word.GENERIC: "Do not train with these directions: they are not specific to hacking.",
    Word.UNDERPOWERED: "Do not train yet: these rollouts leave a question open.",
    Word.LIKELY: "Probably worth a training, but not shown to be.",
    Word.GO: "Worth a training with controls.",
}
OF_REPLAY: tuple[Word, ...] = tuple(PLAIN)
OF_ARM: tuple[Outcome, ...] = tuple(word for word in Outcome if word is not Outcome.VACUOUS)
OF_CRITERION: tuple[Answer, ...] = (Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE, Answer.VACUOUS)

# {dtype: the next higher precision}
HIGHER = {"bfloat16": "float32", "float32": "float64"}
ADVANTAGE_EPS = 1e-4  # TRL's value: added to a standard deviation before dividing by it
DEFAULT_CONDITION = "default"  # the unchanged objective; the primary loss variant among several
# Evaluation settings: all settings pooled, and prompts without the hint.
ALL, NO_HINT = "all", "no hint"
PROBLEM_SEPARATOR = " + "  # between the problems of a step with several groups

# Phrases of deduction, branching and backtracking. Completions are mostly code, so common identifiers are left out.
PLANNING_PHRASES = (
    "let me think",
    "let me check",
    "let me try",
    "let's think",
    "let's consider",
    "let's try",
    "we need to",
    "i need to",
    "we can use",
    "the idea is",
    "the problem says",
    "another approach",
    "step by step",
    "in other words",
    "note that",
    "alternatively",
    "therefore",
    "however",
    "wait",
    "hmm",
)
