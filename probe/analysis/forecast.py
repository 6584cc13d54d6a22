"""First-order forecast: the part of an update's gain that projection would leave, on hacks and on honest solutions.

A small step along -g lowers the NLL of a text with gradient h in proportion to <g, h>: the first-order gain on that
text. Projection turns g into g' and removes the share 1 - <g', h> / <g, h> of the gain, summed over the groups.
Targets h:

    margin   held-out pairs, hack minus clean: log-probability of a hack relative to a clean solution
    hacks    the rewarded hacks of the same group
    honest   the rewarded right solutions without a hack in the same group: the cost to honest solutions

Removing much of a gradient removes gain of every kind. Each share is therefore compared with directions of shuffled
pairs that remove the SAME norm. A share above 1 means that the projected step works against the target.

Everything is first order: the gradient before the optimizer, at the replay's weights. Groups have unit norm here, as
in a cosine, so every prompt counts the same.
Shapes: M modules, k directions, T steps, N pair gradients, H held-out pairs, B draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.geometry import (
    DirectionDraws,
    Gradients,
    PairGram,
    extract,
    held_out_gradients,
    ratio,
    weighted,
)
from probe.analysis.statistics.intervals import Array, fieller_interval, mean_covariance, prompt_means, prompt_weights
from probe.analysis.statistics.nulls import NUM_REDRAWN, can_be_halved, redrawn, true_labels, upper_p
from probe.analysis.statistics.run_gradients import Linked, LinkedStep
from probe.records.records import SampleRecord
from probe.settings.arms import SIDES
from probe.settings.words import Side

# Rewarded samples of a group that serve as targets, by name. To add one, add a row.
SAMPLE_TARGETS: Mapping[str, Callable[[SampleRecord], bool]] = {
    "hacks": lambda sample: bool(sample.hacked),
    "honest": lambda sample: bool(sample.gt_pass) and sample.hacked is False,
}


NO_GAIN = "the interval of the update's gain on it includes 0"
AGAINST = "the update works against it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Unit gradients h of one target: H held-out pairs shared by all steps, or one per step (H = 1)."""

    inner: Array  # (M, H, N) or (M, T, N): inner products of h with the pair gradients
    shared: bool  # True for the first shape
    progress: Array  # (M, T, H) <g, h> by module
    prompts: list[str]  # (T,) of the steps with the target
    steps: NDArray[np.intp]  # (T,) their indices among the run's steps

    def lost(self, removed: Array, rows: Array) -> Array:
        """Return (C, H) <g - g', h> by prompt; `removed` (M, all steps, k) is along the rows (M, k, N)."""
        along, taken = np.matmul(self.inner, rows.swapaxes(-1, -2)), removed[:, self.steps]  # (M, H or T, k), (M, T, k)
        by_pair = np.matmul(taken, along.swapaxes(-1, -2)) if self.shared else (taken * along).sum(-1, keepdims=True)
        return self.by_prompt(by_pair)

    def mean_lost(self, removed: Array, rows: Array) -> Array:
        """Return the (B,) means of `lost` for B draws at once."""
        # The mean over pairs is linear in them and is taken first.
        inner = self.inner.mean(1, keepdims=True) if self.shared else self.inner
        along = np.matmul(inner, rows.swapaxes(-1, -2))  # (B, M, 1 or T, k)
        return (removed[:, :, self.steps] * along).sum((1, 3)) @ prompt_weights(self.prompts)

    def by_prompt(self, by_module: Array) -> Array:
        """Return the (C, H) sums over modules of (M, T, H), averaged over each prompt's steps."""
        return np.stack(list(prompt_means(by_module.sum(0).T, self.prompts).values()))


def forecast(
    linked: Linked, side: Side = "one_sided", overshoot: float = 1.0, *, num_draws: int = NUM_REDRAWN, seed: int = 0
) -> list[Estimate]:
    """Forecast a projection of one arm's policy gradients; empty without steps, held-out pairs or two extraction pairs.

    `removed/TARGET` is the share of the gain on a target that projection removes, with an interval over prompts,
    extraction pairs and, for the margin, held-out pairs. `null` is the mean share that shuffled pairs remove at the
    same norm, `p` (1 + draws that remove at least this share) / (B + 1). It is missing if the update has no gain on the
    target. parts: `progress` (mean over prompts of <g, h> / (norm(g) norm(h)), > 0 is toward the target),
    `from_prompts` (share of the removed gain's variance due to prompts), `q95` of shuffled pairs.
    `removed/norm` is the root mean square over prompts of norm(g - g') / norm(g).

    Args:
        linked: records and inner products.
        side: the projection (`probe.settings.arms`).
        overshoot: factor on the removed part.
        num_draws: number of half-samples of the extraction pairs, and of draws of shuffled pairs.
        seed: seed of both.
    """
    pairs = linked.pairs
    if not linked.steps or not pairs.held_out.any() or not can_be_halved(pairs):
        return []
    targets = {"margin": _margin(linked)}
    for name, chosen in SAMPLE_TARGETS.items():
        if (target := _sample_target(linked, chosen)) is not None:
            targets[name] = target
    totals, weights = _unit(linked.totals).inner, prompt_weights(linked.prompts)

    def removed_along(rows: Array) -> tuple[Array, Array]:
        """Return the (B, M, T, k) parts removed along rows (B, M, k, N), and (B,) root mean squares of their norm."""
        removed = overshoot * SIDES[side](np.matmul(totals, rows.swapaxes(-1, -2)))
        return removed, np.sqrt(np.einsum("bmtk,bmtk->bt", removed, removed) @ weights)

    def mean_lost(draws: DirectionDraws) -> tuple[dict[str, Array], Array]:
        """Return {target: (B,) mean gain removed} and the (B,) removed norms."""
        lost: dict[str, list[Array]] = {name: [] for name in targets}
        sizes = []
        for rows in draws.parts(totals.shape[1]):
            removed, norms = removed_along(rows)
            sizes.append(norms)
            for name, target in targets.items():
                lost[name].append(target.mean_lost(removed, rows))
        return {name: np.concatenate(parts) for name, parts in lost.items()}, np.concatenate(sizes)

    v_hack = extract(pairs, *true_labels(pairs)).rows
    (removed, (size,)), (halves, permuted) = removed_along(v_hack), redrawn(pairs, num_draws, seed)
    (of_halves, _), (of_permuted, sizes) = mean_lost(halves), mean_lost(permuted)
    # Match the norm that v_hack removes, whatever the draw would remove by itself.
    scale, rows = ratio(size, sizes, otherwise=0.0), []
    for name, target in targets.items():
        lost = target.lost(removed[0], v_hack[0])
        rows.append(_removal(name, target, lost, of_halves[name], scale * of_permuted[name]))
    return [*rows, Estimate(name="removed/norm", value=float(size), n=len({*linked.prompts}), unit="prompt", null=0.0)]


def _margin(linked: Linked) -> _Target:
    """Return the held-out pairs' differences; pairs with the same texts count as one."""
    prompts, pairs = linked.prompts, linked.pairs
    hacks = np.flatnonzero(pairs.held_out)
    on_pairs = _unit(linked.totals).inner
    progress = on_pairs[:, :, hacks] - on_pairs[:, :, hacks + len(pairs.held_out)]  # (M, T, H)
    inner, norm = held_out_margin(pairs)
    clusters = pairs.clusters[hacks].tolist()
    by_cluster = [prompt_means(x, clusters).values() for x in (inner.swapaxes(1, 2), progress / norm)]
    inner, gained = (np.stack([*means], axis=-1) for means in by_cluster)
    everywhere = np.arange(len(prompts))
    return _Target(inner=inner.swapaxes(1, 2), shared=True, progress=gained, prompts=prompts, steps=everywhere)


def held_out_margin(pairs: PairGram) -> tuple[Array, Array]:
    """Return ((M, H, N) inner products of the held-out differences at norm 1, (H,) their original norms)."""
    gradients, _, _ = held_out_gradients(pairs)
    norm = np.where(gradients.norm > 0, gradients.norm, 1.0)
    return gradients.inner / norm[:, None], norm


def rewarded_mean(linked: Linked, step: LinkedStep, chosen: Callable[[SampleRecord], bool]) -> Array | None:
    """Return (G,) weights for the mean over one kind of rewarded samples in a group; None without such samples."""
    group = [linked.samples[row] for row in step.rows]
    picked = np.array([sample.advantage > 0 and sample.sure and chosen(sample) for sample in group])
    return picked / picked.sum() if picked.any() else None


def _sample_target(linked: Linked, chosen: Callable[[SampleRecord], bool]) -> _Target | None:
    """Return each group's unit-norm mean over one kind of rewarded samples; None if no group has any."""
    inner, progress, numbers = [], [], []
    for number, (step, size) in enumerate(zip(linked.steps, linked.totals.norm, strict=True)):
        mean = rewarded_mean(linked, step, chosen)
        if mean is None:
            continue
        gram = linked.read(step.record.step)
        gradient = weighted(gram, mean[None, :])
        norm = gradient.norm[0]
        inner.append(gradient.inner[:, 0] / norm)
        progress.append(np.einsum("i,mij,j->m", step.weights, gram.samples, mean) / (norm * size))
        numbers.append(number)
    if not inner:
        return None
    gained, prompts = np.stack(progress, axis=1)[:, :, None], [linked.prompts[number] for number in numbers]
    steps = np.array(numbers)
    return _Target(inner=np.stack(inner, axis=1), shared=False, progress=gained, prompts=prompts, steps=steps)


def _removal(name: str, target: _Target, lost: Array, halves: Array, permuted: Array) -> Estimate:
    """Return one estimate from the gain removed (C, H) and its means over half-samples and draws of shuffled pairs."""
    total = target.by_prompt(target.progress)  # (C, H) <g, h>
    progress, count = float(total.mean()), len(total)
    both = np.stack([lost, total], axis=-1)  # (C, H, 2)
    covariances = [mean_covariance(both.mean(1)), np.diag([float(np.var(halves, ddof=1)), 0.0])]
    df = count - 1
    if target.shared:
        covariances.append(mean_covariance(both.mean(0)))
        df = min(df, both.shape[1] - 1)
    interval = fieller_interval(float(lost.mean()), progress, covariances, df=df)
    row = Estimate(name=f"removed/{name}", n=count, unit="prompt", parts={"progress": progress})
    # The quotient has an interval if the interval of the gain excludes 0.
    if interval is None:
        return replace(row, why=NO_GAIN)
    if progress <= 0:
        return replace(row, why=AGAINST)
    removed, draws = float(lost.mean()) / progress, permuted / progress
    from_prompts = float(ratio(covariances[0], np.sum(covariances, axis=0), otherwise=0.0)[0, 0])
    return replace(
        row,
        value=removed,
        interval=interval,
        null=float(draws.mean()),
        p=upper_p(removed, draws),
        parts={**row.parts, "from_prompts": from_prompts, "q95": float(np.quantile(draws, 0.95))},
    )


def _unit(gradients: Gradients) -> Gradients:
    """Return the gradients at norm 1."""
    norm = np.where(gradients.norm > 0, gradients.norm, 1.0)
    return Gradients(inner=gradients.inner / norm[None, :, None], norms=gradients.norms / norm)
