"""Whether there is a measurement that can be believed, part by part (METHOD section 7).

To add a part: write a function that takes Evidence and returns (holds, text), and a row in _PARTS at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose

from probe.analysis.statistics.thresholds import MIN_PROMPTS, OTHER_GRADIENTS, REGRADED, REPRODUCED, SAME
from probe.analysis.verdict.evidence import Evidence, PoolFacts
from probe.analysis.verdict.mechanism import correct
from probe.settings.arms import ARMS
from replay_pools.consistency import UNKNOWN
from replay_pools.grading.tiers import UNSAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityPart:
    """One part: True holds, False is broken, None could not be seen."""

    name: str
    holds: bool | None
    text: str


def validity(evidence: Evidence) -> list[ValidityPart]:
    """Every part, in METHOD's order."""
    parts = []
    for name, judge in _PARTS.items():
        holds, text = judge(evidence)
        parts.append(ValidityPart(name=name, holds=holds, text=text))
    return parts


def _num_prompts(evidence: Evidence) -> int:
    """Prompts with a policy gradient: the most of any arm, because a control arm meets as many as the measured one."""
    return max((summary.num_prompts for summary in evidence.summaries.values()), default=0)


def _canaries(evidence: Evidence) -> tuple[bool | None, str]:
    if evidence.unlabelled:
        return None, "no rollout has a label"
    unknown = [pool.name for pool in evidence.pools if pool.grader is None]
    if unknown or not evidence.pools:
        return None, f"no grader recorded for {', '.join(unknown) or 'the pools'}"
    unsafe = [pool.name for pool in evidence.pools if pool.isolation == UNSAFE]
    if unsafe:
        return False, f"{', '.join(unsafe)} graded without isolation: labels that a submission may have written itself"
    logged = [pool for pool in evidence.pools if pool.isolation == UNKNOWN]
    unjudged = [pool.name for pool in logged if repeats(pool)[0] is None]
    if unjudged:
        who = f"labels of {', '.join(unjudged)} are the logger's own"
        return None, f"{who}; probe pool regrade judges anew those of minicode and LeetCode problems"
    if logged:
        return True, f"labels of {', '.join(pool.name for pool in logged)} are the logger's own and were graded again"
    return True, "generation refuses a grader whose canary fails"


def _regraded(evidence: Evidence) -> tuple[bool | None, str]:
    """Broken when one pool's labels do not repeat, unseen when those of one were not all graded again."""
    if not evidence.pools:
        return None, "no pool recorded"
    if evidence.unlabelled:
        return None, "no rollout has a label"
    judged = {pool.name: repeats(pool) for pool in evidence.pools}
    verdicts = [holds for holds, _ in judged.values()]
    worst: bool | None = True
    if False in verdicts:
        worst = False
    elif None in verdicts:
        worst = None
    text = "; ".join(f"{name}: {text}" for name, (holds, text) in judged.items() if holds is worst)
    return worst, text if worst is None else f"{text}; {REGRADED:.0%} needed"


def repeats(pool: PoolFacts) -> tuple[bool | None, str]:
    """Whether a second grading of a pool repeats every label that the first one recorded."""
    record = pool.regrade
    if record is None:
        return None, _why_unseen(pool)
    old, new = record.old, record.new
    if new.isolation == UNSAFE:
        return None, f"graded again without isolation, as {new.pool}"
    if new.code_rule != old.code_rule:
        return None, f"graded again by another code rule ({new.code_rule}, not {old.code_rule}), as {new.pool}"
    rates = {row.label: row.rate for row in record.rows if row.rate is not None}
    if not rates:
        return None, f"{new.pool} has no label that could be compared"
    num_rollouts = max(row.n for row in record.rows)
    if min(rates.values()) < REGRADED:
        low = ", ".join(f"{label} in {rate:.1%}" for label, rate in rates.items() if rate < REGRADED)
        graders = f"grader {old.version}, then {new.version}"
        text = f"labels repeat only in part: {low} of {num_rollouts} rollouts ({graders})"
        return False, f"{text}; {new.pool} has the new labels"
    least = f"in {min(rates.values()):.1%} of {num_rollouts} rollouts"
    if record.kept:
        kept = f"{', '.join(record.kept)} not graded again without its problems (--problems FILE)"
        return None, f"{', '.join(rates)} repeat {least}; {kept}"
    return True, f"labels repeat {least}"


def _why_unseen(pool: PoolFacts) -> str:
    if pool.regrade_command is None:
        return "moved or changed before it was graded again"
    # The problems of a foreign pool are its logger's: the command may need their file.
    hint = " (LeetCode problems: --problems FILE)" if pool.isolation == UNKNOWN else ""
    return f"not graded again: {pool.regrade_command}{hint}"


def _enough(evidence: Evidence) -> tuple[bool | None, str]:
    n = _num_prompts(evidence)
    if n < MIN_PROMPTS:
        # Few prompts break nothing: what they cost is power, and intervals that cover less than they say.
        return None, f"{n} with a policy gradient; below {MIN_PROMPTS}, intervals cover less than they say"
    return True, f"{n} with a policy gradient, {MIN_PROMPTS} needed"


def _same_start(evidence: Evidence) -> tuple[bool | None, str]:
    """Before any update every arm sees one gradient, and arms with the same kind of directions read one cosine."""
    first = [step for step in evidence.starts if step.arm in ARMS]
    if evidence.trains and len({step.arm for step in first}) < 2:
        return None, "one arm a run: give the other arms of its seed beside it (probe analyze RUN RUN, or SPEC)"
    norms: dict[str, list[float]] = {}  # by basis: a gradient has another norm in other coordinates
    cosines: dict[tuple[str, str], list[float | None]] = {}
    for step in first:
        arm = ARMS[step.arm]
        norms.setdefault(arm.basis, []).append(step.grad_norm)
        cosines.setdefault((arm.basis, arm.directions), []).append(step.cos_in)
    if not all(map(_equal, norms.values())):
        return False, "the gradient norm differs between arms at the first step"
    if not all(map(_equal, cosines.values())):
        return False, "arms with the same directions read different cosines at the first step"
    twin = _twin(evidence)
    if twin:
        return False, f"{twin} reads the same cosines as the measured arm: it is no control"
    if not first:
        return None, "no steps"
    return True, "equal"


def _equal(values: Sequence[float | None]) -> bool:
    """Within the rounding of separate runs, which may use other numbers of threads."""
    first = values[0]
    for value in values[1:]:
        if value == first:
            continue
        if value is None or first is None or not isclose(value, first, rel_tol=SAME):
            return False
    return True


def _twin(evidence: Evidence) -> str | None:
    """A control arm whose cosines are those of the measured arm, step by step."""
    measured = evidence.measured
    if measured is None or measured.mean_cos_in is None:
        return None
    cosines: dict[str, dict[int, float | None]] = {arm: {} for arm in evidence.summaries}
    for step in evidence.steps:
        cosines[step.arm][step.step] = step.cos_in
    for arm in evidence.summaries:
        is_other_kind = arm in ARMS and ARMS[arm].directions != ARMS[measured.arm].directions
        if is_other_kind and cosines[arm] == cosines[measured.arm]:
            return arm
    return None


def _additive(evidence: Evidence) -> tuple[bool | None, str]:
    errors = [step.additivity_error for step in evidence.steps if step.additivity_error is not None]
    tolerance = evidence.additivity_tolerance
    if not errors or tolerance is None:
        return None, "not checked"
    return max(errors) <= tolerance, f"relative error {max(errors):.2g}, at most {tolerance:g}"


def _transfers(evidence: Evidence) -> tuple[bool | None, str]:
    transfer = evidence.transfer
    if transfer is None:
        where = "; probe replay measures it at frozen weights" if evidence.trains else ""
        return None, f"no held-out pair was measured{where}"
    interval = transfer.interval
    holds = None
    if interval.low > 0.5:
        holds = True
    elif interval.high <= 0.5:
        holds = False
    return holds, (
        f"v_hack has the sign of {transfer.num_right} of {transfer.num_pairs} held-out pairs "
        f"[{interval.low:.2f}, {interval.high:.2f}], above .5 needed"
    )


def _tails(evidence: Evidence) -> tuple[bool | None, str]:
    tails = {pool.prompt_tail for pool in evidence.pools}
    if None in tails or not tails:
        return None, "not recorded by every pool"
    if len(tails) > 1:
        return False, f"{len(tails)} different"
    return True, "the same in every pool"


def _reproduced(evidence: Evidence) -> tuple[bool | None, str]:
    error = evidence.offline_error
    if evidence.sample_error is not None and evidence.sample_error > OTHER_GRADIENTS:
        return False, f"the inner products are of other pairs or samples: cosines differ by {evidence.sample_error:.2g}"
    if error is None and evidence.trains:
        return None, "not of a policy that moves: probe replay measures it at frozen weights"
    if error is None:
        return None, "no inner products of a frozen run: no permutation null can be drawn"
    if error > REPRODUCED:
        return None, (
            f"off the records by {error:.2g}: no permutation null drawn. The loss is more than advantages times "
            "gradients (token credit, a KL penalty, recorded ratios), or its normaliser is not the first condition's"
        )
    return True, f"largest difference from the records {error:.2g}, at most {REPRODUCED:g}"


def _gate(evidence: Evidence) -> tuple[bool | None, str]:
    if not any(ARMS[arm].projects for arm in evidence.summaries if arm in ARMS):
        return True, "no arm projects"
    judgement = correct(evidence)
    text = f"{judgement.value}; {judgement.why}" if judgement.value else judgement.why
    return {"PASS": True, "FAIL": False}.get(judgement.verdict), text


_PARTS: dict[str, Callable[[Evidence], tuple[bool | None, str]]] = {
    "grader canaries": _canaries,
    "regrade agreement": _regraded,
    "prompts": _enough,
    "arms at the first step": _same_start,
    "contributions add up": _additive,
    "held-out sign": _transfers,
    "template tails": _tails,
    "offline geometry": _reproduced,
    "gate": _gate,
}
