"""What a condition makes of a step: advantages, normalisers and token weights as numbers.

    contribution of sample i  =  scale_i  grad of  ( -sum_t W_it logp_it + penalty_i )

                                       scale_i    W_it
    advantages alone                   A_i w_i    1: no pass of its own
    token credit                       A_i w_i    c_it
    ratio, KL penalty, entropy bonus   w_i        surrogate weights of A_i c_it + beta dk/dd + entropy_coef h_it

The KL estimator `full` is no function of the tokens' log-probabilities: it alone is a `penalty`.

P groups of a step, G samples in all of them, T tokens, N completion tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from extraction.batch import Batch
from extraction.gradients import Penalty
from probe.objective.credit import cap_credit
from probe.objective.kl import entropy_weights, kl_summary, kl_terms
from probe.objective.objective import normalisers, sample_advantages, sample_credit, sample_surrogate
from probe.objective.ratio import Surrogate
from probe.settings.loss import LossSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities of a step's completion tokens under everything that a loss compares; (G, T) each, detached."""

    current: Tensor  # the policy that is differentiated
    old: Tensor | None = None  # the law that sampled them, as recorded
    references: Mapping[str, Tensor] = field(default_factory=dict)  # by name: base, ema, recorded
    full_kl: Mapping[str, tuple[Tensor, Penalty | None]] = field(default_factory=dict)  # of `References.divergence`


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """One condition on one step."""

    advantages: Tensor  # (G,) A_i
    scale: Tensor  # (G,)
    token_weights: Tensor | None = None  # (G, T) W_it; None where it is 1 on every completion token
    penalty: Penalty | None = None
    token_advantages: Tensor | None = None  # (N,) A_it before the cap; None for an objective without token credit
    ratio: Mapping[str, float] = field(default_factory=dict)  # wire names without "ratio/"; empty at ratio 1
    kl: Mapping[str, float] = field(default_factory=dict)  # wire names without "kl/"; empty without a reference


def weigh(objective: LossSettings, rewards: Tensor, batch: Batch, scores: Scores, planning: Tensor) -> Weighting:
    """Apply an objective to a step.

    Args:
        rewards: (P, G / P) float64, on the batch's device; (G,) where there is one group.
        scores: with what the objective compares.
        planning: (G, T) bool.
    """
    mask = batch.completion_mask
    A = sample_advantages(objective, rewards)
    weights_i = normalisers(objective, batch.completion_lengths.double())
    credit, before = _credit(objective, scores.current, mask, planning, A)
    kl, kl_weights, penalty = _kl(objective, scores, mask)
    if not objective.has_token_terms:
        return Weighting(
            advantages=A, scale=A * weights_i, token_weights=credit, token_advantages=before, ratio={}, kl=kl
        )
    A_it = (A[:, None] if credit is None else A[:, None] * credit) * mask
    weights, ratio = A_it, {}
    if objective.old_logprobs == "recorded":
        assert scores.old is not None
        found = sample_surrogate(objective, scores.current, scores.old, mask, A_it)
        weights, ratio = found.weights, _ratio_summary(found, mask)
    weights = weights + objective.beta * kl_weights
    weights = weights + objective.entropy_coef * entropy_weights(scores.current, mask)
    return Weighting(
        advantages=A,
        scale=weights_i,
        token_weights=weights,
        penalty=penalty,
        token_advantages=before,
        ratio=ratio,
        kl=kl,
    )


def by_pass(weightings: Mapping[str, Weighting]) -> list[tuple[Weighting, list[str]]]:
    """(a weighting, names of the conditions that share its pass), in order of first appearance."""
    passes: list[tuple[Weighting, list[str]]] = []
    for name, weighting in weightings.items():
        same = (names for own, names in passes if _same_pass(own, weighting))
        if (names := next(same, None)) is None:
            passes.append((weighting, [name]))
        else:
            names.append(name)
    return passes


def _credit(
    objective: LossSettings, token_logprobs: Tensor, mask: Tensor, planning: Tensor, A: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """(c (G, T) after the cap, None where it is 1 everywhere; A_it (N,) before the cap, None without token credit)."""
    if not objective.has_credit:
        return None, None
    credit = sample_credit(objective, token_logprobs, mask, planning, A)
    before = (A[:, None] * credit)[mask]
    if objective.advantage_clip is not None:
        credit = cap_credit(credit, A, clip=objective.advantage_clip)
    return (None if bool((credit == 1)[mask].all()) else credit), before


def _kl(objective: LossSettings, scores: Scores, mask: Tensor) -> tuple[dict[str, float], Tensor, Penalty | None]:
    """(summary, engine weights (G, T) for beta 1, penalty); empty, 0 and None without a reference.

    Beside a moving reference the KL from the base is measured too: it is what tells a reference that moves from one
    that was silently replaced.
    """
    nothing = torch.zeros_like(scores.current)
    if objective.reference is None:
        return {}, nothing, None
    values, weights, penalty = {}, nothing, None
    for name in {objective.reference, *(["base"] if objective.reference == "ema" else [])}:
        if objective.kl_estimator == "full":
            values[name], term = scores.full_kl[name]
            penalty = _scaled(term, objective.beta) if name == objective.reference else penalty
        else:
            own = kl_terms(scores.current, scores.references[name], mask, estimator=objective.kl_estimator)
            values[name] = own.values
            weights = own.weights if name == objective.reference else weights
    summary = kl_summary(values[objective.reference], mask)
    if objective.reference == "ema":
        summary["from_base"] = kl_summary(values["base"], mask)["mean"]
    return summary, weights, penalty


def _scaled(term: Penalty | None, beta: float) -> Penalty | None:
    if term is None or beta == 0:
        return None
    return lambda index, states, head: beta * term(index, states, head)


def _ratio_summary(found: Surrogate, mask: Tensor) -> dict[str, float]:
    ratio = found.ratio[mask].double()
    return {
        "mean": float(ratio.mean()),
        "max": float(ratio.max()),
        "frac_clip_low": found.frac_clip_low,
        "frac_clip_high": found.frac_clip_high,
        "frac_clip_delta": found.frac_clip_delta,
    }


def _same_pass(a: Weighting, b: Weighting) -> bool:
    if a.penalty is not None or b.penalty is not None:
        return a is b
    if a.token_weights is None or b.token_weights is None:
        return a.token_weights is b.token_weights
    return torch.equal(a.token_weights, b.token_weights)
