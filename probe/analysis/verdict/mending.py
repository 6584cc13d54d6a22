"""What mends a broken part of the measurement: the commands, by the part that is shown broken.

To add a part's remedy: a function of Evidence that returns commands and a text, and a row in `_MENDS` under the name
that the part has in `probe.analysis.verdict.validity`.
"""

from collections.abc import Callable

from probe.analysis.verdict.commands import extract, generate, regrade, replay, replay_again
from probe.analysis.verdict.evidence import Evidence
from probe.analysis.verdict.validity import repeats
from probe.settings.words import HIGHER
from replay_pools.grading.tiers import UNSAFE

Mend = tuple[list[str], str]  # commands, and what they do


def mend(part: str, evidence: Evidence) -> Mend:
    """The commands that mend a broken part, and why they do."""
    return _MENDS[part](evidence)


def _isolation(evidence: Evidence) -> Mend:
    """Grade in isolation what was not, and replay that; a policy that learnt from such labels is trained again."""
    if evidence.trains:
        return ["probe doctor"], "train again where submissions are isolated: it learnt from labels that they can write"
    names, regrades = [], []
    for pool in evidence.pools:
        if pool.isolation == UNSAFE:
            names.append(f"{pool.name}-again")
            regrades.append(regrade(pool.plan, names[-1]))
        else:
            names.append(pool.plan.reference)
    text = "labels that no submission can write: the first line says whether this machine isolates what it runs"
    return ["probe doctor", *regrades, replay(names, evidence)], text


def _labels(evidence: Evidence) -> Mend:
    """Replay the pools that the second grading wrote."""
    names = []
    for pool in evidence.pools:
        again = pool.regrade if repeats(pool)[0] is False else None
        names.append(pool.plan.reference if again is None else again.new.pool)
    return [replay(names, evidence)], "the labels of the second grading, in pools of their own"


def _starts(evidence: Evidence) -> Mend:
    if evidence.trains:
        return [], "train the arms of this seed again, all by one version of the program and of the weights"
    return [replay_again(evidence)], "all arms again, in one pass"


def _additive(evidence: Evidence) -> Mend:
    dtype = HIGHER.get(evidence.options.dtype)
    if dtype is None:
        return ["probe doctor"], "the gradients are in float64 and do not add up: a fault of the program"
    return [
        f"{replay_again(evidence)} --set model.dtype={dtype}"
    ], f"the same in {dtype}: contributions miss by rounding"


def _sign(evidence: Evidence) -> Mend:
    text = "other pairs: v_hack of these has the wrong sign on hacks that it has not seen"
    return [extract(evidence)], text


def _tails(evidence: Evidence) -> Mend:
    """Sample again, by one chat template, what can be sampled again."""
    text = "prompts that end alike: one version of the model's chat template for all pools"
    if not evidence.plans or any(pool.recipe is None for pool in evidence.plans):
        return [], text
    names = [f"{pool.name}-again" for pool in evidence.plans]
    commands = [generate(pool, name) for pool, name in zip(evidence.plans, names, strict=True)]
    return [*commands, replay(names, evidence)], text


def _again(evidence: Evidence) -> Mend:
    return [replay_again(evidence)], "the same replay under another name; where it ends alike, the program is at fault"


_MENDS: dict[str, Callable[[Evidence], Mend]] = {
    "grader canaries": _isolation,
    "regrade agreement": _labels,
    "arms at the first step": _starts,
    "contributions add up": _additive,
    "held-out sign": _sign,
    "template tails": _tails,
    "offline geometry": _again,
    "gate": _again,
}
