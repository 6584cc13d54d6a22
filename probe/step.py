"""The step: its groups through one forward and backward, then every condition and arm on the same gradients.

    g_i     = grad of sum_t -logp_it                 per sample, unit weight ("NLL gradient")
    total   = sum_i A_i w_i g_i                      the policy gradient of the step (ratio 1)
    arm     : cosines of `total` with the arm's directions before and after its gate

The gradient is linear in A_i w_i, so conditions that differ in advantages or normaliser cost no pass. Token credit c_it
weights tokens unequally inside the backward: every DIFFERENT credit costs one more pass, whose g_i is the gradient of
sum_t -c_it logp_it; conditions with the same credit share it. All bases share every pass.

The normalisers w_i are those of the mean over all groups, so that the mean comes before the gate, which does not
commute with it. G samples of all groups together, T tokens, N completion tokens, r coordinates of a module, k
directions, M modules. The step returns; the loop writes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from extraction.batch import Batch, make_batch
from extraction.vocabulary import Basis
from probe.arms import Arm
from probe.attribution import axis, token_shares
from probe.credit import credit_diagnostics
from probe.objective import Objective
from probe.optimizer import Stepper
from probe.passes import Bases, Gradients, weighted_sums
from probe.projection import Gate, Projection, haar_variance, project_modules, sample_cosines
from probe.sources import Group
from probe.weighting import Weighting, by_credit, weigh


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One arm under one condition, with the directions and the gate settings that it uses."""

    condition: str
    arm: Arm
    vectors: Mapping[str, Tensor]  # {module: (k, r)}
    gate: Gate
    overshoot: float = 1.0
    preserve_magnitude: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm measured under one condition; scalars are of the whole gradient, vectors are (G,)."""

    condition: str
    arm: str
    basis: Basis
    projection: Projection  # without its gradients: memory would grow with arms times conditions
    contribution_norms: Tensor  # (G,) norm of A_i w_i g_i
    haar_sd: float
    sample_haar_sd: Tensor  # (G,) of cos_contrib; of cos_nll too unless there is token credit
    cos_nll: Tensor  # (G,) signed cosine of each sample's NLL gradient; NaN where it is zero
    cos_contrib: Tensor  # (G,) of A_i g_i; NaN where A_i = 0
    cos_update: float  # of the realised update; NaN when nothing was stepped
    hackward_frac_update: float
    token_shares: Tensor | None  # (G, T), a row adds up to the cosine behind cos_contrib; None: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: what is shared, and the measures in the order in which they were asked for."""

    nll: Tensor  # (G,) nats per completion token
    unit: Gradients  # (G, r) g_i without token credit
    additivity_errors: dict[Basis, float]
    frac_planning: float
    exec_surprisal_var: float | None
    weightings: dict[str, Weighting]  # by condition
    arms: list[ArmResult]


def train_step(
    bases: Bases,
    groups: Sequence[Group],
    measures: Sequence[Measure],
    *,
    conditions: Mapping[str, Objective],
    planning: Sequence[Sequence[bool]],
    pad_id: int,
    stepper: Stepper | None = None,
    check_whole: bool = False,
    attributed: Measure | None = None,
) -> StepResult:
    """One step on its groups; `probe replay` and `probe train` both call exactly this.

    Args:
        bases: one adapted copy of the policy for each basis; several only at frozen weights.
        groups: at least one, all of one size.
        measures: every arm under every condition; with a stepper, exactly one.
        conditions: the objectives by name.
        planning: which completion tokens are planning tokens, (G,) ragged.
        stepper: steps the coordinates along the arm's gradient; None leaves the weights frozen.
        check_whole: check the additivity of all modules by a pass of its own in every basis, not of one module only.
        attributed: one of `measures`, whose sample cosines are split over tokens.
    """
    if stepper is not None and (len(measures), len(bases.coordinates)) != (1, 1):
        raise ValueError(f"a stepper steps one arm in one basis, found {len(measures)} in {len(bases.coordinates)}")
    prompts = [ids for group in groups for ids in group.prompt_ids]
    completions = [ids for group in groups for ids in group.completion_ids]
    batch = make_batch(prompts, completions, pad_id).to(bases.device)
    along = None if attributed is None else axis(attributed.arm.basis, attributed.vectors)
    unit, errors = bases.run_checked(batch, turn=groups[0].step, whole=check_whole, axis=along)
    planned = _on_completions(planning, batch)
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64, device=bases.device)
    weightings = {name: weigh(own, rewards, batch, unit.token_logprobs, planned) for name, own in conditions.items()}
    nll = _sample_measures(unit.gradients)
    results: dict[tuple[str, str], ArmResult] = {}
    for credit, names in by_credit(weightings):
        own = unit if credit is None else bases.run(batch, credit, along)
        contributions = nll if credit is None else _sample_measures(own.gradients)
        for name in names:
            totals = weighted_sums(weightings[name].scale, own.gradients)
            for m in (measure for measure in measures if measure.condition == name):
                total = totals[m.arm.basis]
                projection = _project(m, total) if m.arm.projects else _leave(m, total)
                update = None if stepper is None else stepper.step(projection.gradients)
                haar_sd = float(haar_variance(total, m.vectors).cos.sqrt())
                dots = own.token_dots if m is attributed else None
                results[name, m.arm.name] = _arm_result(
                    m, weightings[name], projection, haar_sd, nll(m), contributions(m), update, dots
                )
    return StepResult(
        nll=(unit.nll.double() / batch.completion_lengths).cpu(),
        unit=unit.gradients,
        additivity_errors=errors,
        **credit_diagnostics(unit.token_logprobs, batch.completion_mask, planned),
        weightings=weightings,
        arms=[results[m.condition, m.arm.name] for m in measures],
    )


def _on_completions(marks: Sequence[Sequence[bool]], batch: Batch) -> Tensor:
    """(G, T) bool from one mark for each completion token, (G,) ragged."""
    flat = torch.tensor([mark for row in marks for mark in row], device=batch.ids.device)
    return torch.zeros_like(batch.completion_mask).masked_scatter(batch.completion_mask, flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMeasures:
    """Per-sample gradients against one arm's directions; each (G,), float64 on the CPU."""

    cos: Tensor
    haar_sd: Tensor
    norm: Tensor


def _sample_measures(gradients: Gradients) -> Callable[[Measure], SampleMeasures]:
    """A function that measures the gradients against an arm's directions, once for directions that arms share."""
    known: dict[int, SampleMeasures] = {}

    def measured(measure: Measure) -> SampleMeasures:
        key = id(measure.vectors)
        if key not in known:
            own = gradients[measure.arm.basis]
            found = sample_cosines(own, measure.vectors)
            haar_sd = haar_variance(own, measure.vectors).cos.sqrt()
            known[key] = SampleMeasures(
                cos=found.cos.double().cpu(), haar_sd=haar_sd.double().cpu(), norm=found.norm.double().cpu()
            )
        return known[key]

    return measured


def _arm_result(
    measure: Measure,
    weighting: Weighting,
    projection: Projection,
    haar_sd: float,
    nll: SampleMeasures,
    contributions: SampleMeasures,
    update: Mapping[str, Tensor] | None,
    token_dots: Tensor | None,
) -> ArmResult:
    A = weighting.advantages.cpu()
    realised = None if update is None else sample_cosines(update, measure.vectors)
    return ArmResult(
        condition=measure.condition,
        arm=measure.arm.name,
        basis=measure.arm.basis,
        projection=replace(projection, gradients={}),
        contribution_norms=weighting.scale.abs().cpu() * contributions.norm,
        haar_sd=haar_sd,
        sample_haar_sd=contributions.haar_sd,
        cos_nll=nll.cos,
        cos_contrib=torch.where(A == 0, torch.nan, torch.sign(A) * contributions.cos),  # A_i w_i > 0 up to its sign
        cos_update=math.nan if realised is None else float(realised.cos),
        hackward_frac_update=math.nan if realised is None else float(realised.hackward_frac),
        token_shares=None if token_dots is None else token_shares(token_dots, contributions.norm),
    )


def _project(measure: Measure, total: Mapping[str, Tensor]) -> Projection:
    return project_modules(
        total,
        measure.vectors,
        gate=measure.gate,
        overshoot=measure.overshoot,
        preserve_magnitude=measure.preserve_magnitude,
    )


def _leave(measure: Measure, total: Mapping[str, Tensor]) -> Projection:
    """The measures of a gradient that is left alone: out equals in, and nothing fired."""
    found = sample_cosines(total, measure.vectors)
    return Projection(
        gradients=dict(total),
        cos_in=found.cos,
        cos_out=found.cos,
        mean_cos_in=found.mean_cos,
        mean_cos_out=found.mean_cos,
        hackward_frac_in=found.hackward_frac,
        hackward_frac_out=found.hackward_frac,
        frac_fired=torch.zeros_like(found.cos),
        norm_in=found.norm,
        norm_out=found.norm,
    )
