"""PPO's clipped surrogate, as token weights W of the per-sample-gradient engine.

Shapes: G samples, T tokens. A_it are advantages; sums run over completions.

    log r_it = logp_it - old_it                                        PPO, Schulman et al. 2017, arXiv 1707.06347
    L_it     = -min(r A, clamp(r, 1 - epsilon, 1 + epsilon_high) A)    names and formula are TRL's

The engine differentiates -sum_t W_it logp_it, so that W_it = -dL_it/dlogp_it, exactly:

    W_it = r_it a_it            a_it = A_it, or 0 if L_it is clipped and therefore flat

With `old_logprobs` "current", r = 1, nothing is clipped and W = A, so the backward needs no log-probabilities. The
normaliser w_i of the loss type (`extraction.loss`) multiplies W afterwards.
"""

import torch
from torch import Tensor

from probe.settings.loss import LossSettings


def surrogate(
    token_logprobs: Tensor,
    old_logprobs: Tensor,
    completion_mask: Tensor,
    advantages: Tensor,
    loss: LossSettings,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return (L (G, T), W (G, T), summary); L and W are 0 off the completion.

    The summary has wire names without "ratio/": mean and max of r_it, and shares of clipped completion tokens.

    Args:
        token_logprobs: (G, T) under the differentiated policy; detached. All (G, T) inputs are used on completions
            only.
        old_logprobs: (G, T) under the policy in the ratio's denominator, with the same temperature and top-k.
        completion_mask: (G, T) bool.
        advantages: (G,) A_i, or (G, T) A_it with token credit.
        loss: `epsilon` is the clip range below 1, `epsilon_high` above 1 (DAPO, arXiv 2503.14476; None = `epsilon`).
            `epsilon` None = no clipping.
    """
    A = torch.where(completion_mask, advantages if advantages.ndim == 2 else advantages[:, None], 0.0)
    ratio = torch.where(completion_mask, token_logprobs - old_logprobs, 0.0).exp()
    gain = ratio * A
    below = above = torch.zeros_like(A, dtype=torch.bool)
    if (epsilon := loss.epsilon) is not None:
        high = epsilon if loss.epsilon_high is None else loss.epsilon_high
        below, above = (A < 0) & (ratio < 1 - epsilon), (A > 0) & (ratio > 1 + high)
        gain = torch.minimum(gain, ratio.clamp(1 - epsilon, 1 + high) * A)
    num_tokens, known = max(int(completion_mask.sum()), 1), ratio[completion_mask].double()
    losses = torch.where(A == 0, 0.0, -gain)
    # A clipped ratio may have overflowed, and inf * 0 is nan.
    weights = torch.where(below | above | (A == 0), 0.0, ratio * A)
    summary = {
        "mean": float(known.mean()),
        "max": float(known.max()),
        "frac_clip_low": int(below.sum()) / num_tokens,  # A < 0 and r < 1 - epsilon
        "frac_clip_high": int(above.sum()) / num_tokens,  # A > 0 and r > 1 + epsilon_high
    }
    return losses, weights, summary
