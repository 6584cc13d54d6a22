"""R0, part by part: is there a measurement at all, before anybody reads it?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose

from probe.analysis.statistics.thresholds import ADDITIVE, MIN_PROMPTS, REGRADED, REPRODUCED, SAME
from probe.analysis.verdict.evidence import Evidence, Judgement
from probe.settings.arms import ARMS
from probe.settings.words import Verdict
from replay_pools.predecessor import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityPart:
    """One part of R0: True holds, False is broken, None could not be seen."""

    name: str
    holds: bool | None
    text: str


def validity(e: Evidence) -> list[ValidityPart]:
    """Every part of R0, in METHOD's order."""
    return [
        ValidityPart(name=name, holds=holds, text=text) for name, part in _PARTS.items() for holds, text in [part(e)]
    ]


def valid(e: Evidence) -> Judgement:
    """R0: FAIL when a part is broken, INCONCLUSIVE when one could not be seen."""
    parts = validity(e)
    broken = [part for part in parts if part.holds is False]
    unseen = [part for part in parts if part.holds is None]
    verdict: Verdict = "FAIL" if broken else "INCONCLUSIVE" if unseen else "PASS"
    share = _zero_variance(e)
    why = "; ".join(f"{part.name}: {part.text}" for part in broken + unseen) or "every part holds"
    return Judgement(
        verdict=verdict,
        value=f"{sum(part.holds is True for part in parts)} of {len(parts)} parts hold",
        n=max((summary.num_prompts for summary in e.summaries.values()), default=0),
        why=f"{why}; groups without reward variance {share}",
    )


def _canaries(e: Evidence) -> tuple[bool | None, str]:
    unknown = [pool.name for pool in e.pools if pool.grader is None]
    if unknown or not e.pools:
        return None, f"no grader recorded for {', '.join(unknown) or 'the pools'}"
    if foreign := [pool.name for pool in e.pools if pool.isolation == UNKNOWN]:
        who = f"labels of {', '.join(foreign)} are the logger's own"
        return None, f"{who}; probe pool regrade judges anew those of minicode and LeetCode problems"
    if unsafe := [pool.name for pool in e.pools if pool.isolation == "unsafe-local"]:
        return False, f"{', '.join(unsafe)} graded without isolation: labels that a submission may have written itself"
    return True, "generation refuses a grader whose canary fails"


def _regraded(e: Evidence) -> tuple[bool | None, str]:
    if e.regrade_agreement is None:
        return None, "not given; probe pool regrade, then --regrade-agreement"
    return e.regrade_agreement >= REGRADED, f"{e.regrade_agreement:.1%} of labels repeat, {REGRADED:.0%} needed"


def _enough(e: Evidence) -> tuple[bool | None, str]:
    n = max((summary.num_prompts for summary in e.summaries.values()), default=0)  # a control arm meets as many
    return (True if n >= MIN_PROMPTS else None), f"{n} with a policy gradient, {MIN_PROMPTS} needed"


def _same_start(e: Evidence) -> tuple[bool | None, str]:
    """Before any update every arm sees one gradient; arms of one kind of directions read one cosine, others another."""
    first = [step for step in e.starts if step.arm in ARMS]
    if e.trains and len({step.arm for step in first}) < 2:
        return None, "one arm a run: give the other arms of its seed beside it (probe analyze RUN RUN, or SPEC)"
    by_basis: dict[str, list[float]] = {}
    cosines: dict[tuple[str, str], list[float | None]] = {}
    for step in first:
        by_basis.setdefault(ARMS[step.arm].basis, []).append(step.grad_norm)
        cosines.setdefault((ARMS[step.arm].basis, ARMS[step.arm].directions), []).append(step.cos_in)
    if not all(map(_equal, by_basis.values())):
        return False, "the gradient norm differs between arms at the first step"
    if not all(map(_equal, cosines.values())):
        return False, "arms with the same directions read different cosines at the first step"
    if twins := _twins(e):
        return False, f"{twins} reads the same cosines as the measured arm: it is no control"
    return (True, "equal") if first else (None, "no steps")


def _equal(values: Sequence[float | None]) -> bool:
    """Within the rounding of separate runs, which may use other numbers of threads."""
    first = values[0]
    return all(v == first or (v is not None and first is not None and isclose(v, first, rel_tol=SAME)) for v in values)


def _twins(e: Evidence) -> str | None:
    """A control arm whose cosines are those of the measured arm, step by step."""
    if e.measured is None or e.measured.mean_cos_in is None:
        return None
    own = {step.step: step.cos_in for step in e.steps if step.arm == e.measured.arm}
    for arm in e.summaries:
        theirs = {step.step: step.cos_in for step in e.steps if step.arm == arm}
        if arm in ARMS and ARMS[arm].directions != ARMS[e.measured.arm].directions and theirs == own:
            return arm
    return None


def _additive(e: Evidence) -> tuple[bool | None, str]:
    errors = [step.additivity_error for step in e.steps if step.additivity_error is not None]
    if not errors:
        return None, "not checked"
    return max(errors) <= ADDITIVE, f"relative error {max(errors):.2g}, at most {ADDITIVE:g}"


def _transfers(e: Evidence) -> tuple[bool | None, str]:
    t = e.transfer
    if t is None:
        where = "; probe replay measures it at frozen weights" if e.trains else ""
        return None, f"no held-out pair was measured{where}"
    holds = True if t.interval.low > 0.5 else False if t.interval.high <= 0.5 else None
    return holds, (
        f"v_hack has the sign of {t.num_right} of {t.num_pairs} held-out pairs "
        f"[{t.interval.low:.2f}, {t.interval.high:.2f}], above .5 needed"
    )


def _tails(e: Evidence) -> tuple[bool | None, str]:
    tails = {pool.prompt_tail for pool in e.pools}
    if None in tails or not tails:
        return None, "not recorded by every pool"
    return len(tails) == 1, "the same in every pool" if len(tails) == 1 else f"{len(tails)} different"


def _reproduced(e: Evidence) -> tuple[bool | None, str]:
    error = e.offline_error
    if error is None and e.trains:
        return None, "not of a policy that moves: probe replay measures it at frozen weights"
    if error is None:
        return None, "no inner products of a frozen run in the SVD basis: no permutation null can be drawn"
    if error > REPRODUCED:
        return None, (
            f"off the records by {error:.2g}: no permutation null drawn. The loss is more than advantages times "
            "gradients (token credit, a KL penalty, recorded ratios), or its normaliser is not the first condition's"
        )
    return True, f"largest difference from the records {error:.2g}, at most {REPRODUCED:g}"


def _zero_variance(e: Evidence) -> str:
    groups = {step.step: step.reward_std for step in e.steps}
    return f"{sum(std == 0 for std in groups.values())}/{len(groups)}"


_PARTS: dict[str, Callable[[Evidence], tuple[bool | None, str]]] = {
    "grader canaries": _canaries,
    "regrade agreement": _regraded,
    "prompts": _enough,
    "arms at the first step": _same_start,
    "contributions add up": _additive,
    "held-out sign": _transfers,
    "template tails": _tails,
    "offline geometry": _reproduced,
}
