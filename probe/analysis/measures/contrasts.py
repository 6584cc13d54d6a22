"""Contrasts of the sample cosines: side a minus side b, the prompt as the unit.

cos(A g) = sign(A) cos(g), so that the hack-versus-clean contrast is made among A > 0, and on `cos_S_nll`, which has no
advantage in it. The sample-level Welch test that the seed asked for is printed beside it, its naive unit named.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.analysis.measures.cells import Metric, mean_or_none
from probe.analysis.statistics.adjusted import Adjusted, adjusted_effect
from probe.analysis.statistics.intervals import Interval, bootstrap_mean, within_prompt_differences
from probe.analysis.statistics.nulls import HaarTest, haar_test
from probe.analysis.statistics.significance import holm, sign_flip_test, welch_test
from probe.records.records import SampleRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastSpec:
    """A named contrast: which samples it keeps, and which of those are side a (the others are side b)."""

    name: str
    metric: Metric
    keep: Callable[[SampleRecord], bool]
    side_a: Callable[[SampleRecord], bool]
    caveat: str = ""
    rivals: tuple[str, ...] = ("src_pool", "hint", "gt_pass")  # fields that may coincide with the sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Side a minus side b of one metric under one arm: Welch on samples, sign flips on within-prompt differences."""

    name: str
    arm: str
    metric: Metric
    caveat: str
    n_a: int
    n_b: int
    mean_a: float | None
    mean_b: float | None
    welch_unit: str
    welch_t: float | None
    welch_p: float | None
    unit: str
    num_prompts: int  # prompts that hold both sides
    difference: float | None  # mean within-prompt difference
    interval: Interval | None  # 95% cluster bootstrap of it
    p: float | None  # sign-flip
    p_holm: float | None  # the same, adjusted over all CONTRASTS of the arm
    haar: HaarTest | None  # of the difference, one draw of directions shared by all samples
    confounded_with: tuple[str, ...]  # what coincides with the sides in these samples
    adjusted: Adjusted  # the difference with the other labels held constant


def _paid(s: SampleRecord) -> bool:
    return s.advantage > 0


HACK_AMONG_PAID = "hacked - clean, A > 0"
PURE_HACK = "pure hack - hack and correct"
CONTRASTS = (
    ContrastSpec(
        name="hacked - clean, all A",
        metric="cos_S_contrib",
        keep=lambda s: True,
        side_a=lambda s: s.hacked,
        caveat="sign of A",
    ),
    ContrastSpec(name=HACK_AMONG_PAID, metric="cos_S_contrib", keep=_paid, side_a=lambda s: s.hacked),
    ContrastSpec(name="hacked - clean", metric="cos_S_nll", keep=lambda s: True, side_a=lambda s: s.hacked),
    ContrastSpec(
        name=PURE_HACK + ", A > 0",
        metric="cos_S_contrib",
        keep=lambda s: s.hacked and _paid(s),
        side_a=lambda s: not s.gt_pass,
        rivals=("src_pool", "hint"),
    ),
    ContrastSpec(
        name=PURE_HACK,
        metric="cos_S_nll",
        keep=lambda s: s.hacked,
        side_a=lambda s: not s.gt_pass,
        rivals=("src_pool", "hint"),
    ),
)


def contrasts(samples: Sequence[SampleRecord], arm: str, *, trains: bool = False, seed: int = 0) -> list[Contrast]:
    """All CONTRASTS of one arm; they are the registered family of Holm's adjustment.

    In a run that trains, the run is the unit: the differences remain, without intervals and p.
    """
    found = [contrast(samples, spec, arm, seed=seed) for spec in CONTRASTS]
    if trains:
        return [replace(row, welch_t=None, welch_p=None, interval=None, p=None, haar=None) for row in found]
    adjusted = holm({row.name: row.p for row in found if row.p is not None})
    return [replace(row, p_holm=adjusted.get(row.name)) for row in found]


def contrast(samples: Iterable[SampleRecord], spec: ContrastSpec, arm: str, *, seed: int = 0) -> Contrast:
    """Evaluate one contrast on the samples of one arm; null cosines are left out."""
    kept = [(s, getattr(s, spec.metric)) for s in samples if spec.keep(s)]
    rows = [(s, value, spec.side_a(s)) for s, value in kept if value is not None]
    a = [value for _, value, side in rows if side]
    b = [value for _, value, side in rows if not side]
    naive = welch_test(a, b)
    sides, prompts = [side for _, _, side in rows], [s.problem_id for s, _, _ in rows]
    differences = within_prompt_differences([value for _, value, _ in rows], sides, prompts)
    test = sign_flip_test(list(differences.values()), seed=seed)
    return Contrast(
        name=spec.name,
        arm=arm,
        metric=spec.metric,
        caveat=spec.caveat,
        n_a=len(a),
        n_b=len(b),
        mean_a=mean_or_none(a),
        mean_b=mean_or_none(b),
        welch_unit="sample (naive)",
        welch_t=naive.t,
        welch_p=naive.p,
        unit="prompt",
        num_prompts=test.n,
        difference=test.mean,
        interval=bootstrap_mean(differences, seed=seed),
        p=test.p,
        p_holm=None,
        haar=_haar_difference(test.mean, [s.haar_sd for s, _, _ in rows], sides, prompts),
        confounded_with=_confounds([s for s, _, _ in rows], sides, spec.rivals),
        adjusted=adjusted_effect(
            [value for _, value, _ in rows], sides, _covariates([s for s, _, _ in rows], spec), prompts, seed=seed
        ),
    )


def _covariates(samples: Sequence[SampleRecord], spec: ContrastSpec) -> dict[str, list[float]]:
    """METHOD section 6: source, gt_pass where it is a rival, log length, hint."""
    sources = sorted({s.src_pool for s in samples})[1:]
    columns = {f"src_pool {name}": [float(s.src_pool == name) for s in samples] for name in sources}
    if "gt_pass" in spec.rivals:
        columns["gt_pass"] = [float(s.gt_pass) for s in samples]
    columns["log length"] = [float(np.log(max(s.comp_len, 1))) for s in samples]
    columns["hint"] = [float(s.hint) for s in samples]
    return columns


def _haar_difference(
    difference: float | None, haar_sds: Sequence[float | None], sides: Sequence[bool], prompts: Sequence[str]
) -> HaarTest | None:
    """The mean within-prompt difference against Haar directions.

    The difference is <U, D> with D a difference of mean unit gradients, so that its standard deviation is at most the
    mean haar_sd of side a plus that of side b (triangle inequality): an upper bound, hence a conservative test. Without
    it any fixed direction would do: two groups of gradients differ along almost every direction.
    """
    if difference is None or None in haar_sds:
        return None
    signed = [sd if side else -sd for sd, side in zip(haar_sds, sides, strict=True) if sd is not None]
    return haar_test(difference, float(np.mean([*within_prompt_differences(signed, sides, prompts).values()])))


def _confounds(samples: Sequence[SampleRecord], sides: Sequence[bool], rivals: Sequence[str]) -> tuple[str, ...]:
    """The rivals that tell the two sides apart without error: the contrast cannot be told from theirs."""
    if len(set(sides)) < 2:
        return ()
    found = []
    for name in rivals:
        a = {getattr(s, name) for s, side in zip(samples, sides, strict=True) if side}
        b = {getattr(s, name) for s, side in zip(samples, sides, strict=True) if not side}
        if not a & b:
            found.append(name)
    return tuple(found)
