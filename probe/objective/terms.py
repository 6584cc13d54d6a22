"""Terms of the loss as token weights W: PPO's clipped surrogate, the KL from a reference policy, and entropy.

Shapes: G samples, T tokens. A_it are advantages; logp_it, old_it and ref_it the log-probabilities of the sampled token
under the differentiated policy, the one that sampled, and the reference. The engine differentiates -sum_t W_it logp_it,
so that W is minus the derivative of a term by logp; the caller multiplies it by the coefficient of the term and by the
normaliser w_i of the loss type (`extraction.loss_weights`).

    log r_it = logp_it - old_it                                        PPO, Schulman et al. 2017, arXiv 1707.06347
    L_it     = -min(r A, clamp(r, 1 - epsilon, 1 + epsilon_high) A)    names and formula are TRL's
    W_it     = r_it a_it            a_it = A_it, or 0 if L_it is clipped and therefore flat

With `old_logprobs` "current", r = 1, nothing is clipped and W = A, so the backward needs no log-probabilities.

    d_it = ref_it - logp_it
    k_it = exp(d) - d - 1        W_it = exp(d) - 1        k3 (Schulman 2020, "Approximating KL Divergence"; TRL's)

The mean of k is KL(policy, ref); the mean gradient equals the gradient of KL(ref, policy).

Entropy: for W_it = -logp_it the mean gradient equals the gradient of the loss -H(context), because E[grad logp] = 0.
(The loss term -logp_it would have a mean gradient of 0.)
These means hold for tokens sampled by the differentiated policy, and up to the ratio for others.
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


def kl_terms(token_logprobs: Tensor, reference_logprobs: Tensor, completion_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (k (G, T) in nats, W (G, T)) of the KL from a reference, for coefficient 1; both 0 off the completion.

    Args:
        token_logprobs: (G, T) of the sampled tokens under the policy; detached, used on completions only.
        reference_logprobs: (G, T) of the same tokens under the reference.
        completion_mask: (G, T) bool.
    """
    d = torch.where(completion_mask, reference_logprobs - token_logprobs, 0.0)
    return torch.expm1(d) - d, torch.expm1(d)


def entropy_weights(token_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """Return W (G, T) of an entropy bonus with coefficient 1: the sampled token's surprisal, 0 off the completion."""
    return torch.where(completion_mask, -token_logprobs, 0.0)


def kl_summary(values: Tensor, counted: Tensor) -> dict[str, float]:
    """Return {"mean", "max"} of k, with the wire names `kl/mean` and `kl/max`; empty if no token counts.

    Args:
        values: (G, T) k_it in nats.
        counted: (G, T) bool, completion tokens that the policy sampled. On a teacher's tokens the mean of k is not the
            policy's KL: once the policy has unlearnt them, k3 grows as reference / policy.
    """
    k = values[counted].double()
    if not len(k):
        return {}
    return {"mean": float(k.mean()), "max": float(k.max())}
