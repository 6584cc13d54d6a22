"""The clipped surrogate of PPO and GSPO, as token weights W of the per-sample-gradient engine.

Shapes: G samples, T tokens. A_it are advantages, len_i the completion tokens of sample i; sums run over completions.

    log r_it = logp_it - old_it                      level "token"      PPO, Schulman et al. 2017, arXiv 1707.06347
    log r_i  = sum_t (logp_it - old_it) / len_i      level "sequence"   GSPO, Zheng et al. 2025, arXiv 2507.18071
    L_it     = -min(min(r, delta) A, clamp(r, 1 - epsilon, 1 + epsilon_high) A)        names and formula are TRL's

`delta` caps what the minimum leaves unbounded, a large ratio with A < 0 (INTELLECT-2, arXiv 2505.07291). The engine
differentiates -sum_t W_it logp_it, so that W_it = -d/dlogp_it sum_s L_is, exactly:

    token       W_it = r_it a_it            a_it = A_it, or 0 where L_it is clipped and therefore flat
    sequence    W_it = r_i mean_s(a_is)     r_i moves with each of its len_i log-probabilities by r_i / len_i

Where the old log-probabilities are the policy's own (`old_logprobs` "current"), r = 1, nothing is clipped and W = A:
no log-probability has to be known before the backward. The normaliser w_i of the loss type (`extraction.loss`)
multiplies W afterwards.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from probe.settings.words import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The surrogate of a group. Fractions are of completion tokens."""

    losses: Tensor  # (G, T) L_it, 0 off the completion
    weights: Tensor  # (G, T) W_it, 0 off the completion
    ratio: Tensor  # (G, T) r_it, 1 off the completion; the same in all tokens of a sample at level "sequence"
    frac_clip_low: float  # A < 0 and r < 1 - epsilon
    frac_clip_high: float  # A > 0 and r > 1 + epsilon_high
    frac_clip_delta: float  # r > delta where the range above does not clip already


def surrogate(
    token_logprobs: Tensor,
    old_logprobs: Tensor,
    completion_mask: Tensor,
    advantages: Tensor,
    *,
    level: Level = "token",
    epsilon: float | None = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Surrogate:
    """Losses, engine weights and clip fractions of one group.

    Args:
        token_logprobs: (G, T) under the policy that is differentiated; detached. Read on completions only, like
            everything else of shape (G, T).
        old_logprobs: (G, T) under the policy in the denominator of the ratio, with the same temperature and top-k.
        completion_mask: (G, T) bool.
        advantages: (G,) A_i, or (G, T) A_it with token credit.
        level: whether each token has a ratio, or each sample.
        epsilon: clip range below 1, and above when `epsilon_high` is None; None = no clip range.
        epsilon_high: clip range above 1 (DAPO, arXiv 2503.14476).
        delta: cap on r, above 1 + epsilon_high; None = no cap.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    lengths = completion_mask.sum(1, keepdim=True).clamp_min(1)
    A = torch.where(completion_mask, advantages if advantages.ndim == 2 else advantages[:, None], 0.0)
    log_ratio = torch.where(completion_mask, token_logprobs - old_logprobs, 0.0)
    if level == "sequence":
        log_ratio = torch.where(completion_mask, log_ratio.sum(1, keepdim=True) / lengths, 0.0)
    ratio = log_ratio.exp()
    below, above, beyond = _clipped(ratio, A, epsilon, high, delta)
    active = torch.where(below | above | beyond, 0.0, A)
    if level == "sequence":
        active = torch.where(completion_mask, active.sum(1, keepdim=True) / lengths, 0.0)
    num_tokens = max(int(completion_mask.sum()), 1)
    return Surrogate(
        losses=_losses(ratio, A, epsilon, high, delta),
        weights=torch.where(active == 0, 0.0, ratio * active),  # a clipped ratio may have overflowed: inf * 0
        ratio=ratio,
        frac_clip_low=int(below.sum()) / num_tokens,
        frac_clip_high=int(above.sum()) / num_tokens,
        frac_clip_delta=int(beyond.sum()) / num_tokens,
    )


def _clipped(
    ratio: Tensor, A: Tensor, epsilon: float | None, high: float | None, delta: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Where L_it is flat: below the range, above it, beyond delta; disjoint, (G, T) bool each."""
    never = torch.zeros_like(A, dtype=torch.bool)
    below = never if epsilon is None else (A < 0) & (ratio < 1 - epsilon)
    above = never if high is None else (A > 0) & (ratio > 1 + high)
    beyond = never if delta is None else (A != 0) & (ratio > delta) & ~above
    return below, above, beyond


def _losses(ratio: Tensor, A: Tensor, epsilon: float | None, high: float | None, delta: float | None) -> Tensor:
    """L_it; 0 where A_it = 0."""
    gain = (ratio if delta is None else ratio.clamp(max=delta)) * A
    if epsilon is not None and high is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - epsilon, 1 + high) * A)
    return torch.where(A == 0, 0.0, -gain)
