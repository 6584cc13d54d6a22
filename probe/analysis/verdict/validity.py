"""Check part by part that the measurement can be trusted (METHOD section 7).

To add a part, write a function that takes Analysis and returns (HOLDS | BROKEN | NOT SEEN, text), add a row to PARTS
and, if the part can break, a case to `probe.analysis.verdict.next_step.broken`.
"""

from collections.abc import Callable, Sequence
from math import isclose
from typing import TYPE_CHECKING

from probe.analysis.cosines import present
from probe.analysis.statistics.thresholds import (
    GATED,
    GATED_UPDATE,
    MIN_PROMPTS,
    OTHER_GRADIENTS,
    REGRADED,
    REPRODUCED,
    SAME,
)
from probe.analysis.training_runs import starts
from probe.analysis.verdict.pools import PoolFacts, regrade_command
from probe.analysis.verdict.verdict import Finding
from probe.records.run import out_of
from probe.settings.arms import ARMS
from probe.settings.words import Answer
from replay_pools.rollout import UNKNOWN, UNSAFE

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

Part = tuple[Answer, str]
HOLDS, BROKEN, NOT_SEEN = Answer.HOLDS, Answer.BROKEN, Answer.NOT_SEEN


def validity(analysis: "Analysis") -> list[Finding]:
    """Return every part, in METHOD's order."""
    judged = {name: judge(analysis) for name, judge in PARTS.items()}
    return [Finding(name=name, question=name, says=says, text=text) for name, (says, text) in judged.items()]


def _canaries(analysis: "Analysis") -> Part:
    if analysis.unlabelled:
        return NOT_SEEN, "no rollout has a label"
    unknown, unsafe, logged = list[str](), list[str](), list[PoolFacts]()
    for pool in analysis.pools:
        unknown += [pool.name] * (pool.said("grader.version") is None)
        unsafe += [pool.name] * (pool.said("grader.isolation") == UNSAFE)
        logged += [pool] * (pool.said("grader.isolation") == UNKNOWN)
    if unknown or not analysis.pools:
        return NOT_SEEN, f"no grader recorded for {', '.join(unknown) or 'the pools'}"
    if unsafe:
        return BROKEN, f"{', '.join(unsafe)} graded without isolation: a submission may have written its own label"
    if unjudged := [pool.name for pool in logged if repeats(pool)[0] is NOT_SEEN]:
        again = "probe pool regrade grades minicode and LeetCode problems again"
        return NOT_SEEN, f"labels of {', '.join(unjudged)} are the logger's own; {again}"
    return HOLDS, "a grader whose canary fails is refused" if not logged else "the logger's labels were graded again"


def _regraded(analysis: "Analysis") -> Part:
    """Return broken if a pool's labels do not repeat, unseen if not all labels of a pool were graded again."""
    if not analysis.pools:
        return NOT_SEEN, "no pool recorded"
    if analysis.unlabelled:
        return NOT_SEEN, "no rollout has a label"
    out = out_of(analysis.records.path)
    judged = {pool.name: repeats(pool, regrade_command(pool, out)) for pool in analysis.pools}
    worst = min((says for says, _ in judged.values()), key=(BROKEN, NOT_SEEN, HOLDS).index)
    text = "; ".join(f"{name}: {text}" for name, (says, text) in judged.items() if says is worst)
    return worst, text if worst is NOT_SEEN else f"{text}; {REGRADED:.0%} needed"


def repeats(pool: PoolFacts, command: str = "") -> Part:
    """Check that two gradings of a pool agree on every label; `command` would grade it again.

    The second grading is a pool that regrades this one, or this pool if it regrades another.
    """
    if not pool.manifest:
        return NOT_SEEN, "moved or changed since the run read it"
    second = pool.regrade or pool
    source, new = second.said("regraded_from"), second.said("grader") or {}
    if source is None:
        return NOT_SEEN, f"not graded again: {command}"
    old = source["grader"]
    if UNSAFE in (old.get("isolation"), new.get("isolation")):
        return NOT_SEEN, f"one grading without isolation: {source['name']}, {second.name}"
    rules = [each.get("code_rule") for each in (old, new)]
    if rules[0] not in (None, rules[1]):
        return NOT_SEEN, f"graded by different code rules: {source['name']} {rules[0]}, {second.name} {rules[1]}"
    rows = [row for row in source["agreement"] if row["n"]]
    if not rows:
        return NOT_SEEN, f"{source['name']} has no label that could be compared"
    low = ", ".join(f"{row['label']} in {row['rate']:.1%}" for row in rows if row["rate"] < REGRADED)
    num_rollouts, least = max(row["n"] for row in rows), min(row["rate"] for row in rows)
    if not low:
        return HOLDS, f"labels repeat in {least:.1%} of {num_rollouts} rollouts"
    text = f"labels repeat only in part: {low} of {num_rollouts} rollouts"
    if second is pool and old["version"] != new["version"]:
        # The run uses the second grader's labels; nothing shows that it repeats its own.
        return NOT_SEEN, f"{text} (grader {old['version']}, then {new['version']}): {command}"
    return BROKEN, f"{text} (grader {old['version']}, then {new['version']}); {second.name} has the new labels"


def _enough(analysis: "Analysis") -> Part:
    # The maximum over arms: a control arm meets the measured arm's prompts.
    n = max((row.n for row in analysis.of("cos_in")), default=0)
    # Few prompts do not break the measurement: they cost power, and intervals undercover.
    text = f"{n} with a policy gradient; below {MIN_PROMPTS}, intervals cover less than they say"
    return HOLDS if n >= MIN_PROMPTS else NOT_SEEN, text


def _same_start(analysis: "Analysis") -> Part:
    """Check that before any update all arms have one gradient, and arms with the same directions one cosine."""
    first = [(ARMS[step.arm], step) for step in starts(analysis.records, analysis.others) if step.arm in ARMS]
    if analysis.trains and len({arm.name for arm, _ in first}) < 2:
        return NOT_SEEN, "one arm a run: give the other arms of its seed as well (probe analyze RUN RUN, or SPEC)"
    norms: dict[str, list[float | None]] = {}  # by basis: a gradient's norm depends on the coordinates
    cosines: dict[tuple[str, str], list[float | None]] = {}
    for arm, step in first:
        norms.setdefault(arm.basis, []).append(step.grad_norm)
        cosines.setdefault((arm.basis, arm.directions), []).append(step.cos_in)
    if not all(map(_equal, norms.values())):
        return BROKEN, "the gradient norm differs between arms at the first step"
    if not all(map(_equal, cosines.values())):
        return BROKEN, "arms with the same directions read different cosines at the first step"
    readings = {arm: {step.step: step.cos_in for step in analysis.steps if step.arm == arm} for arm in analysis.arms}
    measured = readings.get(analysis.measured_arm or "", {})
    for arm in readings if {*measured.values()} - {None} else ():
        if arm in ARMS and ARMS[arm].directions != "v_hack" and readings[arm] == measured:
            return BROKEN, f"{arm} reads the same cosines as the measured arm: it is no control"
    return (HOLDS, "equal") if first else (NOT_SEEN, "no steps")


def _equal(values: Sequence[float | None]) -> bool:
    """Return True if equal within the rounding of separate runs, which may use different numbers of threads."""
    known = present(values)
    return len(known) in (0, len(values)) and all(isclose(value, known[0], rel_tol=SAME) for value in known)


def _additive(analysis: "Analysis") -> Part:
    errors = [step.additivity_error for step in analysis.steps if step.additivity_error is not None]
    tolerance = analysis.records.manifest.get("additivity", {}).get("tolerance")
    if not errors or tolerance is None:
        return NOT_SEEN, "not checked"
    text = f"relative error {max(errors):.2g}, at most {tolerance:g}"
    return HOLDS if max(errors) <= tolerance else BROKEN, text


def _transfers(analysis: "Analysis") -> Part:
    transfer = analysis.get("pair_sign", "pair_sign")
    if transfer.value is None:
        where = "; probe replay measures it at frozen weights" if analysis.trains else ""
        return NOT_SEEN, f"no held-out pair was measured{where}"
    says = HOLDS if transfer.low > 0.5 else BROKEN if transfer.high <= 0.5 else NOT_SEEN
    return says, (
        f"v_hack has the sign of {transfer.parts['num_right']} of {transfer.n} held-out pairs "
        f"{transfer.interval:.2f}, above .5 needed"
    )


def _tails(analysis: "Analysis") -> Part:
    tails = {pool.said("prompt_tail") for pool in analysis.pools}
    if None in tails or not tails:
        return NOT_SEEN, "not recorded by every pool"
    return (HOLDS, "the same in every pool") if len(tails) == 1 else (BROKEN, f"{len(tails)} different")


def _reproduced(analysis: "Analysis") -> Part:
    if analysis.trains:
        return NOT_SEEN, "not of a policy that moves: probe replay measures it at frozen weights"
    linked = analysis.linked
    if linked is None:
        return NOT_SEEN, "no inner products of a frozen run: no permutation null can be drawn"
    if linked.sample_error > OTHER_GRADIENTS:
        return BROKEN, f"the inner products are of other pairs or samples: cosines differ by {linked.sample_error:.2g}"
    if linked.error > REPRODUCED:
        return NOT_SEEN, (
            f"off the records by {linked.error:.2g}: no permutation null drawn. The loss is more than advantages times "
            "gradients (token credit, a KL penalty, recorded ratios), or its normaliser is not the first condition's"
        )
    return HOLDS, f"largest difference from the records {linked.error:.2g}, at most {REPRODUCED:g}"


def projection_acted(analysis: "Analysis") -> Part:
    """Check that projection left only rounding of the part to remove: an identity, which shows that it ran."""
    rows = [ARMS[arm] for arm in analysis.arms if arm in ARMS]
    how = analysis.records.settings.intervention.projection
    if not any(row.projects for row in rows):
        return HOLDS, "no arm projects"
    arms = [row.name for row in rows if row.projects and not row.dosed and not row.scales]
    if how.overshoot < 1:
        return NOT_SEEN, "this projection does not remove the part toward the hack"
    steps, idle = [step for step in analysis.steps if step.arm in arms], []
    if analysis.trains and how.target == "update":
        # The gradient keeps its part toward the hack here; the optimizer's update does not.
        left, most, kind = present(step.hackward_frac_update for step in steps), GATED_UPDATE, "of the update"
    else:
        # Two-sided without overshoot, nothing remains along the directions; one-sided, nothing toward the hack.
        both_sides = {how.side or ARMS[arm].side for arm in arms} == {"two_sided"} and how.overshoot == 1
        steps = [step for step in steps if step.cos_out is not None and step.hackward_frac_out is not None]
        left = [max(step.hackward_frac_out or 0.0, abs(step.cos_out or 0.0) * both_sides) for step in steps]
        to_remove = {step.arm for step in steps if both_sides or (step.hackward_frac_in or 0.0) >= GATED}
        fired = {step.arm for step in steps if step.frac_fired}
        idle = [arm for arm in arms if arm in to_remove - fired]
        kind = "|V g'| / |g'|" if both_sides else "its positive part"
        most, kind = GATED, f"{kind}, {', '.join(arms)}"
    if not left:
        return NOT_SEEN, "no projecting arm with a cosine, or none that was updated"
    text = f"{kind}; an identity, which says that it ran"
    if idle:
        text = f"the projection of {', '.join(idle)} never fired: its arm is identical to one that does not project"
    says = BROKEN if idle or max(left) >= most else HOLDS
    return says, f"largest {max(left):.1e}, below {most:g} needed; {text}"


PARTS: dict[str, Callable[["Analysis"], Part]] = {
    "grader canaries": _canaries,
    "regrade agreement": _regraded,
    "prompts": _enough,
    "arms at the first step": _same_start,
    "contributions add up": _additive,
    "held-out sign": _transfers,
    "template tails": _tails,
    "offline geometry": _reproduced,
    "projection": projection_acted,
}
