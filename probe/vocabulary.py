"""The words that the probe's options accept, without torch, so that help texts are quick."""

from typing import Literal, get_args

Gate = Literal["one_sided", "two_sided", "reverse"]
Estimator = Literal["grpo", "maxrl", "rloo"]
Scale = Literal["none", "group", "batch"]
Match = Literal["problem", "prompt", "none"]
Target = Literal["gradient", "update"]
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "VACUOUS"]

GATES: tuple[Gate, ...] = get_args(Gate)
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
SCALES: tuple[Scale, ...] = get_args(Scale)
TARGETS: tuple[Target, ...] = get_args(Target)
MATCHES: tuple[Match, ...] = get_args(Match)
