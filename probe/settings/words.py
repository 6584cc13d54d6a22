"""The words that settings accept, each in one place; mathematics and help texts read them here. No torch.

To add a word (an estimator, a gate, a KL estimator): add it to its Literal here and a row to the table that says what
it means; a test compares each Literal with its table.
"""

from typing import Literal, get_args

Verb = Literal["replay", "train", "eval", "generate"]
Gate = Literal["one_sided", "two_sided", "reverse"]  # probe.settings.gate.GATES
Estimator = Literal["grpo", "maxrl", "rloo"]  # probe.objective.advantages.ESTIMATORS
Scale = Literal["none", "group", "batch"]  # what divides centred rewards
Match = Literal["problem", "prompt", "none"]  # what the pools of a replay step have in common
Target = Literal["gradient", "update"]  # what the gate of an arm that projects acts on
Old = Literal["current", "recorded"]  # log-probabilities that a ratio is against
Level = Literal["token", "sequence"]  # what a ratio belongs to
Reference = Literal["base", "ema", "recorded"]  # of a KL
KlEstimator = Literal["k1", "k2", "k3", "full"]  # probe.objective.kl.KL_ESTIMATORS, and the whole distribution
Dtype = Literal["float32", "bfloat16", "float64"]  # of the weights; coordinates and cosines stay in float32
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "VACUOUS"]

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
SCALES: tuple[Scale, ...] = get_args(Scale)
MATCHES: tuple[Match, ...] = get_args(Match)

ADVANTAGE_EPS = 1e-4  # TRL's: added to a standard deviation before dividing by it
DEFAULT_CONDITION = "default"  # the objective as it is, without changes
ALL, NO_HINT = "all", "no hint"  # evaluations: over all settings; prompts that do not say how they are evaluated
PROBLEM_SEPARATOR = " + "  # of a step with several groups: between its problems

# What token credit calls planning: deduction, branching and backtracing. No word that is common as an identifier,
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
