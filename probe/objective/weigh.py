"""`weigh`: turn an objective into sample scales and token weights of a step.

    L = sum_i w_i sum_t ( -A_it logp_it  +  beta k_it  -  entropy_coef H_it )          A_it = A_i c_it

A_i from `advantages`, c_it from `credit` (1 without token credit), w_i from `extraction.loss_weights`, k_it and H_it
from `terms`; with recorded log-probabilities the first term is its clipped surrogate.

    contribution of sample i  =  scale_i  grad of  ( -sum_t W_it logp_it )

                                       scale_i    W_it
    advantages alone                   A_i w_i    1: no pass of its own
    token credit                       A_i w_i    c_it
    ratio, KL penalty, entropy bonus   w_i        surrogate weights of A_i c_it + beta dk/dd + entropy_coef h_it

Loss variants with equal W share a forward and backward (`by_pass`): only their scale_i differ.
Shapes: P groups of a step, G samples in all of them, T tokens, N completion tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from extraction.batch import Batch
from extraction.loss_weights import loss_weights
from probe.objective.advantages import sample_advantages
from probe.objective.credit import cap_credit, token_credit
from probe.objective.terms import entropy_weights, kl_summary, kl_terms, surrogate
from probe.settings.loss import LossSettings
from probe.settings.verbs import normaliser


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """The weights of one step under one loss variant."""

    advantages: Tensor  # (G,) A_i
    weights: Tensor  # (G,) w_i
    scale: Tensor  # (G,)
    token_weights: Tensor | None = None  # (G, T) W_it; None: 1 on every completion token
    token_advantages: Tensor | None = None  # (N,) A_it before the cap; None without token credit
    loss: float  # L; the contributions sum to its gradient
    abs_advantage: float  # mean |A_it| over the completion tokens, after the cap
    ratio: Mapping[str, float] = field(default_factory=dict)  # wire names without "ratio/"; empty at ratio 1
    kl: Mapping[str, float] = field(default_factory=dict)  # wire names without "kl/"; empty without a reference


def weigh(
    objective: LossSettings,
    rewards: Tensor,
    batch: Batch,
    current: Tensor,
    planning: Tensor,
    counted: Tensor,
    *,
    old: Tensor | None = None,
    references: Mapping[str, Tensor] = MappingProxyType({}),
    strata: Tensor | None = None,
) -> Weighting:
    """Apply an objective to a step.

    Args:
        objective: the loss of the variant.
        rewards: (P, G / P) float64, on the batch's device; (G,) for one group.
        batch: the G samples.
        current: (G, T) log-probabilities under the differentiated policy; detached, as `old` and the references.
        planning: (G, T) bool, planning tokens among the completion tokens.
        counted: (G, T) bool, completion tokens that the policy sampled. The KL is measured on them; the penalty acts on
            all completion tokens.
        old: (G, T) log-probabilities that were recorded at sampling, for the ratio.
        references: {name: (G, T)} of base, ema, recorded: those that the objective needs.
        strata: stratum of each sample, in the shape of the rewards; None = one stratum a group.
    """
    mask = batch.completion_mask
    A = sample_advantages(objective, rewards, strata)
    weights_i = loss_weights(batch.completion_lengths.double(), normaliser(objective))
    credit, before = _credit(objective, current, mask, planning, A)
    kl, k_it, kl_weights = _kl(objective, current, references, mask, counted)
    A_it = (A[:, None] if credit is None else A[:, None] * credit) * mask
    # 0 times an infinite surprisal would be nan.
    losses = torch.where(A_it == 0, 0.0, -A_it * current)
    scale, weights, ratio = A * weights_i, credit, {}
    if objective.has_token_terms:
        scale, weights = weights_i, A_it
        if objective.old_logprobs == "recorded":
            assert old is not None
            losses, weights, ratio = surrogate(current, old, mask, A_it, objective)
        surprisal = entropy_weights(current, mask)
        weights = weights + objective.beta * kl_weights + objective.entropy_coef * surprisal
        losses = losses + objective.beta * k_it - objective.entropy_coef * surprisal
    return Weighting(
        advantages=A,
        weights=weights_i,
        scale=scale,
        token_weights=weights,
        token_advantages=before,
        loss=float((weights_i[:, None] * losses)[mask].sum()),
        abs_advantage=float(A_it[mask].abs().mean()),
        ratio=ratio,
        kl=kl,
    )


def by_pass(weightings: Mapping[str, Weighting]) -> list[tuple[Weighting, list[str]]]:
    """Group the weightings, by loss variant, to [(weighting, names of the variants that share its pass)]."""
    passes: list[tuple[Weighting, list[str]]] = []
    for name, weighting in weightings.items():
        tokens = weighting.token_weights
        for shared, names in passes:
            other = shared.token_weights
            if tokens is other or (tokens is not None and other is not None and torch.equal(tokens, other)):
                names.append(name)
                break
        else:
            passes.append((weighting, [name]))
    return passes


def _credit(
    objective: LossSettings, token_logprobs: Tensor, mask: Tensor, planning: Tensor, A: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Return token credit c (G, T) after the cap, None if it is 1 everywhere, and A_it (N,) before the cap.

    Both are None for an objective without token credit.
    """
    if not objective.has_credit:
        return None, None
    credit = token_credit(token_logprobs, mask, planning, A, objective)
    before = (A[:, None] * credit)[mask]
    if objective.advantage_clip is not None:
        credit = cap_credit(credit, A, clip=objective.advantage_clip)
    # Factors of 1 need no token weights, and so no separate pass.
    if bool((credit == 1)[mask].all()):
        return None, before
    return credit, before


def _kl(
    objective: LossSettings, current: Tensor, references: Mapping[str, Tensor], mask: Tensor, counted: Tensor
) -> tuple[dict[str, float], Tensor, Tensor]:
    """Return (wire summary, k (G, T) in nats, engine weights (G, T) for beta 1) of the KL from the reference.

    The summary is over the counted tokens. Without a reference the result is empty, 0 and 0. With a moving reference
    the KL from the base is measured too, to notice a reference that was silently replaced.
    """
    if objective.reference is None:
        return {}, torch.zeros_like(current), torch.zeros_like(current)
    values, weights = kl_terms(current, references[objective.reference], mask)
    summary = kl_summary(values, counted)
    if objective.reference == "ema" and summary:
        from_base, _ = kl_terms(current, references["base"], mask)
        summary["from_base"] = kl_summary(from_base, counted)["mean"]
    return summary, values, weights
