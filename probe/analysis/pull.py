"""Alignment of an update with the hack: as a share of the held-out reference, as a norm, and by kind of hack.

    pull       alignment: cos_in of the groups / cosine of held-out hack-minus-clean pair gradients, both along v_hack
    benign     alignment without the hacks: the same for the update that the groups' other samples alone would make;
               `pull - benign` is the part that comes with the hacks, `half - benign` tests whether it exceeds half
    contrast   hack minus clean among the rewarded, within prompts and with trivial scores held constant / the same
               for held-out pairs

0 is no alignment, 1 the alignment of a held-out hack. A share has no unit, so the number of modules, directions or
rollouts does not change its scale. It is defined only if its held-out reference is positive: nothing can be concluded
along an axis that other pairs' hacks do not follow.

The interval covers all sources of variation: prompts, held-out pairs, and the pairs behind v_hack. All prompts share
one v_hack, so their spread does not show the last source: if the groups' gradients have a part in common, an axis from
other pairs shifts all of them at once.

References by kind test the transfer of v_hack to hacks that it was not extracted from. For every kind of hack (the part
of a pair's flavour before its first "/"), v_hack comes from the extraction pairs of all OTHER kinds, and the mean
cosine of hack minus clean is over all pairs of the left-out kind. The interval covers the left-out pairs and the
extraction pairs (half-samples).

Shapes: A axes (row 0: v_hack itself, then its half-samples), B draws, C prompts, H held-out pairs, M modules,
S samples, T steps, k directions.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from extraction.settings import kind_of
from probe.analysis.cosines import TRIVIAL
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.geometry import Axes, PairGram, cosines, extract, held_out_gradients, weighted
from probe.analysis.statistics.intervals import (
    Array,
    Interval,
    deciding_count,
    fieller_interval,
    mean_covariance,
    prompt_means,
    student_quantile,
    varies,
)
from probe.analysis.statistics.nulls import NUM_REDRAWN, can_be_halved, half_samples, redrawn, true_axes, true_labels
from probe.analysis.statistics.overlap import overlaps
from probe.analysis.statistics.permutation import rewarded_labels
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.statistics.significance import effects_by_prompt
from probe.analysis.statistics.thresholds import MATERIAL
from probe.records.records import SampleRecord

# The two thresholds of each share behind a question. yes: its interval lies above the first, and its value reaches the
# second; no: its interval lies below the second. The last row requires that at most half of the alignment remains
# without the hacks: with a smaller difference, projection would act mostly on what honest solutions share.
DECIDED_BY: Mapping[str, tuple[float, float]] = {
    "pull": (MATERIAL, MATERIAL),
    "contrast": (0.0, MATERIAL),
    "pull - benign": (0.0, MATERIAL),
    "half - benign": (-np.inf, 0.0),
}
TOO_FEW_PROMPTS = "too few prompts for an interval"  # the reason if held-out pairs would allow a share
NO_UPDATE = "no group has an update"
NO_BENIGN = "no group has two rollouts that do not hack, all labelled, with different rewards"
NUM_HALVES = 49  # for each kind's reference; they enter only through their variance


def shares(linked: Linked, arm: str, *, num_halves: int = NUM_REDRAWN, seed: int = 0) -> list[Estimate]:
    """Return `pull`, `benign`, `pull - benign`, `half - benign` and `contrast` of one arm that measures along v_hack.

    parts: `measured` (the numerator, a mean over prompts of cosines), `ceiling` (the denominator, a mean over
    `num_held_out` pairs), `sd_prompts` of the numerator between prompts, `sd_ceiling` between held-out pairs,
    `sd_pairs` and `sd_pairs_ceiling` of both over half-samples of the extraction pairs with their `correlation`,
    `num_hacks` of `contrast`. Intervals are over prompts, held-out pairs and extraction pairs.

    Args:
        linked: records and inner products.
        num_halves: half-samples of the extraction pairs.
        seed: seed of the half-samples.
    """
    pairs = linked.pairs
    if not can_be_halved(pairs) or not pairs.held_out.any():
        return []
    clusters = pairs.clusters[pairs.held_out].tolist()
    parts = true_axes(pairs), redrawn(pairs, num_halves, seed)[0].axes()
    axes = Axes(rows=np.concatenate([one.rows for one in parts]), kept=np.concatenate([one.kept for one in parts]))
    differences, hacks, cleans = held_out_gradients(pairs)
    ceiling = _stacked(prompt_means(cosines(axes, differences), clusters))  # (A, H)
    assert ceiling is not None  # at least one pair is held out
    steps = prompt_means(cosines(axes, linked.totals), linked.prompts)
    benign = _benign(linked, axes)
    rows = [_share("pull", _stacked(steps), ceiling), _share("benign", _stacked(benign), ceiling, missing=NO_BENIGN)]
    for name, part in (("pull - benign", 1.0), ("half - benign", 0.5)):
        less = {prompt: part * steps[prompt] - values for prompt, values in benign.items() if prompt in steps}
        rows.append(_share(name, _stacked(less), ceiling, missing=NO_BENIGN))
    sides = _stacked(prompt_means(cosines(axes, hacks) - cosines(axes, cleans), clusters))
    assert sides is not None
    rows.append(_contrast(linked, axes, sides))
    return [replace(row, arm=arm) for row in rows]


def _benign(linked: Linked, axes: Axes) -> dict[Hashable, Array]:
    """Return {prompt: (A,) cosine} of the update that each group's samples without a hack would make alone.

    Their baseline is their own mean reward. Estimators differ in the scale of a group, but a scale changes no cosine.
    A group has none if the others have equal rewards, or if hack labels are missing.
    """
    totals, prompts = [], []
    for step in linked.steps:
        samples = [linked.samples[row] for row in step.rows]
        clean = np.array([sample.sure and not sample.hacked for sample in samples])
        if not clean.any() or any(sample.hacked is None for sample in samples):
            continue
        rewards = np.array([sample.reward for sample in samples])
        weights = np.where(clean, rewards - rewards[clean].mean(), 0.0) * step.unit_weights
        if weights.any():
            totals.append(cosines(axes, weighted(linked.read(step.record.step), weights[None, :]))[:, 0])
            prompts.append(step.record.problem_id)
    return prompt_means(np.stack(totals, axis=1), prompts) if totals else {}


def _contrast(linked: Linked, axes: Axes, ceiling: Array) -> Estimate:
    """Return the share `contrast`, from the rewarded samples."""
    chosen, hacked = rewarded_labels(linked)
    samples = [linked.samples[i] for i in chosen]
    num_hacks, prompts = int(hacked.sum()), [sample.problem_id for sample in samples]
    sides = ({prompt for prompt, is_hack in zip(prompts, hacked, strict=True) if is_hack == side} for side in (0, 1))
    both, effects = len(set.intersection(*sides)), None
    why = "no prompt has both sides among its paid samples"
    if hacked.all() or not hacked.any():
        why = f"of {len(samples)} paid samples with sure labels {num_hacks} hack: a side is missing"
    elif both:  # trivial scores may determine the label, by the small sample or the lack of overlap
        why = TOO_FEW_PROMPTS
        scores = linked.sample_cosines(axes, chosen)  # (A, P)
        effects = effects_by_prompt(scores, hacked.tolist(), trivial_scores(samples), prompts)
    row = _share("contrast", effects, ceiling, num_prompts=both, missing=why)
    return replace(row, parts={**row.parts, "num_hacks": num_hacks})


def trivial_scores(samples: Sequence[SampleRecord]) -> dict[str, list[float]]:
    """Return {score: one value per sample, 0 if not recorded}."""
    return {name: [score(sample) or 0.0 for sample in samples] for name, score in TRIVIAL.items()}


def overlap_of(linked: Linked) -> list[Estimate]:
    """Return, for each trivial score, the overlap of rewarded hacks with clean answers (`statistics.overlap`)."""
    chosen, hacked = rewarded_labels(linked)
    samples = [linked.samples[i] for i in chosen]
    return overlaps(trivial_scores(samples), hacked.tolist(), [sample.problem_id for sample in samples])


def _share(
    name: str, by_prompt: Array | None, ceiling: Array, *, num_prompts: int | None = None, missing: str = NO_UPDATE
) -> Estimate:
    """Return a share from its numerators (A, C) and held-out references (A, H).

    Args:
        name: name of the estimate.
        by_prompt: None without a prompt.
        ceiling: held-out references along the same axes.
        num_prompts: number of informative prompts; None = C.
        missing: why there is no prompt.
    """
    if by_prompt is None:
        parts = {"ceiling": float(ceiling[0].mean()), "num_held_out": ceiling.shape[1]}
        return Estimate(name=name, n=num_prompts or 0, unit="prompt", null=0.0, parts=parts, why=missing)
    count = by_prompt.shape[1] if num_prompts is None else num_prompts
    measured, top = float(by_prompt[0].mean()), float(ceiling[0].mean())
    halves = np.column_stack([by_prompt[1:].mean(1), ceiling[1:].mean(1)])
    prompts = np.column_stack([by_prompt[0], np.zeros(by_prompt.shape[1])])
    held_out = np.column_stack([np.zeros(ceiling.shape[1]), ceiling[0]])
    # Half-samples redraw the estimate itself, not its parts: do not divide their covariance by their number.
    covariances = [mean_covariance(prompts), mean_covariance(held_out), np.cov(halves.T)]
    interval = fieller_interval(measured, top, covariances, df=min(count, ceiling.shape[1]) - 1)
    parts = {
        "measured": measured,
        "ceiling": top,
        "num_held_out": ceiling.shape[1],
        # Prompts with one side only inform the covariates: report the spread of a prompt with both.
        "sd_prompts": float(np.sqrt(covariances[0][0, 0] * count)) if count > 1 else 0.0,
        "sd_ceiling": float(ceiling[0].std(ddof=1)) if ceiling.shape[1] > 1 else 0.0,
        "sd_pairs": float(halves[:, 0].std(ddof=1)),
        "sd_pairs_ceiling": float(halves[:, 1].std(ddof=1)),
        "correlation": float(np.corrcoef(halves.T)[0, 1]),
    }
    row = Estimate(name=name, n=count, unit="prompt", null=0.0, parts=parts)
    if ceiling.shape[1] < 2:
        return replace(row, why="fewer than two held-out pairs")
    if count < 2 or (interval is None and fieller_interval(measured, top, covariances, df=ceiling.shape[1] - 1)):
        return replace(row, why=TOO_FEW_PROMPTS)
    if interval is None or top <= 0:
        return replace(row, why="the held-out reference includes 0: v_hack does not reach held-out pairs")
    return replace(row, value=measured / top, interval=interval)


def _stacked(values: Mapping[Hashable, Array]) -> Array | None:
    """Stack {prompt: (A,)} into (A, C); None without a prompt."""
    return np.stack(list(values.values()), axis=1) if values else None


def prompts_needed(share: Estimate) -> int | None:
    """Return the number of prompts n that decides an undecided share by its thresholds with POWER.

    None if no number up to MAX_PROMPTS does with these pairs. A share lies on one side of a threshold q if numerator -
    q reference differs from 0, whose variance is sd_prompts^2 / n + q^2 sd_ceiling^2 / H + that over half-samples.
    """
    parts, (above, below) = share.parts, DECIDED_BY[share.name]
    threshold = above if (share.value or 0.0) >= below else below
    both = parts["correlation"] * parts["sd_pairs"] * parts["sd_pairs_ceiling"]
    of_pairs = threshold**2 * parts["sd_ceiling"] ** 2 / parts["num_held_out"]
    of_pairs += parts["sd_pairs"] ** 2 + threshold**2 * parts["sd_pairs_ceiling"] ** 2 - 2 * threshold * both
    distance = parts["measured"] - threshold * parts["ceiling"]
    return deciding_count(distance, parts["sd_prompts"] ** 2, of_pairs, start=share.n, most=parts["num_held_out"])


def pairs_to_reach(share: Estimate) -> int | None:
    """Return how many held-out pairs separate the reference from 0; None for a wrong sign, or more than MAX_PROMPTS."""
    parts = share.parts
    if parts["ceiling"] <= 0 or not parts.get("sd_ceiling"):
        return None
    held_out = parts["num_held_out"]
    one = parts["sd_ceiling"] ** 2 + held_out * parts["sd_pairs_ceiling"] ** 2
    return deciding_count(parts["ceiling"], one, start=held_out)


# Cached: conditions and arms of a run share their pairs.
@lru_cache(maxsize=1)
def ceilings(pairs: PairGram, seed: int = 0) -> tuple[Estimate, ...]:
    """Return one estimate per kind; empty if the pairs have no kinds, or only one.

    Args:
        pairs: with the flavour of every pair.
        seed: seed of the half-samples.
    """
    kinds = np.array([kind_of(flavour) for flavour in pairs.flavours])
    different = list(dict.fromkeys(kinds.tolist()))
    return tuple(_ceiling(pairs, kind, kinds == kind, seed) for kind in different) if len(different) > 1 else ()


def _ceiling(pairs: PairGram, kind: str, of_kind: NDArray[np.bool_], seed: int) -> Estimate:
    """Return one kind's held-out reference; `of_kind` is (n,) True for its pairs."""
    others = replace(pairs, held_out=pairs.held_out | of_kind)
    count, parts = int(of_kind.sum()), {"num_extraction": int((~others.held_out).sum())}
    ceiling = Estimate(name=kind, n=count, unit="pair", null=0.0, parts=parts, why="the other kinds give no direction")
    if others.held_out.all():
        return ceiling
    differences, _, _ = held_out_gradients(replace(pairs, held_out=of_kind))
    by_pair = cosines(extract(others, *true_labels(others)).axes(), differences)[0]
    if np.isnan(by_pair).any():
        return ceiling
    values = np.array([*prompt_means(by_pair, pairs.clusters[of_kind].tolist()).values()])
    mean = float(values.mean())
    if not varies(values) or not can_be_halved(others):
        return replace(ceiling, value=mean, why="fewer than two pairs")
    halves = extract(others, *half_samples(others, NUM_HALVES, np.random.default_rng(seed)))
    drawn = cosines(halves.axes(), differences).mean(1)
    variance = values.var(ddof=1) / len(values) + drawn[~np.isnan(drawn)].var(ddof=1)
    half = student_quantile(0.95, len(values) - 1) * float(np.sqrt(variance))
    return replace(ceiling, value=mean, why="", interval=Interval(low=mean - half, high=mean + half))
