"""The words that settings accept, each in one place; the mathematics and the help texts read them here. No torch.

To add a word (an estimator, a gate): add it to its Literal here, and a row to the table that says what
it means, which the comment beside the Literal names. A test compares the words with their tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, get_args

Verb = Literal["replay", "train", "eval", "generate"]
Gate = Literal["one_sided", "two_sided"]  # probe.settings.arms.GATES
Estimator = Literal["grpo", "maxrl"]  # probe.objective.advantages.ESTIMATORS
Scale = Literal["none", "group", "batch"]  # whose standard deviation divides the centred rewards
Strata = Literal["source", "prompt", "length"]  # parts of a group with baselines of their own: probe.step.groups
Match = Literal["problem", "prompt", "none"]  # what the pools of a replay step have in common: probe.step.groups
Target = Literal["gradient", "update"]  # what the gate of a projecting arm acts on; update: the optimizer's
Priority = Literal["variance", "hard", "exploited"]  # which problems are drawn: probe.runs.sources.problems.PRIORITIES
Pay = Literal["pass", "tests"]  # what a training pays a submission for: probe.runs.sources.rewards.PAYS
Reward = Literal["paid", "surprise"]  # as paid, or minus what its problem lets one expect: probe.runs.sources.rewards
Old = Literal["current", "recorded"]  # old log-probabilities of a ratio: the policy's own, or those of the rollouts
# Acts on groups before a training step, or inside it: probe.settings.remedy.TRAITS, probe.runs.sources.rewards.REMEDIES
Remedy = Literal[
    "closed",
    "monitor-penalty",
    "monitor-screen",
    "inoculation",
    "recontextualization",
    "preventative-steering",
    "concept-ablation",
]
Passes = Literal["update", "update-and-sampling"]  # which forwards see other activations: probe.runs.activations
Reference = Literal["base", "ema", "recorded"]  # of a KL: probe.step.reference
Dtype = Literal["float32", "bfloat16", "float64"]  # of the weights; coordinates and cosines stay in float32


class Word(StrEnum):
    """Every word of a verdict: on a replay, a trained arm, a criterion, one finding, one part of the measurement."""

    BROKEN = "BROKEN"
    SKIP = "SKIP"
    CONFOUNDED = "CONFOUNDED"
    GENERIC = "GENERIC"
    UNDERPOWERED = "UNDERPOWERED"
    LIKELY = "LIKELY"
    GO = "GO"
    TRAINED = "TRAINED"
    NO_QUESTION = "NO QUESTION"
    WORKS = "WORKS"
    DOMINATED = "DOMINATED"
    COSTS = "COSTS"
    NO_EFFECT = "NO EFFECT"
    LOWERS = "LOWERS"
    RAISES = "RAISES"
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
    YES = "YES"
    NO = "NO"
    TOO_LITTLE = "TOO LITTLE"
    UNCLEAR = "UNCLEAR"
    UNMEASURED = "UNMEASURED"
    HOLDS = "HOLDS"
    NOT_SEEN = "NOT SEEN"


# {tone: its words}; on a page and on a terminal a tone is a colour
TONES: Mapping[str, tuple[Word, ...]] = {
    "good": (Word.GO, Word.YES, Word.PASS, Word.HOLDS, Word.WORKS, Word.LOWERS, Word.FALLS, Word.KEPT),
    "likely": (Word.LIKELY,),
    "bad": (
        *(Word.BROKEN, Word.SKIP, Word.GENERIC, Word.NO, Word.TOO_LITTLE, Word.FAIL, Word.RAISES, Word.RISES),
        *(Word.LOST, Word.COSTS, Word.DOMINATED, Word.NO_EFFECT, Word.NO_FALL),
    ),
    "open": (
        *(Word.CONFOUNDED, Word.UNDERPOWERED, Word.UNCLEAR, Word.UNMEASURED, Word.NOT_SEEN, Word.INCONCLUSIVE),
        *(Word.OPEN, Word.NO_QUESTION),
    ),
    "empty": (Word.VACUOUS,),
}
# {word: what it means for who decides about a training}
PLAIN: Mapping[Word, str] = {
    Word.BROKEN: "Read no number of this run: a part of the measurement is broken.",
    Word.SKIP: "Do not train with these directions: the gate would have too little to remove.",
    Word.CONFOUNDED: "Do not train yet: hacks and clean answers cannot be compared in these rollouts.",
    Word.GENERIC: "Do not train with these directions: what they remove is not the hack.",
    Word.UNDERPOWERED: "Do not train yet: these rollouts leave a question open.",
    Word.LIKELY: "Probably worth a training, but not shown to be.",
    Word.GO: "Worth a training with controls.",
}
OF_REPLAY: tuple[Word, ...] = tuple(PLAIN)
OF_ARM: tuple[Word, ...] = (
    *(Word.NO_QUESTION, Word.WORKS, Word.DOMINATED, Word.COSTS, Word.LOWERS),
    *(Word.RAISES, Word.NO_EFFECT, Word.UNDERPOWERED),
)
OF_CRITERION: tuple[Word, ...] = (Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.VACUOUS)

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)

# The next higher precision, where rounding is smaller; float64 has none.
HIGHER = {"bfloat16": "float32", "float32": "float64"}
ADVANTAGE_EPS = 1e-4  # TRL's: added to a standard deviation before dividing by it
DEFAULT_CONDITION = "default"  # of a run that names none: its objective as it is; among several, the primary one
# Names of evaluations: over all settings together, and of prompts that do not say how submissions are evaluated.
ALL, NO_HINT = "all", "no hint"
PROBLEM_SEPARATOR = " + "  # between the problems of a step with several groups

# What token credit calls planning: deduction, branching and backtracking. No word that is common as an identifier,
# because completions are mostly code.
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
