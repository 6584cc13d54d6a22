"""The step: one group through one forward and backward, then every arm on the same per-sample gradients.

    g_i     = grad of sum_t -logp_it                 per sample, unit weight ("NLL gradient")
    total   = sum_i A_i w_i g_i                      the policy gradient of the group (frozen weights, ratio 1)
    arm     : cosines of `total` with the arm's directions before and after its gate

G samples, T tokens, r coordinates of a module, k directions, M modules. The step returns; the loop writes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.adapters.coordinates import Coordinates
from extraction.batch import Batch, make_batch
from extraction.gradients import SampleGradients, per_sample_gradients
from extraction.logprobs import completion_logprobs
from extraction.loss import LossType, loss_weights
from probe.advantages import Estimator, Scale, advantage_diagnostics, advantages, group_std
from probe.arms import Arm
from probe.projection import Gate, Projection, haar_variance, project_modules, sample_cosines
from probe.sources import Group
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of a group: advantages and normaliser (METHOD: names and formulas are TRL's)."""

    loss_type: LossType = "grpo"
    estimator: Estimator = "grpo"
    scale_rewards: Scale = "none"
    advantage_clip: float | None = None
    min_group_std: float = 0.0
    max_completion_length: int | None = None  # for dr_grpo

    def __post_init__(self) -> None:
        """Settings that do not fit together are refused at once; trying them is the check."""
        try:
            self.advantages(torch.tensor([0.0, 1.0]))
        except ValueError as error:
            raise InputError("advantage options", expected="settings that fit together", found=str(error)) from error

    def advantages(self, rewards: Tensor) -> Tensor:
        """(G,) advantages; ones for `nll`, which has none."""
        if self.loss_type == "nll":
            return torch.ones_like(rewards)
        return advantages(
            rewards,
            estimator=self.estimator,
            scale=self.scale_rewards,
            clip=self.advantage_clip,
            min_group_std=self.min_group_std,
            batch_std=group_std(rewards),  # in a replay step the batch is the group
        )

    def diagnostics(self, rewards: Tensor, reward_range: float) -> dict[str, float | bool | None]:
        """The wire diagnostics of the advantages."""
        return advantage_diagnostics(
            rewards,
            estimator=self.estimator,
            scale=self.scale_rewards,
            clip=self.advantage_clip,
            min_group_std=self.min_group_std,
            batch_std=group_std(rewards),
            reward_range=reward_range,
        )

    def weights(self, lengths: Tensor) -> Tensor:
        """(G,) normalisers."""
        return loss_weights(
            lengths,
            loss_type=self.loss_type,
            max_completion_length=self.max_completion_length,
            global_tokens=int(lengths.sum()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One arm with the directions and the gate settings that it uses."""

    arm: Arm
    vectors: Mapping[str, Tensor]  # {module: (k, r)}
    gate: Gate
    overshoot: float = 1.0
    preserve_magnitude: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm measured on one group; scalars are of the whole gradient, vectors are (G,)."""

    arm: str
    projection: Projection
    haar_sd: float
    sample_haar_sd: Tensor  # (G,)
    cos_nll: Tensor  # (G,) signed cosine of each sample's NLL gradient; NaN where it is zero
    cos_contrib: Tensor  # (G,) of A_i g_i; NaN where A_i = 0
    cos_update: float  # of the realised update; NaN when nothing was stepped
    hackward_frac_update: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One group: what all arms share, and each arm's measures."""

    advantages: Tensor  # (G,)
    nll: Tensor  # (G,) nats per completion token
    contribution_norms: Tensor  # (G,) norm of A_i w_i g_i
    unit: SampleGradients
    additivity_error: float | None
    arms: dict[str, ArmResult]


def train_step(
    coordinates: Coordinates,
    group: Group,
    measures: Sequence[Measure],
    *,
    objective: Objective,
    pad_id: int,
    optimizer: torch.optim.Optimizer | None = None,
    check_additivity: bool = False,
) -> StepResult:
    """One step on one group; `probe replay` and `probe train` both call exactly this.

    Args:
        measures: every arm to evaluate; with an optimizer, exactly one.
        optimizer: steps the coordinates along the arm's gradient; None leaves the weights frozen.
        check_additivity: also run the ordinary batch backward and compare (doubles the cost of the step).
    """
    if optimizer is not None and len(measures) != 1:
        raise ValueError(f"an optimizer steps one arm, found {len(measures)}")
    batch = make_batch(group.prompt_ids, group.completion_ids, pad_id).to(next(coordinates.model.parameters()).device)
    A = objective.advantages(torch.tensor(group.rewards, dtype=torch.float64))
    lengths = torch.tensor([len(ids) for ids in group.completion_ids])
    scale = A * objective.weights(lengths.double())  # (G,) A_i w_i
    unit = per_sample_gradients(coordinates, batch)
    total = {m: scale.to(g.device, g.dtype) @ g for m, g in unit.gradients.items()}
    error = additivity_error(coordinates, batch, scale, total) if check_additivity else None
    norms = sum(g.double().square().sum(1) for g in unit.gradients.values()) ** 0.5
    return StepResult(
        advantages=A,
        nll=unit.nll.double().cpu() / lengths,
        contribution_norms=scale.abs() * torch.as_tensor(norms).cpu(),
        unit=unit,
        additivity_error=error,
        arms={m.arm.name: _arm_result(m, coordinates, unit.gradients, total, A, optimizer) for m in measures},
    )


def _arm_result(
    measure: Measure,
    coordinates: Coordinates,
    unit: Mapping[str, Tensor],
    total: Mapping[str, Tensor],
    A: Tensor,
    optimizer: torch.optim.Optimizer | None,
) -> ArmResult:
    projection = _project(measure, total) if measure.arm.projects else _leave(measure, total)
    cos_nll = sample_cosines(unit, measure.vectors).cos.double().cpu()
    cos_update = hackward_update = math.nan
    if optimizer is not None:
        update = _apply(coordinates, projection.gradients, optimizer)
        realised = sample_cosines(update, measure.vectors)
        cos_update, hackward_update = float(realised.cos), float(realised.hackward_frac)
    return ArmResult(
        arm=measure.arm.name,
        projection=projection,
        haar_sd=float(haar_variance(total, measure.vectors).cos.sqrt()),
        sample_haar_sd=haar_variance(unit, measure.vectors).cos.sqrt().double().cpu(),
        cos_nll=cos_nll,
        cos_contrib=torch.where(A == 0, torch.nan, torch.sign(A) * cos_nll),  # A_i w_i g_i is g_i up to its sign
        cos_update=cos_update,
        hackward_frac_update=hackward_update,
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


def _apply(
    coordinates: Coordinates, gradients: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Step the optimizer; returns minus the realised update, which points the way of a loss gradient."""
    before = {module: value.detach().clone() for module, value in coordinates.values().items()}
    coordinates.set_gradients(dict(gradients))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {module: before[module] - value.detach() for module, value in coordinates.values().items()}


def additivity_error(coordinates: Coordinates, batch: Batch, scale: Tensor, total: Mapping[str, Tensor]) -> float:
    """|sum of contributions - batch gradient| / |batch gradient|, the latter by ordinary autograd of the loss."""
    layers = [(module, p) for module in coordinates.sizes for p in coordinates.trainable(module)]
    with torch.enable_grad():
        logprobs = completion_logprobs(coordinates.model, batch.ids, batch.attention_mask, batch.completion_mask)
        token_weights = scale.to(logprobs)[:, None].expand_as(batch.ids)[batch.completion_mask]
        loss = -(token_weights * logprobs).sum()
        found = torch.autograd.grad(loss, [p for _, p in layers], allow_unused=True, materialize_grads=True)
    parts: dict[str, list[Tensor]] = {module: [] for module in coordinates.sizes}
    for (module, _), gradient in zip(layers, found, strict=True):
        parts[module].append(gradient.flatten())
    difference = sum(float((torch.cat(parts[m]) - g).double().square().sum()) for m, g in total.items())
    size = sum(float(torch.cat(parts[m]).double().square().sum()) for m in total)
    return math.sqrt(difference / size) if size else 0.0
