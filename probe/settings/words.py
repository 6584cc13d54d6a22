"""The words that the probe's options accept, without torch, so that help texts are quick."""

from typing import Literal, get_args

Gate = Literal["one_sided", "two_sided", "reverse"]
Estimator = Literal["grpo", "maxrl", "rloo"]
Scale = Literal["none", "group", "batch"]
Match = Literal["problem", "prompt", "none"]
Target = Literal["gradient", "update"]
Old = Literal["current", "recorded"]  # log-probabilities that a ratio is against
Level = Literal["token", "sequence"]  # what a ratio belongs to
Reference = Literal["base", "ema", "recorded"]  # of a KL
KlEstimator = Literal["k1", "k2", "k3", "full"]
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "VACUOUS"]

GATES: tuple[Gate, ...] = get_args(Gate)
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
SCALES: tuple[Scale, ...] = get_args(Scale)
TARGETS: tuple[Target, ...] = get_args(Target)
MATCHES: tuple[Match, ...] = get_args(Match)

ALL, NO_HINT = "all", "no hint"  # evaluations: over all settings; prompts that do not say how they are evaluated
PROBLEM_SEPARATOR = " + "  # of a step with several groups: between its problems
