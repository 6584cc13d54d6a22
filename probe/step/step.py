"""`train_step`: groups through one forward and backward, then every loss variant and arm on the same gradients.

    g_i     = grad of sum_t -logp_it                 per sample, unit weight ("NLL gradient")
    total   = sum_i A_i w_i g_i                      the policy gradient of the step (ratio 1)
    arm     : cosines of `total` with the arm's directions before and after its projection

The gradient is linear in A_i w_i, so loss variants that differ in advantages or normaliser cost no pass. Token credit,
recorded ratios, a KL penalty and an entropy bonus weight tokens unequally inside the backward: every DIFFERENT W_it
costs one more pass (`probe.objective.weigh`), shared by variants with the same W. All bases share every pass.

The normalisers w_i average over all groups before the projection, which does not commute with a mean. Ranks split the
samples, and each rank weighs, sums and projects the whole step. G samples of all groups, g on this rank, T tokens, r
coordinates of a module, k directions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from extraction.batch import Batch, make_batch
from extraction.settings import Basis
from probe.objective.credit import credit_diagnostics
from probe.objective.weigh import Weighting, by_pass, weigh
from probe.settings.arms import Arm
from probe.settings.loss import LossSettings
from probe.settings.words import Side, Target
from probe.step.bases import Bases, Gradients, axis, token_shares
from probe.step.distributed import World
from probe.step.groups import Group, strata_of
from probe.step.projection import (
    Cosines,
    Projection,
    haar_variance,
    project_modules,
    removed_norm,
    rescaled,
    restrict_modules,
    sample_cosines,
    shrunk,
)
from probe.step.reference import References, needed
from probe.step.update import Updater, add

FLATNESS, RADIUS = 1e-2, 1e-3  # of the arm `flat` (arXiv 2602.18037)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One arm under one loss variant, with its directions and projection settings."""

    condition: str
    arm: Arm
    vectors: Mapping[str, Tensor]  # {module: (k, r)}
    side: Side
    overshoot: float = 1.0
    target: Target = "gradient"  # the arm projects the gradient or the update
    onto: Mapping[str, Tensor] | None = None  # {module: (K, d_out)} keep this part alone; None: off
    onto_dose: Mapping[str, Tensor] | None = None  # with the norm that these subspaces leave; None: off
    dose: Mapping[str, Tensor] | None = None  # match the norm that projecting these directions out removes; None: off
    age: int = 0  # optimizer steps since the directions were extracted
    overlap: float | None = None  # mean squared cosine of the principal angles with the first directions

    def projected(self, gradient: Mapping[str, Tensor]) -> Projection:
        """Project one gradient or update {module: (r,)}."""
        if self.onto is not None:
            kept = restrict_modules(gradient, self.vectors, self.onto)
            if self.onto_dose is not None:
                kept = rescaled(kept, restrict_modules(gradient, self.vectors, self.onto_dose).after.norm)
            return shrunk(gradient, kept) if self.arm.scales else kept
        overshoot = self.overshoot
        if self.dose is not None:
            wanted = removed_norm(gradient, self.dose, side=self.side, overshoot=overshoot)
            removed = removed_norm(gradient, self.vectors, side=self.side)
            # If these directions remove nothing, no factor changes that.
            overshoot = float(wanted / removed) if removed > 0 else 0.0
        projected = project_modules(gradient, self.vectors, side=self.side, overshoot=overshoot)
        return shrunk(gradient, projected) if self.arm.scales else projected


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """The measurements of one arm under one loss variant; vectors are float64 on the CPU."""

    measure: Measure
    projection: Projection  # without its gradients: memory would grow with arms times loss variants
    contribution_norms: Tensor  # (G,) norm of each sample's contribution
    haar_sd: float
    sample_haar_sd: Tensor  # (G,) of cos_contrib; of cos_nll too unless tokens are weighted
    cos_nll: Tensor  # (G,) signed cosine of each sample's NLL gradient; NaN where it is zero
    cos_contrib: Tensor  # (G,) of the sample's contribution; NaN where that is zero
    update: Cosines | None  # of the realised update; None when nothing was stepped
    token_shares: Tensor | None  # (G, T), a row adds up to the cosine behind cos_contrib; None: not asked for
    broken: str | None  # the first number that is not finite: with it, no step was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: its shared numbers, and the arms in the order of the measures.

    A new measure is a field of `ArmResult`, filled in `_arm_result`, with a wire name in `probe.runs.join`.
    """

    nll: Tensor  # (G,) nats per scored token
    unit: Gradients  # (g, r) g_i without token credit, of this rank's samples
    additivity_errors: dict[Basis, float]
    frac_planning: float
    exec_surprisal_var: float | None
    weightings: dict[str, Weighting]  # by loss variant
    arms: list[ArmResult]


def train_step(
    bases: Bases,
    groups: Sequence[Group],
    measures: Sequence[Measure],
    *,
    conditions: Mapping[str, LossSettings],
    planning: Sequence[Sequence[bool]],
    on_policy: Sequence[bool] | None = None,
    pad_id: int,
    references: References,
    updater: Updater | None = None,
    check_whole: bool = False,
    attributed: Measure | None = None,
) -> StepResult:
    """Take one step on its groups; `probe replay` and `probe train` both call exactly this.

    Args:
        bases: several only at frozen weights.
        groups: at least one, all of one size.
        measures: every arm under every loss variant; with an updater, exactly one.
        conditions: the objectives by name.
        planning: marks planning tokens among the completion ids, (G,) ragged.
        on_policy: marks the samples over which KL and token credit are measured, (G,): the current policy sampled them.
            None = all.
        references: of the KL penalty.
        updater: steps the coordinates along the arm's gradient; None leaves the weights frozen.
        check_whole: check the additivity of all modules by a separate pass in every basis, not of one module only.
        attributed: one of `measures`; its sample cosines are split over tokens.
    """
    if updater is not None and (len(measures) != 1 or bases.trained is None):
        found = f"{len(measures)} arms, trained: {bases.trained is not None}"
        raise ValueError(f"an updater steps one arm of a policy that is trained, found {found}")
    batch = _batch(groups, pad_id, bases)
    along = None if attributed is None else axis(attributed.arm.basis, attributed.vectors)
    unit, errors = bases.run_checked(batch, turn=groups[0].step, whole=check_whole, axis=along)
    planned = _on_completions(planning, batch)
    counted = batch.completion_mask
    if on_policy is not None:
        counted = counted & torch.tensor(on_policy, device=bases.device)[:, None]
    weightings = _weightings(conditions, groups, batch, unit.token_logprobs, planned, counted, references, bases)
    frac_planning, exec_surprisal_var = credit_diagnostics(unit.token_logprobs, counted, planned)
    nll = _sample_measures(unit.gradients, bases.world, len(batch))
    results: dict[tuple[str, str], ArmResult] = {}
    for shared, names in by_pass(weightings):
        if shared.token_weights is None:
            weighted, contributions = unit, nll
        else:
            weighted = bases.run(batch, shared.token_weights, along)
            contributions = _sample_measures(weighted.gradients, bases.world, len(batch))
        for name in names:
            summed = partial(bases.total, gradients=weighted.gradients)
            if updater is None:
                totals = summed(weightings[name].scale)
            else:
                totals = _stepped(bases, groups, batch, weightings[name], measures[0], updater, summed)
            for measure in measures:
                if measure.condition != name:
                    continue
                dots = weighted.token_dots if measure is attributed else None
                results[name, measure.arm.name] = _arm_result(
                    measure,
                    weightings[name],
                    totals[measure.arm.basis],
                    nll=nll(measure),
                    contributions=contributions(measure),
                    updater=updater,
                    token_dots=dots,
                )
    return StepResult(
        nll=(-unit.token_logprobs.sum(dim=1).double() / batch.completion_lengths).cpu(),
        unit=unit.gradients,
        additivity_errors=errors,
        frac_planning=frac_planning,
        exec_surprisal_var=exec_surprisal_var,
        weightings=weightings,
        arms=[results[m.condition, m.arm.name] for m in measures],
    )


def step_only(
    bases: Bases,
    groups: Sequence[Group],
    measure: Measure,
    objective: LossSettings,
    *,
    planning: Sequence[Sequence[bool]],
    pad_id: int,
    references: References,
    updater: Updater,
) -> str | None:
    """Make the update of `train_step`, up to rounding, at a part of the cost.

    One copy of a prompt serves all its answers, and token weights cost a forward, not a pass: nothing is measured of
    single samples. Arguments as in `train_step`.

    Returns:
        The first number that is not finite, in which case no step was taken; else None.
    """
    batch = _batch(groups, pad_id, bases)
    # Zeros stand for numbers that the objective does not read.
    current = bases.score(batch) if objective.reads_logprobs else torch.zeros(batch.ids.shape, device=bases.device)
    mask, planned = batch.completion_mask, _on_completions(planning, batch)
    (weighting,) = _weightings({"": objective}, groups, batch, current, planned, mask, references, bases).values()
    tokens = counted_weights(weighting, batch)

    def summed(scale: Tensor) -> Gradients:
        return _summed(bases, batch, scale[:, None] * tokens)

    totals = _stepped(bases, groups, batch, weighting, measure, updater, summed)
    projection = _gated(measure, totals[measure.arm.basis])
    broken = _broken(weighting, projection)
    if not broken:
        updater.step(projection.gradients, measure.projected)
    return broken


def _stepped(
    bases: Bases,
    groups: Sequence[Group],
    batch: Batch,
    weighting: Weighting,
    measure: Measure,
    updater: Updater,
    summed: Callable[[Tensor], Gradients],
) -> Gradients:
    """Return the gradient of the loss that the arm steps along, before its projection, {basis: {module: (r,)}}.

    Args:
        summed: gives the gradient of sum_i scale_i (-sum_t W_it logp_it), from scale (G,).
    """
    totals: Gradients = summed(weighting.scale)
    if (quarantine := updater.quarantine) is not None:
        # All rollouts move the quarantine, the unflagged ones the rest.
        flags = [flag for group in groups for flag in group.flagged or [False] * len(group.keys)]
        kept = summed(weighting.scale.masked_fill(torch.tensor(flags, device=batch.ids.device), 0.0))
        totals = {
            basis: {m: torch.where(quarantine[m], g, kept[basis][m]) for m, g in modules.items()}
            for basis, modules in totals.items()
        }
    if measure.arm.flat:
        totals = flattened(bases, batch, weighting.scale[:, None] * counted_weights(weighting, batch), totals)
    return totals


def counted_weights(weighting: Weighting, batch: Batch) -> Tensor:
    """Return W (G, T), 1 on every completion token if the weighting has none."""
    return batch.completion_mask if weighting.token_weights is None else weighting.token_weights


def _summed(bases: Bases, batch: Batch, weights: Tensor) -> Gradients:
    """Return the gradient {basis: {module: (r,)}} of -sum W_it logp_it, without the samples'."""
    sums = bases.run(batch, weights, share=True).gradients
    return bases.total(torch.ones(len(batch), device=weights.device, dtype=weights.dtype), sums)


def flattened(bases: Bases, batch: Batch, weights: Tensor, totals: Gradients) -> Gradients:
    """Add the gradient of FLATNESS / 2 norm(g)^2 to g, by a second gradient at a distance RADIUS along g:

        g + FLATNESS norm(g) (g(theta + RADIUS g / norm(g)) - g) / RADIUS

    Args:
        bases: of a policy that is trained.
        weights: W_it of the loss, held fixed.
        totals: g, {basis: {module: (r,)}} of the one basis.
    """
    assert bases.trained is not None
    ((basis, g),) = totals.items()
    norm = float(torch.stack([part.double().square().sum() for part in g.values()]).sum().sqrt())
    if norm == 0:
        return totals
    with bases.trained.at(add(bases.trained.values(), g, scale=RADIUS / norm)):
        ahead = _summed(bases, batch, weights)[basis]
    return {basis: {module: part + FLATNESS * norm * (ahead[module] - part) / RADIUS for module, part in g.items()}}


def _batch(groups: Sequence[Group], pad_id: int, bases: Bases) -> Batch:
    prompts = [ids for group in groups for ids in group.prompt_ids]
    completions = [ids for group in groups for ids in group.completion_ids]
    masks = [mask for group in groups for mask in group.completion_masks]
    return make_batch(prompts, completions, pad_id, masks).to(bases.device)


def _weightings(
    conditions: Mapping[str, LossSettings],
    groups: Sequence[Group],
    batch: Batch,
    current: Tensor,
    planned: Tensor,
    counted: Tensor,
    references: References,
    bases: Bases,
) -> dict[str, Weighting]:
    """Apply each objective to the step; the log-probabilities that they compare with are computed once."""
    names = {loss.reference for loss in conditions.values() if loss.reference is not None}
    needs_old = any(loss.old_logprobs == "recorded" for loss in conditions.values())
    rows = [logprobs for group in groups for logprobs in group.sampling_logprobs if logprobs is not None]
    recorded = None
    # All rollouts or none: `needed` refuses where the objective asks for them.
    if (needs_old or "recorded" in names) and len(rows) == len(batch):
        recorded = _on_completions(rows, batch).to(current.dtype)
    old = needed(recorded) if needs_old else None
    if "ema" in names:
        names.add("base")  # `weigh` measures the KL from the base, too, if the reference moves
    # Sorted: with several ranks, all must score the references in the same order.
    scores = references.scores(sorted(names), bases, batch, current, recorded)
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64, device=batch.ids.device)
    weightings = {}
    for name, loss in conditions.items():
        strata = None
        if loss.strata is not None:
            strata = torch.tensor(strata_of(groups, loss.strata), device=batch.ids.device)
        weightings[name] = weigh(
            loss, rewards, batch, current, planned, counted, old=old, references=scores, strata=strata
        )
    return weightings


def _on_completions(values: Sequence[Sequence[float]], batch: Batch) -> Tensor:
    """Place one bool or number for every completion id of every sample, (G, T); 0 where no token is scored."""
    device = batch.ids.device
    flat = torch.tensor([value for row in values for value in row], device=device)
    starts = batch.lengths - torch.tensor([len(row) for row in values], device=device)
    is_completion = batch.attention_mask & (torch.arange(batch.ids.shape[1], device=device) >= starts[:, None])
    placed = torch.zeros(batch.ids.shape, dtype=flat.dtype, device=device).masked_scatter(is_completion, flat)
    return placed.masked_fill(~batch.completion_mask, 0)


# Cosines, Haar deviations and norms of per-sample gradients against an arm's directions; (G,), float64 on the CPU.
SampleMeasures = tuple[Tensor, Tensor, Tensor]


def _sample_measures(gradients: Gradients, world: World, num_samples: int) -> Callable[[Measure], SampleMeasures]:
    """Return a function that measures all ranks' gradients against directions, once for directions that arms share."""
    known: dict[int, SampleMeasures] = {}  # by identity of the directions, which live as long as the step

    def measured(measure: Measure) -> SampleMeasures:
        key = id(measure.vectors)
        if key not in known:
            in_basis = gradients[measure.arm.basis]
            cosines = sample_cosines(in_basis, measure.vectors)
            haar_sd = haar_variance(in_basis, measure.vectors).sqrt()
            local = torch.stack([cosines.cos, haar_sd, cosines.norm], dim=1).double().cpu()
            cos, haar_sd, norm = world.join(local, num_samples).unbind(1)
            known[key] = cos, haar_sd, norm
        return known[key]

    return measured


def _arm_result(
    measure: Measure,
    weighting: Weighting,
    total: Mapping[str, Tensor],
    *,
    nll: SampleMeasures,
    contributions: SampleMeasures,
    updater: Updater | None,
    token_dots: Tensor | None,
) -> ArmResult:
    """Project the gradient `total` {module: (r,)} as the arm does, step along it with an updater, and measure both."""
    projection = _gated(measure, total)
    broken = _broken(weighting, projection)
    realised = None
    # A step along a gradient that is not finite would destroy the policy: the record of the step is kept instead.
    if updater is not None and not broken:
        realised = sample_cosines(updater.step(projection.gradients, measure.projected), measure.vectors)
    scale = weighting.scale.cpu()
    cos, haar_sd, norm = contributions
    return ArmResult(
        measure=measure,
        projection=replace(projection, gradients={}),
        contribution_norms=scale.abs() * norm,
        haar_sd=float(haar_variance(total, measure.vectors).sqrt()),
        sample_haar_sd=haar_sd,
        cos_nll=nll[0],
        cos_contrib=torch.where(scale == 0, torch.nan, torch.sign(scale) * cos),
        update=realised,
        token_shares=None if token_dots is None else token_shares(token_dots, norm),
        broken=broken,
    )


def _gated(measure: Measure, total: Mapping[str, Tensor]) -> Projection:
    """Project the gradient {module: (r,)} as the arm does; arms that do not project gradients keep it."""
    if measure.arm.acts and measure.target == "gradient":
        return measure.projected(total)
    cosines = sample_cosines(total, measure.vectors)
    zero = torch.zeros_like(cosines.cos)
    return Projection(gradients=dict(total), before=cosines, after=cosines, frac_fired=zero)


def _broken(weighting: Weighting, projection: Projection) -> str | None:
    """Return the first number of the step that is not finite, as "NAME is VALUE"; None if all are finite."""
    numbers = {f"kl/{name}": value for name, value in weighting.kl.items()}
    numbers |= {f"ratio/{name}": value for name, value in weighting.ratio.items()}
    norms = {"grad_norm": projection.before.norm, "grad_norm after the projection": projection.after.norm}
    numbers |= {name: float(norm) for name, norm in norms.items()} | {"loss": weighting.loss}
    return next((f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)), None)
