"""Why nothing along v_hack can be read from a run: the first reason that holds.

To add a reason: a function that returns its words where it holds, a row in `_REASONS`, what every later one takes for
granted first, and its remedy in `probe.analysis.verdict.advice`.
"""

from collections.abc import Callable
from typing import Literal

from probe.analysis.measures.pull import TOO_FEW_PROMPTS
from probe.analysis.statistics.thresholds import REPRODUCED
from probe.analysis.verdict.evidence import Evidence

Reason = Literal["arm", "updates", "gram", "loss", "held out", "prompts", "reach"]


def unread(evidence: Evidence) -> tuple[Reason, str] | None:
    """The reason and its words; None where pull was measured."""
    share = evidence.share("pull")
    if share is not None and share.share is not None:
        return None
    for reason, words_of in _REASONS.items():
        words = words_of(evidence)
        if words is not None:
            return reason, words
    raise AssertionError("a pull that is not measured has a reason")


def why_unread(evidence: Evidence) -> str:
    """The words alone; '' where pull was measured."""
    cause = unread(evidence)
    return "" if cause is None else cause[1]


def _arm(evidence: Evidence) -> str | None:
    return "no arm measures along v_hack" if evidence.measured is None else None


def _updates(evidence: Evidence) -> str | None:
    if evidence.has_updates:
        return None
    return "no group has an update: within every one the rewards are equal"


def _gram(evidence: Evidence) -> str | None:
    if evidence.offline_error is not None:
        return None
    return f"the run stored no inner products in the basis {evidence.basis}"


def _loss(evidence: Evidence) -> str | None:
    error = evidence.offline_error or 0.0
    if error <= REPRODUCED:
        return None
    return (
        f"the loss is more than advantages times gradients (token credit, a KL penalty, recorded ratios): recorded "
        f"cosines differ by {error:.2g} from those of the inner products"
    )


def _held_out(evidence: Evidence) -> str | None:
    share = evidence.share("pull")
    if share is not None and share.num_held_out > 1:
        return None
    return "fewer than two pairs are held out, or fewer than two to extract from: no interval of what a hack reads"


def _prompts(evidence: Evidence) -> str | None:
    share = evidence.share("pull")
    if share is None or share.reason != TOO_FEW_PROMPTS:
        return None
    return f"too few prompts have an update for an interval ({share.num_prompts})"


def _reach(evidence: Evidence) -> str | None:
    share = evidence.share("pull")
    if share is None or share.ceiling is None:
        return None
    return f"v_hack is not shown to reach held-out hacks: they read {share.ceiling:+.3f} ({share.num_held_out} pairs)"


_REASONS: dict[Reason, Callable[[Evidence], str | None]] = {
    "arm": _arm,
    "updates": _updates,
    "gram": _gram,
    "loss": _loss,
    "held out": _held_out,
    "prompts": _prompts,
    "reach": _reach,
}
