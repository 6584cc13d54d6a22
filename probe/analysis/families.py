"""FAMILIES: every estimate of an analysis, by kind.

To add an estimator, write a function that returns `Estimate`s in a file, and add its row to FAMILIES. Text, page and
JSON then show it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
)
from probe.analysis.estimate import Estimate, Family
from probe.analysis.fields import fields_of
from probe.analysis.forecast import forecast
from probe.analysis.gains import moves
from probe.analysis.pull import ceilings, overlap_of, shares
from probe.analysis.rivals import areas, transfer
from probe.analysis.statistics.nulls import sign_transfer
from probe.analysis.statistics.overlap import TOGETHER
from probe.analysis.statistics.permutation import CENTRES, N2, module_cosines, permutation_nulls
from probe.analysis.statistics.run_gradients import Linked

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

Make = Callable[["Analysis"], Iterable[Estimate]]


def _measured(make: Callable[[Linked, str, "Analysis"], Iterable[Estimate]]) -> Make:
    """Return a generator from (inner products, arm along v_hack, analysis); without either there are no estimates."""

    def of(analysis: "Analysis") -> Iterable[Estimate]:
        linked, arm = analysis.reproduced, analysis.measured_arm
        return [] if linked is None or arm is None else make(linked, arm, analysis)

    return of


def _areas(analysis: "Analysis") -> list[Estimate]:
    arm, linked = analysis.measured_arm, analysis.linked
    extracted = None if linked is None else 2 * int((~linked.pairs.held_out).sum())
    return [] if arm is None else areas(analysis.records, analysis.sure, arm, labels=extracted)


def _contrasts(analysis: "Analysis") -> Iterator[Estimate]:
    how = {"trains": analysis.trains, "seed": analysis.seed}
    for arm in analysis.arms:
        sure = [one for one in analysis.records.samples if one.arm == arm and one.sure]
        yield contrast(HACK_DIFFERENCE, sure, arm, **how)
    if (arm := analysis.measured_arm) is not None:
        yield contrast(PURE_HACK, analysis.sure, arm, **how)


def _nulls(analysis: "Analysis") -> list[Estimate]:
    rows = [haar_cosine(analysis.steps, arm) for arm in analysis.arms]
    permuted = _measured(lambda linked, arm, analysis: permutation_nulls(linked, arm, seed=analysis.seed))
    return [*(row for row in rows if row is not None), *permuted(analysis)]


def _own(linked: Linked, arm: str, analysis: "Analysis") -> list[Estimate]:
    run = analysis.records
    policy = (run.config.get("model"), run.settings.model.adapter)
    return [transfer(linked, [pool.name for pool in analysis.pools if pool.policy == policy], arm)]


# {family: its title, generator, number format, {part: its column}}, in reading order
FAMILIES: Mapping[str, Family] = {
    "shares": Family(
        title="Alignment as a share of held-out hacks (arm {arm}; interval over prompts and pairs; sd pairs: of the "
        "measured mean over half-samples of the extraction pairs)",
        make=_measured(lambda linked, arm, analysis: shares(linked, arm, seed=analysis.seed)),
        names=("pull", "benign", "pull - benign", "half - benign", "contrast"),
        parts={
            **{"measured": "measured", "ceiling": "held-out", "num_held_out": "pairs"},
            **{"sd_prompts": "sd prompt", "sd_pairs": "sd pairs"},
        },
    ),
    "overlap": Family(
        title="Overlap (rewarded hacks with clean answers to their prompt on both sides of them, or within 0.2 sd, "
        "over the share with labels shuffled within prompts; 0.5 is needed)",
        make=_measured(lambda linked, arm, analysis: overlap_of(linked) if analysis.of("shares") else []),
        names=(*TRIVIAL, TOGETHER),
        scoped=True,
        parts={"num_hacks": "hacks", "share": "share", "by_chance": "by chance"},
    ),
    "ceilings": Family(
        title="Held-out reference by kind (mean cosine of the pairs of a kind along v_hack of all other kinds; "
        "interval over both sets of pairs)",
        make=_measured(lambda linked, arm, analysis: ceilings(linked.pairs, analysis.seed)),
        form="+.3f",
        parts={"num_extraction": "extracted from"},
    ),
    "removed": Family(
        title="First-order forecast of projection: share of the gain that it removes; no signal: what permuted pairs "
        "of the same removed norm remove. margin: held-out hacks against the clean answers to their prompts; hacks, "
        "honest: rewarded rollouts; norm: of the gradient's norm",
        make=_measured(lambda linked, arm, analysis: forecast(linked, *analysis.projection, seed=analysis.seed)),
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
        make=_measured(_own),
        names=("own hacks",),
        parts={"num_hacks": "hacks", "num_honest": "honest"},
    ),
    "pair_sign": Family(
        title="Share of held-out pairs with the sign of v_hack",
        make=_measured(lambda linked, arm, analysis: filter(None, [sign_transfer(linked.pairs)])),
        names=("pair_sign",),
    ),
    "cos_in": Family(
        title="Arms (mean cos_in over prompts; p: sign flips)",
        make=lambda analysis: [
            arm_cosine(analysis.steps, arm, trains=analysis.trains, seed=analysis.seed) for arm in analysis.arms
        ],
        names=("cos_in",),
        form="+.3f",
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
    "fields": Family(
        title="Step records (arm {arm}; mean over prompts)",
        make=lambda analysis: fields_of(analysis.steps, analysis.measured_arm, trains=analysis.trains),
        form=".3g",
    ),
    "modules": Family(
        title="Modules (mean cos_in over prompts; z: labels permuted across pairs)",
        make=_measured(lambda linked, arm, analysis: module_cosines(linked, arm, seed=analysis.seed)),
        form="+.3f",
        parts={"z": "z"},
    ),
}
