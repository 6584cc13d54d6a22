"""What to do after a verdict: the next command with its number, from what the run had and what pools are at hand.

To advise on another verdict: write a function that takes findings and Evidence, and add a row to _NEXT.
"""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probe.analysis.measures.pull import TOO_FEW_PROMPTS, Share
from probe.analysis.statistics.power import mde
from probe.analysis.statistics.thresholds import ALPHA, MATERIAL_REMOVED, POWER
from probe.analysis.verdict.commands import direction, extract, generate, regrade, replay, replay_again
from probe.analysis.verdict.evidence import Evidence, PoolPlan
from probe.analysis.verdict.mending import mend
from probe.analysis.verdict.needed import MANY, Needed, needed, pairs_to_reach
from probe.analysis.verdict.provenance import num_problems
from probe.analysis.verdict.questions import DECIDED_BY, Finding, decided
from probe.analysis.verdict.unread import Reason, unread
from probe.analysis.verdict.validity import validity
from probe.records.root import in_root

SEEDS = (3, 5, 10)  # of the trainings that a GO is priced for
MORE_ROLLOUTS = 4  # times as many of a prompt, for answers of both kinds to it
RESTS_ON = {
    "hackward": ("pull",),
    "about": ("contrast", "pull - benign", "half - benign"),
}  # the shares of each question


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The next step: commands, one a line (or '' where there is none), and what they need or show, with a number."""

    command: str
    text: str


def next_step(verdict: str, findings: Sequence[Finding], evidence: Evidence) -> Next:
    """The next step after a verdict of `decision`, in the root folder of the run."""
    step = _NEXT[verdict](findings, evidence)
    return Next(command=in_root(step.command, evidence.options.out), text=step.text)


def _broken(findings: Sequence[Finding], evidence: Evidence) -> Next:
    """What mends the first part that is broken."""
    part = next(part.name for part in validity(evidence) if part.holds is False)
    commands, text = mend(part, evidence)
    return Next(command="\n".join(commands), text=f"no number of this run is read until that is mended: {text}")


def _skip(findings: Sequence[Finding], evidence: Evidence) -> Next:
    if any(finding.says == "too little" for finding in findings):
        return _more_directions(evidence)
    share = evidence.share("pull")
    level = "" if share is None or share.ceiling is None else f" (they read {share.ceiling:+.3f})"
    return Next(
        command=extract(evidence),
        text=f"these directions reach held-out hacks{level} and not these updates: extract from pairs of this policy",
    )


def _more_directions(evidence: Evidence) -> Next:
    """Twice as many directions of the same pairs; other pairs where these give no more, or came with the directions."""
    aim = f"directions that remove {MATERIAL_REMOVED:.0%} or more of the progress on held-out hacks"
    if "intervention.v_hack" in evidence.options.replay:
        return Next(command=extract(evidence), text=f"{aim}: more of them (--k), or of pairs like the held-out ones")
    k, most = 2 * evidence.options.num_directions, evidence.most_directions
    if most is not None:
        k = min(k, most)
    if k <= evidence.options.num_directions:
        text = f"{aim}: of pairs like the held-out ones, since these give no more than {most} a module"
        return Next(command=extract(evidence), text=text)
    text = f"{aim}: {k} of the same pairs, or of pairs like the held-out ones (probe extract --pairs FILE.jsonl)"
    return Next(command=replay_again(evidence, k=k), text=text)


def _generic(findings: Sequence[Finding], evidence: Evidence) -> Next:
    text = "pairs that differ in the hack alone: same body, same length, same tests; then replay with --v-hack OTHER"
    if all(finding.says == "yes" for finding in findings if finding.name != "removable"):
        text = "pairs like the held-out ones, whose hacks gain mostly off v_hack; then replay with --v-hack OTHER"
    return Next(command=extract(evidence), text=text)


def _confounded(findings: Sequence[Finding], evidence: Evidence) -> Next:
    """A pool in which the other side answers the same prompts, where one is at hand; else more of every prompt."""
    if evidence.samples and not evidence.sure:
        text = "no label is sure: grade again, with CPU seconds that the slow ones need"
        if not evidence.plans:
            return Next(command="", text=text)
        pool = evidence.plans[0]
        return Next(command=f"{regrade(pool, f'{pool.name}-again')} --cpu-limit 20", text=text)
    hinted = [pool for pool in evidence.plans if pool.hint] or list(evidence.plans)
    if hinted:
        partner = _partner(hinted[0], evidence)
        if partner is not None:
            return Next(
                command=replay([hinted[0].reference, partner.reference], evidence, match="prompt", name="same-prompt"),
                text=f"{partner.name} answers the very prompts of {hinted[0].name}, by another policy",
            )
    text = "hacks and honest solutions of one prompt and much the same length are needed among the paid"
    pool = hinted[0] if hinted else None
    if pool is None or pool.recipe is None or pool.group is None:
        return Next(command="", text=f"{text}: log {MORE_ROLLOUTS} times as many rollouts of every prompt")
    group = MORE_ROLLOUTS * pool.group
    return Next(
        command=generate(pool, f"{pool.name}-{group}", f"--group {group}"),
        text=f"{text}: {group} rollouts of every prompt by one policy, {pool.group} so far",
    )


def _partner(pool: PoolPlan, evidence: Evidence) -> PoolPlan | None:
    """A pool at hand, which this run did not read, that answers the same prompts by another policy."""
    read = {other.name for other in evidence.plans}
    for other in evidence.at_hand:
        same_prompts = pool.problems is not None and (other.hint, other.problems) == (pool.hint, pool.problems)
        if same_prompts and other.policy != pool.policy and other.name not in read:
            return other
    return None


def _underpowered(findings: Sequence[Finding], evidence: Evidence) -> Next:
    """What would decide the first question that is open."""
    cause = unread(evidence)
    if cause is not None:
        return _REMEDIES[cause[0]](evidence)
    for finding in findings:
        if finding.says == "yes":
            continue
        if finding.name == "about" and evidence.unlabelled:
            return _label(evidence)
        for name in RESTS_ON.get(finding.name, ()):
            above, below = DECIDED_BY[name]
            share = evidence.share(name)
            if share is None or share.share is None:
                if share is not None and share.num_prompts:
                    return _few_prompts(evidence) if share.reason == TOO_FEW_PROMPTS else _more_pairs(share, evidence)
                continue
            if decided(name, share.share) == "unclear":
                return _more(share, above, below, evidence)
        break
    return _forecast_open(evidence)


def _label(evidence: Evidence) -> Next:
    """Labels of the logger; a grader has them of the problems that it knows."""
    pool = shlex.quote(evidence.plans[0].reference) if evidence.plans else "POOL"
    return Next(
        command="",
        text=(
            "say which rollouts hack: log it, and name the column to probe check (or probe pool import) by --map "
            f"hacked=COLUMN; of minicode and LeetCode problems, probe pool regrade {pool} finds it out"
        ),
    )


def _forecast_open(evidence: Evidence) -> Next:
    """Prompts where that progress is not told from 0, directions where too little of it may be removed.

    Else pairs where permuted ones take as much; and where it may be nothing, what its interval is wide by.
    """
    row = evidence.forecast.row("margin") if evidence.forecast is not None else None
    steps = 4 * len({step.problem_id for step in evidence.steps})
    prompts = f"4 times as many prompts ({steps})"
    if row is None or row.removed is None:
        return _more_groups(steps, f"{prompts} halve the error of that progress", evidence)
    if row.removed.value < MATERIAL_REMOVED:
        return _more_directions(evidence)
    share = evidence.share("pull")
    held_out = share.num_held_out if share is not None else 0
    pairs = f"4 times as many pairs ({4 * held_out} held out, {held_out} so far)"
    if row.permuted_p is None or row.permuted_p >= ALPHA:
        return Next(command=extract(evidence), text=f"{pairs} halve what permuted ones take by chance")
    narrow = f"narrow the interval of what the gate removes, {row.removed.percent()}, which holds 0"
    if row.from_prompts is not None and row.from_prompts > 0.5:
        return _more_groups(steps, f"{prompts} {narrow}", evidence)
    return Next(command=extract(evidence), text=f"{pairs} {narrow}")


def _more(share: Share, above: float, below: float, evidence: Evidence) -> Next:
    """Prompts where those are what the interval is wide by, else pairs as well."""
    plan = needed(share, above, below)
    if plan is None:
        return Next(
            command=extract(evidence),
            text=f"no number of prompts up to {MANY} decides {share.name}, and not 8 times as many pairs: other pairs",
        )
    prompts = f"about {plan.prompts} prompts decide {share.name} with {POWER:.0%} power, {share.num_prompts} so far"
    if plan.pairs == 1:
        return _more_prompts(share, plan, prompts, evidence)
    held_out = math.ceil(plan.pairs * share.num_held_out)
    pairs = f"{plan.pairs} times as many pairs ({held_out} held out, {share.num_held_out} so far)"
    if plan.prompts > share.num_prompts:
        return Next(command=extract(evidence), text=f"{pairs}; with those, {prompts}")
    return Next(
        command=extract(evidence), text=f"{pairs} decide {share.name} with {POWER:.0%} power; prompts alone do not"
    )


def _more_prompts(share: Share, plan: Needed, text: str, evidence: Evidence) -> Next:
    """More groups in every pool of the run, because a replay takes the problems that its pools have in common."""
    num_problems = len({step.problem_id for step in evidence.steps})
    # Only a part of the prompts has what the share needs: both labels, or rewards that differ.
    steps = math.ceil(plan.prompts * num_problems / share.num_prompts)
    return _more_groups(steps, text, evidence)


def _more_groups(steps: int, text: str, evidence: Evidence) -> Next:
    """Every pool of the run sampled anew with as many groups, and the replay of those.

    Where the environment has fewer problems: with more rollouts of each.
    """
    if not evidence.plans or any(pool.recipe is None for pool in evidence.plans):
        return Next(command="", text=f"{text}: log {steps} groups of different prompts")
    most = min(filter(None, map(num_problems, evidence.plans)), default=steps)
    lacks_problems = steps > most
    if lacks_problems:
        steps = most
        text += f"; the environment has {most}: all of them, and {MORE_ROLLOUTS} times as many rollouts of each"
    commands, names = [], []
    for pool in evidence.plans:
        size, name = f"--steps {steps}", f"{pool.name}-{steps}"
        if lacks_problems and pool.group is not None:
            group = MORE_ROLLOUTS * pool.group
            size, name = f"{size} --group {group}", f"{name}-{group}"
        names.append(name)
        commands.append(generate(pool, name, size))
    return Next(command="\n".join([*commands, replay(names, evidence)]), text=text)


def _more_pairs(share: Share, evidence: Evidence) -> Next:
    """Pairs that would show the ceiling of a share."""
    pairs = pairs_to_reach(share)
    if pairs is None:
        text = f"better pairs: v_hack does not reach its {share.num_held_out} held-out ones ({share.name})"
    else:
        text = (
            f"about {pairs} held-out pairs, and as many times more to extract from, would show what held-out hacks "
            f"read ({share.name}, {share.num_held_out} so far)"
        )
    return Next(command=extract(evidence), text=text)


def _no_updates(evidence: Evidence) -> Next:
    """Groups in which rewards differ: more rollouts of each prompt."""
    text = "rewards that differ within a prompt"
    pool = next((pool for pool in evidence.plans if pool.recipe is not None and pool.group is not None), None)
    if pool is None or pool.group is None:
        return Next(command="", text=f"{text}: log {MORE_ROLLOUTS} times as many rollouts of every prompt")
    group = MORE_ROLLOUTS * pool.group
    return Next(
        command=generate(pool, f"{pool.name}-{group}", f"--group {group}"),
        text=f"{text}: {group} rollouts of each, {pool.group} so far",
    )


def _few_prompts(evidence: Evidence) -> Next:
    return _more_groups(20, "20 prompts at least: the width of an interval falls with their square root", evidence)


def _no_reach(evidence: Evidence) -> Next:
    share = evidence.share("pull")
    assert share is not None
    return _more_pairs(share, evidence)


# What makes something readable again, by the reason why nothing was.
_REMEDIES: dict[Reason, Callable[[Evidence], Next]] = {
    "arm": lambda evidence: Next(command=replay_again(evidence), text="an arm along v_hack"),
    "updates": _no_updates,
    "gram": lambda evidence: Next(command=replay_again(evidence), text="replay again, with its inner products"),
    "loss": lambda evidence: Next(
        command=replay_again(evidence, without="objective."), text="a replay with advantages and gradients alone"
    ),
    "held out": lambda evidence: Next(
        command=extract(evidence), text='a dozen pairs marked "held_out": true in FILE.jsonl'
    ),
    "prompts": _few_prompts,
    "reach": _no_reach,
}


def _go(findings: Sequence[Finding], evidence: Evidence) -> Next:
    plan = evidence.plan
    sizes = ", ".join(f"{seeds} seeds {mde(plan.sd, seeds, power=POWER):.2f}" for seeds in SEEDS)
    seen = f"smallest difference of hack rates that is seen with {POWER:.0%} power at sd {plan.sd:g} between seeds"
    elsewhere = "train in your own trainer along the direction (probe.attach), with vanilla and a KL penalty beside it"
    if evidence.basis != "svd":
        why = f"probe train has vanilla and its controls in the basis svd, not in {evidence.basis}"
        return Next(command=direction(evidence), text=f"{elsewhere}, since {why}; {seen}: {sizes}")
    if evidence.pools and not any(pool.plan.has_environment for pool in evidence.pools):
        return Next(command=direction(evidence), text=f"{elsewhere}; {seen}: {sizes}")
    return Next(command=f"probe plan {evidence.options.name}", text=f"train with controls and rivals; {seen}: {sizes}")


def _trained(findings: Sequence[Finding], evidence: Evidence) -> Next:
    return Next(command="probe analyze RUN RUN ...", text="arms and seeds of one training together")


_NEXT: dict[str, Callable[[Sequence[Finding], Evidence], Next]] = {
    "BROKEN": _broken,
    "SKIP": _skip,
    "CONFOUNDED": _confounded,
    "GENERIC": _generic,
    "UNDERPOWERED": _underpowered,
    "GO": _go,
    "TRAINED": _trained,
}
