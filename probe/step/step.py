"""The step: its groups through one forward and backward, then every condition and arm on the same gradients.

    g_i     = grad of sum_t -logp_it                 per sample, unit weight ("NLL gradient")
    total   = sum_i A_i w_i g_i                      the policy gradient of the step (ratio 1)
    arm     : cosines of `total` with the arm's directions before and after its gate

The gradient is linear in A_i w_i, so conditions that differ in advantages or normaliser cost no pass. Token credit,
recorded ratios, a KL penalty and an entropy bonus weight tokens unequally inside the backward: every DIFFERENT W_it
costs one more pass, whose g_i is the gradient of sum_t -W_it logp_it (`probe.objective.weigh`); conditions with the
same W share it. All bases share every pass.

The normalisers w_i are those of the mean over all groups, so that the mean comes before the gate, which does not
commute with it. Several ranks share out the samples (`probe.step.passes`); what is weighed, summed and gated is the
whole step on each of them. G samples of all groups together, g of them this rank's, T tokens, N completion tokens, r
coordinates of a module, k directions, M modules. The step returns; the loop writes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from extraction.batch import Batch, make_batch
from extraction.words import Basis
from probe.objective.credit import credit_diagnostics
from probe.objective.weigh import Scores, Weighting, by_pass, weigh
from probe.settings.arms import Arm
from probe.settings.loss import LossSettings
from probe.settings.words import Gate, Target
from probe.step.attribution import axis, token_shares
from probe.step.distributed import World
from probe.step.groups import Group
from probe.step.passes import Bases, Gradients
from probe.step.projection import Projection, haar_variance, project_modules, sample_cosines
from probe.step.reference import References, needed
from probe.step.update import Updater, split_update


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One arm under one condition, with the directions and the gate settings that it uses."""

    condition: str
    arm: Arm
    vectors: Mapping[str, Tensor]  # {module: (k, r)}
    gate: Gate
    overshoot: float = 1.0
    preserve_magnitude: bool = False
    target: Target = "gradient"  # what the gate of an arm that projects acts on
    age: int = 0  # optimizer steps since the directions were extracted
    overlap: float | None = None  # mean squared cosine of the principal angles with the directions of the start

    @property
    def gating(self) -> dict[str, Any]:
        """The keywords of `project_modules` and `split_update`."""
        return {
            "directions": self.vectors,
            "gate": self.gate,
            "overshoot": self.overshoot,
            "preserve_magnitude": self.preserve_magnitude,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm measured under one condition; scalars are of the whole gradient, vectors are (G,)."""

    condition: str
    arm: str
    basis: Basis
    projection: Projection  # without its gradients: memory would grow with arms times conditions
    contribution_norms: Tensor  # (G,) norm of each sample's contribution
    haar_sd: float
    sample_haar_sd: Tensor  # (G,) of cos_contrib; of cos_nll too unless tokens are weighted
    cos_nll: Tensor  # (G,) signed cosine of each sample's NLL gradient; NaN where it is zero
    cos_contrib: Tensor  # (G,) of the sample's contribution; NaN where that is zero
    cos_update: float  # of the realised update; NaN when nothing was stepped
    hackward_frac_update: float
    direction_age: int
    direction_overlap: float | None
    token_shares: Tensor | None  # (G, T), a row adds up to the cosine behind cos_contrib; None: not asked for
    broken: str | None  # the first number that is not finite: with it, no step was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: what is shared, and the measures in the order in which they were asked for."""

    nll: Tensor  # (G,) nats per completion token
    unit: Gradients  # (g, r) g_i without token credit, of this rank's samples
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
    conditions: Mapping[str, LossSettings],
    planning: Sequence[Sequence[bool]],
    pad_id: int,
    references: References,
    updater: Updater | None = None,
    check_whole: bool = False,
    attributed: Measure | None = None,
) -> StepResult:
    """One step on its groups; `probe replay` and `probe train` both call exactly this.

    Args:
        bases: one adapted copy of the policy for each basis; several only at frozen weights.
        groups: at least one, all of one size.
        measures: every arm under every condition; with an updater, exactly one.
        conditions: the objectives by name.
        planning: which completion tokens are planning tokens, (G,) ragged.
        references: of the KL penalty.
        updater: steps the coordinates along the arm's gradient; None leaves the weights frozen.
        check_whole: check the additivity of all modules by a pass of its own in every basis, not of one module only.
        attributed: one of `measures`, whose sample cosines are split over tokens.
    """
    if updater is not None and (len(measures), len(bases.coordinates)) != (1, 1):
        raise ValueError(f"an updater steps one arm in one basis, found {len(measures)} in {len(bases.coordinates)}")
    prompts = [ids for group in groups for ids in group.prompt_ids]
    completions = [ids for group in groups for ids in group.completion_ids]
    batch = make_batch(prompts, completions, pad_id).to(bases.device)
    along = None if attributed is None else axis(attributed.arm.basis, attributed.vectors)
    unit, errors = bases.run_checked(batch, turn=groups[0].step, whole=check_whole, axis=along)
    planned = _on_completions(planning, batch)
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64, device=bases.device)
    scores = _scores(conditions.values(), groups, batch, unit.token_logprobs, references, bases)
    weightings = {name: weigh(own, rewards, batch, scores, planned) for name, own in conditions.items()}
    nll = _sample_measures(unit.gradients, bases.world, len(batch))
    results: dict[tuple[str, str], ArmResult] = {}
    for shared, names in by_pass(weightings):
        plain = shared.token_weights is None
        own = unit if plain else bases.run(batch, shared.token_weights, shared.penalty, along)
        contributions = nll if plain else _sample_measures(own.gradients, bases.world, len(batch))
        for name in names:
            totals = bases.total(weightings[name].scale, own.gradients)
            for m in (measure for measure in measures if measure.condition == name):
                total = totals[m.arm.basis]
                gated = m.arm.projects and m.target == "gradient"
                projection = project_modules(total, **m.gating) if gated else _leave(m, total)
                broken = _broken(weightings[name], projection)
                update = (
                    None
                    if updater is None or broken
                    else updater.step(projection.gradients, partial(split_update, **m.gating))
                )
                haar_sd = float(haar_variance(total, m.vectors).cos.sqrt())
                dots = own.token_dots if m is attributed else None
                results[name, m.arm.name] = _arm_result(
                    m, weightings[name], projection, haar_sd, nll(m), contributions(m), update, broken, dots
                )
    return StepResult(
        nll=(unit.nll.double() / batch.completion_lengths).cpu(),
        unit=unit.gradients,
        additivity_errors=errors,
        **credit_diagnostics(unit.token_logprobs, batch.completion_mask, planned),
        weightings=weightings,
        arms=[results[m.condition, m.arm.name] for m in measures],
    )


def _scores(
    objectives: Iterable[LossSettings],
    groups: Sequence[Group],
    batch: Batch,
    current: Tensor,
    references: References,
    bases: Bases,
) -> Scores:
    """The log-probabilities that the objectives compare with, each computed once."""
    objectives = list(objectives)
    names: set[str] = {own.reference for own in objectives if own.reference is not None}
    needs_old = any(own.old_logprobs == "recorded" for own in objectives)
    rows = [row for group in groups for row in group.sampling_logprobs if row is not None]
    recorded = None
    if (needs_old or "recorded" in names) and len(rows) == len(batch):
        recorded = _on_completions(rows, batch).to(current.dtype)
    wanted = sorted(names | ({"base"} if "ema" in names else set()))
    found = references.scores(wanted, bases, batch, current, recorded)
    is_full = any(own.kl_estimator == "full" for own in objectives)
    return Scores(
        current=current,
        old=needed(recorded) if needs_old else None,
        references={name: own.token_logprobs for name, own in found.items()},
        full_kl=references.divergences(found, bases, batch) if is_full else {},
    )


def _on_completions(values: Sequence[Sequence[float]], batch: Batch) -> Tensor:
    """(G, T) from one value (bool or number) for each completion token, (G,) ragged; 0 off the completion."""
    flat = torch.tensor([value for row in values for value in row], device=batch.ids.device)
    zeros = torch.zeros(batch.ids.shape, dtype=flat.dtype, device=flat.device)
    return zeros.masked_scatter(batch.completion_mask, flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMeasures:
    """Per-sample gradients against one arm's directions; each (G,), float64 on the CPU."""

    cos: Tensor
    haar_sd: Tensor
    norm: Tensor


def _sample_measures(gradients: Gradients, world: World, num_samples: int) -> Callable[[Measure], SampleMeasures]:
    """A function that measures the gradients against an arm's directions, once for directions that arms share.

    Every rank measures its own samples.
    """
    known: dict[int, SampleMeasures] = {}

    def measured(measure: Measure) -> SampleMeasures:
        key = id(measure.vectors)
        if key not in known:
            own = gradients[measure.arm.basis]
            found = sample_cosines(own, measure.vectors)
            haar_sd = haar_variance(own, measure.vectors).cos.sqrt()
            mine = torch.stack([found.cos, haar_sd, found.norm], dim=1).double().cpu()
            cos, haar_sd, norm = world.join(mine, num_samples).unbind(1)
            known[key] = SampleMeasures(cos=cos, haar_sd=haar_sd, norm=norm)
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
    broken: str | None,
    token_dots: Tensor | None,
) -> ArmResult:
    scale = weighting.scale.cpu()
    realised = None if update is None else sample_cosines(update, measure.vectors)
    return ArmResult(
        condition=measure.condition,
        arm=measure.arm.name,
        basis=measure.arm.basis,
        projection=replace(projection, gradients={}),
        contribution_norms=scale.abs() * contributions.norm,
        haar_sd=haar_sd,
        sample_haar_sd=contributions.haar_sd,
        cos_nll=nll.cos,
        cos_contrib=torch.where(scale == 0, torch.nan, torch.sign(scale) * contributions.cos),
        cos_update=math.nan if realised is None else float(realised.cos),
        hackward_frac_update=math.nan if realised is None else float(realised.hackward_frac),
        direction_age=measure.age,
        direction_overlap=measure.overlap,
        token_shares=None if token_dots is None else token_shares(token_dots, contributions.norm),
        broken=broken,
    )


def _broken(weighting: Weighting, projection: Projection) -> str | None:
    """What is not finite among the numbers that a step's record is made of, by its wire name."""
    numbers = {f"kl/{name}": value for name, value in weighting.kl.items()}
    numbers |= {f"ratio/{name}": value for name, value in weighting.ratio.items()}
    numbers |= {"grad_norm": float(projection.norm_in), "grad_norm after the gate": float(projection.norm_out)}
    return next((f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)), None)


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
