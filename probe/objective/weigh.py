"""`weigh`: the sample scales and token weights that an objective gives a step.

    L = sum_i w_i sum_t ( -A_it logp_it  +  beta k_it  -  entropy_coef H_it )          A_it = A_i c_it

A_i from `advantages`, c_it from `credit` (1 without token credit), w_i from `extraction.loss`, k_it and H_it from `kl`;
with recorded log-probabilities the first term is the clipped surrogate of `ratio`.

    contribution of sample i  =  scale_i  grad of  ( -sum_t W_it logp_it )

                                       scale_i    W_it
    advantages alone                   A_i w_i    1: no pass of its own
    token credit                       A_i w_i    c_it
    ratio, KL penalty, entropy bonus   w_i        surrogate weights of A_i c_it + beta dk/dd + entropy_coef h_it

Conditions with equal W share a forward and backward (`by_pass`): they differ in scale_i alone.
P groups of a step, G samples in all of them, T tokens, N completion tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from extraction.batch import Batch
from extraction.loss import loss_weights
from probe.objective.advantages import sample_advantages
from probe.objective.credit import cap_credit, token_credit
from probe.objective.kl import entropy_weights, kl_summary, kl_terms
from probe.objective.ratio import surrogate
from probe.settings.loss import LossSettings
from probe.settings.run import normaliser


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities of a step's completion tokens under the policies that a loss compares; (G, T), detached."""

    current: Tensor  # of the policy that is differentiated
    old: Tensor | None = None  # as recorded when the tokens were sampled
    references: Mapping[str, Tensor] = field(default_factory=dict)  # by name: base, ema, recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """What one condition makes of one step; the contributions of the samples follow from it."""

    advantages: Tensor  # (G,) A_i
    weights: Tensor  # (G,) w_i
    scale: Tensor  # (G,)
    token_weights: Tensor | None = None  # (G, T) W_it; None where it is 1 on every completion token
    token_advantages: Tensor | None = None  # (N,) A_it before the cap; None for an objective without token credit
    loss: float  # L, whose gradient the contributions add up to
    abs_advantage: float  # mean |A_it| over the completion tokens, after the cap
    ratio: Mapping[str, float] = field(default_factory=dict)  # wire names without "ratio/"; empty at ratio 1
    kl: Mapping[str, float] = field(default_factory=dict)  # wire names without "kl/"; empty without a reference


def weigh(
    objective: LossSettings,
    rewards: Tensor,
    batch: Batch,
    scores: Scores,
    planning: Tensor,
    counted: Tensor,
    strata: Tensor | None = None,
) -> Weighting:
    """Apply an objective to a step.

    Args:
        objective: the loss of the condition.
        rewards: (P, G / P) float64, on the batch's device; (G,) where there is one group.
        batch: the G samples.
        scores: log-probabilities of its tokens, those included that the objective compares with.
        planning: (G, T) bool, which completion tokens are planning tokens.
        counted: (G, T) bool, the completion tokens over which the KL is measured: those that the policy sampled. The
            penalty is on all of them.
        strata: in the shape of the rewards, the stratum of each sample; None: a group is one.
    """
    mask = batch.completion_mask
    A = sample_advantages(objective, rewards, strata)
    lengths = batch.completion_lengths
    weights_i = loss_weights(lengths.double(), normaliser(objective), global_tokens=int(lengths.sum()))
    credit, before = _credit(objective, scores.current, mask, planning, A)
    kl, k_it, kl_weights = _kl(objective, scores, mask, counted)
    A_it = (A[:, None] if credit is None else A[:, None] * credit) * mask
    # At a surprisal of infinity 0 times it would be nan.
    losses = torch.where(A_it == 0, 0.0, -A_it * scores.current)
    scale, weights, ratio = A * weights_i, credit, {}
    if objective.has_token_terms:
        scale, weights = weights_i, A_it
        if objective.old_logprobs == "recorded":
            assert scores.old is not None
            losses, weights, ratio = surrogate(scores.current, scores.old, mask, A_it, objective)
        surprisal = entropy_weights(scores.current, mask)
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
    """(weighting, names of the conditions that share its pass), in order of first appearance.

    Args:
        weightings: by condition.
    """
    passes: list[tuple[Weighting, list[str]]] = []
    for name, weighting in weightings.items():
        tokens = weighting.token_weights
        for shared, names in passes:
            other = shared.token_weights  # passes with equal ones differ in their scales alone
            if tokens is other or (tokens is not None and other is not None and torch.equal(tokens, other)):
                names.append(name)
                break
        else:
            passes.append((weighting, [name]))
    return passes


def _credit(
    objective: LossSettings, token_logprobs: Tensor, mask: Tensor, planning: Tensor, A: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Token credit: c (G, T) after the cap, None where it is 1 everywhere; and A_it (N,) before the cap.

    Both are None for an objective without token credit.
    """
    if not objective.has_credit:
        return None, None
    credit = token_credit(token_logprobs, mask, planning, A, objective)
    before = (A[:, None] * credit)[mask]
    if objective.advantage_clip is not None:
        credit = cap_credit(credit, A, clip=objective.advantage_clip)
    # Factors that are all 1 need no token weights, and so no pass of their own.
    if bool((credit == 1)[mask].all()):
        return None, before
    return credit, before


def _kl(
    objective: LossSettings, scores: Scores, mask: Tensor, counted: Tensor
) -> tuple[dict[str, float], Tensor, Tensor]:
    """KL from the reference: (wire summary, k (G, T) in nats, engine weights (G, T) for beta 1).

    The summary is over the counted tokens. Without a reference they are empty, 0 and 0. Beside a moving one the
    KL from the base is measured too: it tells a reference that moves from one that was silently replaced.
    """
    if objective.reference is None:
        return {}, torch.zeros_like(scores.current), torch.zeros_like(scores.current)
    values, weights = kl_terms(scores.current, scores.references[objective.reference], mask)
    summary = kl_summary(values, counted)
    if objective.reference == "ema" and summary:
        from_base, _ = kl_terms(scores.current, scores.references["base"], mask)
        summary["from_base"] = kl_summary(from_base, counted)["mean"]
    return summary, values, weights
