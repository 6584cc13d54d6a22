"""FAMILIES: every estimate of an analysis, by kind.

To add an estimator, write a function that returns `Estimate`s in a file, and add its row to FAMILIES. Text, page and
JSON then show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probe.analysis.cosines import (
    HAAR,
    HACK_DIFFERENCE,
    LOG_RATIO,
    PURE_HACK,
    SCORES,
    TRIVIAL,
    WORDS,
    arm_cosine,
    contrast,
    haar_cosine,
    pure_hack_contrast,
    strength,
)
from probe.analysis.estimate import Estimate, Family
from probe.analysis.fields import fields_of
from probe.analysis.forecast import forecast
from probe.analysis.lookahead import moves
from probe.analysis.pull import ceilings, overlap_of, shares
from probe.analysis.rivals import areas, best_rival
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.nulls import sign_transfer
from probe.analysis.statistics.overlap import TOGETHER
from probe.analysis.statistics.permutation import CENTRES, N2, module_cosines, permutation_nulls
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.transfer import transfer
from probe.records.records import SampleRecord

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

LEAD = "v_hack - best score"


def _measured(analysis: "Analysis") -> tuple[Linked, str] | None:
    """Return inner products and the arm along v_hack; None without them."""
    linked, arm = analysis.reproduced, analysis.measured_arm
    return None if linked is None or arm is None else (linked, arm)


def _shares(analysis: "Analysis") -> list[Estimate]:
    found = _measured(analysis)
    return [] if found is None else shares(*found, seed=analysis.seed)


def _overlap(analysis: "Analysis") -> list[Estimate]:
    return [] if analysis.reproduced is None or not analysis.of("shares") else overlap_of(analysis.reproduced)


def _ceilings(analysis: "Analysis") -> Sequence[Estimate]:
    return () if analysis.reproduced is None else ceilings(analysis.reproduced.pairs, analysis.seed)


def _forecast(analysis: "Analysis") -> list[Estimate]:
    side, overshoot = analysis.projection
    linked = analysis.reproduced
    return [] if linked is None else forecast(linked, side=side, overshoot=overshoot, seed=analysis.seed)


def _areas(analysis: "Analysis") -> list[Estimate]:
    arm, linked = analysis.measured_arm, analysis.linked
    extracted = None if linked is None else 2 * int((~linked.pairs.held_out).sum())
    return [] if arm is None else areas(analysis.records, analysis.sure, arm, labels=extracted)


def _lead(analysis: "Analysis") -> list[Estimate]:
    """Return v_hack's lead over the best rival. Its interval is valid for any dependence of the two areas."""
    rows = analysis.of("auroc")
    rival = best_rival(rows)
    if rival is None or rows[0].value is None:
        return []
    nearest = min(max(0.5, rival.low), rival.high)  # to chance
    ends = [strength(replace(rival, value=end)) for end in (rival.low, nearest, rival.high)]
    best, interval = strength(rival), Interval(low=rows[0].low - max(ends), high=rows[0].high - min(ends))
    known = rival.is_bounded and rows[0].is_bounded
    lead = Estimate(name=LEAD, value=rows[0].value - best, n=rows[0].n, unit="prompt", arm=rows[0].arm, null=0.0)
    return [replace(lead, interval=interval if known else None, parts={"rival": rival.name})]


def _fields(analysis: "Analysis") -> list[Estimate]:
    arm = analysis.measured_arm
    return [] if arm is None else fields_of(analysis.steps, arm, trains=analysis.trains)


def _sure(analysis: "Analysis", arm: str) -> list[SampleRecord]:
    return [sample for sample in analysis.records.samples if sample.arm == arm and sample.sure]


def _contrasts(analysis: "Analysis") -> Iterator[Estimate]:
    for arm in analysis.arms:
        yield contrast(_sure(analysis, arm), arm, trains=analysis.trains, seed=analysis.seed)
    if (arm := analysis.measured_arm) is not None:
        yield pure_hack_contrast(analysis.sure, arm, trains=analysis.trains, seed=analysis.seed)


def _nulls(analysis: "Analysis") -> Iterator[Estimate]:
    for arm in analysis.arms:
        if (row := haar_cosine(analysis.steps, arm)) is not None:
            yield row
    if (found := _measured(analysis)) is not None:
        yield from permutation_nulls(*found, seed=analysis.seed)


def _modules(analysis: "Analysis") -> list[Estimate]:
    found = _measured(analysis)
    return [] if found is None else module_cosines(*found, seed=analysis.seed)


def _pair_sign(analysis: "Analysis") -> list[Estimate]:
    found = None if analysis.reproduced is None else sign_transfer(analysis.reproduced.pairs)
    return [] if found is None else [found]


def _own(analysis: "Analysis") -> list[Estimate]:
    found, run = _measured(analysis), analysis.records
    policy = (run.config.get("model"), run.settings.model.adapter)
    names = [pool.name for pool in analysis.pools if pool.policy == policy]
    return [] if found is None else [transfer(found[0], names, found[1])]


def _cosines(analysis: "Analysis") -> list[Estimate]:
    return [arm_cosine(analysis.steps, arm, trains=analysis.trains, seed=analysis.seed) for arm in analysis.arms]


def _forecast_title(analysis: "Analysis") -> str:
    side, overshoot = analysis.projection
    return (
        f"First-order forecast of projection ({side}, overshoot {overshoot:g}): share of the gain that it removes; "
        "no signal: what permuted pairs of the same removed norm remove. margin: held-out hacks against the clean "
        "answers to their prompts; hacks, honest: rewarded rollouts; norm: of the gradient's norm"
    )


# {family: its title, generator, number format, {part: its column}}, in reading order
FAMILIES: Mapping[str, Family] = {
    "shares": Family(
        title="Alignment as a share of held-out hacks (arm {arm}; interval over prompts and pairs; sd pairs: of the "
        "measured mean over half-samples of the extraction pairs)",
        make=_shares,
        names=("pull", "benign", "pull - benign", "half - benign", "contrast"),
        parts={
            **{"measured": "measured", "ceiling": "held-out", "num_held_out": "pairs"},
            **{"sd_prompts": "sd prompt", "sd_pairs": "sd pairs"},
        },
    ),
    "overlap": Family(
        title="Overlap (rewarded hacks with clean answers to their prompt on both sides of them, or within 0.2 sd, "
        "over the share with labels shuffled within prompts; 0.5 is needed)",
        make=_overlap,
        names=(*TRIVIAL, TOGETHER),
        scoped=True,
        parts={"num_hacks": "hacks", "share": "share", "by_chance": "by chance"},
    ),
    "ceilings": Family(
        title="Held-out reference by kind (mean cosine of the pairs of a kind along v_hack of all other kinds; "
        "interval over both sets of pairs)",
        make=_ceilings,
        form="+.3f",
        parts={"num_extraction": "extracted from"},
    ),
    "removed": Family(
        title=_forecast_title,
        make=_forecast,
        names=("removed/margin", "removed/hacks", "removed/honest"),
        parts={"progress": "gain", "q95": "95th pct"},
    ),
    "lookahead": Family(
        title="Lookahead: nats that texts gain over steps of each arm on the stored rollouts",
        make=lambda analysis: moves(analysis.records.lookahead),
        form="+.3f",
    ),
    "own": Family(
        title="AUROC of v_hack for the policy's own hacks against its own honest solutions",
        make=_own,
        names=("own hacks",),
        parts={"num_hacks": "hacks", "num_honest": "honest"},
    ),
    "pair_sign": Family(title="Share of held-out pairs with the sign of v_hack", make=_pair_sign, names=("pair_sign",)),
    "cos_in": Family(
        title="Arms (mean cos_in over prompts; p: sign flips)", make=_cosines, names=("cos_in",), form="+.3f"
    ),
    "contrasts": Family(
        title="Hacks minus clean answers within prompts, A > 0 (cos_S_contrib; pure: wrong hacks minus right ones, "
        "cos_S_nll; p: sign flips)",
        make=_contrasts,
        names=(HACK_DIFFERENCE, PURE_HACK),
        form="+.3f",
    ),
    "nulls": Family(
        title="Nulls (random directions, one draw shared by all steps; labels permuted across pairs; 95%: values that "
        "are not within the moved null)",
        make=_nulls,
        names=(*(f"{name}, {N2}" for name in CENTRES), f"cos_in, {HAAR}"),
        form="+.3f",
    ),
    "auroc": Family(
        title="AUROC for hacked among A > 0 (arm {arm}; interval over prompts)",
        make=_areas,
        names=(*SCORES, LOG_RATIO, WORDS),
        scoped=True,
        parts={"n_hacked": "hacked", "n_clean": "clean"},
    ),
    "lead": Family(
        title="AUROC of v_hack minus the AUROC of the best score without a direction (interval: of both, added up)",
        make=_lead,
        names=(LEAD,),
        form="+.2f",
    ),
    "fields": Family(title="Step records (arm {arm}; mean over prompts)", make=_fields, form=".3g"),
    "modules": Family(
        title="Modules (mean cos_in over prompts; z: labels permuted across pairs)",
        make=_modules,
        form="+.3f",
        parts={"z": "z"},
    ),
}
